"""The sizes that a draft takes over from its target, of whose width it is a Llama layer, and what its training computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Tokens that a draft proposes unless the object says otherwise: nearly all that a model says, at a quarter of the head.
DEFAULT_VOCABULARY = 32000

#: A target with latent attention (DeepSeek, Kimi) has no plain heads to take over; published drafts for them have these.
_HEADS, _KV_HEADS, _HEAD_DIM = 64, 8, 128


#: Where only experts are known of a target, a draft's feed-forward network is at least so many times as wide as its states, as those of
#: all published drafts are: 2 (LongCat-Flash) to 8 times (Qwen3-Next), 3.5 for Llama-3.1-8B and 6 for Qwen3-30B-A3B and gpt-oss
#: (SpecForge's configurations).
NARROWEST = 2


@dataclass(frozen=True)
class DraftSize:
    """Sizes of a draft's decoder layer, under the names of the draft image's ``DraftConfig``.

    Attributes:
        hidden_size: of its states, and of the target's.
        intermediate_size: of its feed-forward network.
        heads, kv_heads, head_dim: of its attention.
    """

    hidden_size: int
    intermediate_size: int
    heads: int = _HEADS
    kv_heads: int = _KV_HEADS
    head_dim: int = _HEAD_DIM

    @classmethod
    def for_target(cls, config: Mapping[str, Any]) -> "DraftSize":
        """The draft's of a target.

        Args:
            config: the target's ``config.json``, with its language model's section on top.

        Raises:
            KeyError, ValueError: as of ``size_in``.
        """
        hidden = size_in(config, "hidden_size")
        inner = _width_of_a_token(config, hidden)
        if config.get("kv_lora_rank"):
            return cls(hidden, inner)
        heads = size_in(config, "num_attention_heads")
        kv_heads = size_in(config, "num_key_value_heads", heads)
        return cls(hidden, inner, heads, kv_heads, size_in(config, "head_dim", hidden // heads))

    def operations(self, *, states: int, depth: int, vocabulary: int, unroll_steps: int) -> int:
        """What the matrix products of a training compute for one token that counts in every unroll step.

        Two operations a multiply-add, once forward and once for each of both gradients, in each unroll step. What reads the
        target's states stands before the unroll and hands no gradient on to them.

        Args:
            states: auxiliary states of the target that it reads.
            depth: decoder layers of its own; the first one also reads a token's embedding.
            vocabulary: tokens that it proposes.
            unroll_steps: of training-time test.
        """
        hidden, queries, keys = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        read = (depth + 1) * hidden * (queries + 2 * keys)
        layers = read + depth * (queries * hidden + 3 * hidden * self.intermediate_size)
        return 6 * unroll_steps * (layers + vocabulary * hidden) + 4 * states * hidden**2


def size_in(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A size that a configuration says; the default where that is missing or null.

    Raises:
        KeyError: it is needed and not said; the argument is its name.
        ValueError: it is no positive number; the message names it.
    """
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise KeyError(name)
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r:.40}, not a positive number")
    return value


def experts_of_a_token(config: Mapping[str, Any]) -> int | None:
    """How many experts a token is sent to; None where the configuration does not say. gpt-oss's own has the second name beside the first.

    Raises:
        ValueError: as of ``size_in``.
    """
    said = (name for name in ("num_experts_per_tok", "experts_per_token") if config.get(name) is not None)
    return size_in(config, name) if (name := next(said, "")) else None


def _width_of_a_token(config: Mapping[str, Any], hidden: int) -> int:
    """Of the feed-forward network that a token meets in a layer of the target, or of all of them.

    Where all are experts (gpt-oss, MiniMax M2, Mixtral) ``intermediate_size`` is one's, and as many are met as are chosen; Llama 4 has
    another name for its layers without experts. Else it is that of the layers without.
    """
    if config.get("intermediate_size_mlp") is not None:
        return size_in(config, "intermediate_size_mlp")
    width = size_in(config, "intermediate_size")
    mixture = config.get("num_local_experts") or config.get("num_experts")
    if not mixture or config.get("moe_intermediate_size") is not None:
        return width
    return max(NARROWEST * hidden, width * (experts_of_a_token(config) or 1))
