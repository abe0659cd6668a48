"""How fast a target runs and its draft is trained, told by their sizes alone: an estimate before anything was measured.

A forward takes two operations a parameter that a token meets, one to multiply and one to add. So a prefill, which has thousands of
tokens before it, is bounded by what the GPUs compute. Answers are decoded a token of each request at a time, and each of these steps
reads all weights as well. Attention's own products and the traffic between GPUs are in the shares that are assumed.

A draft's training is bounded by what the GPUs compute too; the share of it was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_api.draft_size import experts_of_a_token

#: What a prefill makes of the operations that a GPU has: an assumption, for a large target. One of 135 million parameters made a
#: twentieth of an H200's (docs/benchmarks/extraction.md), because to launch its kernels takes longer than they do.
COMPUTED_SHARE = 0.3

#: What decoding makes of the rate at which a GPU reads its memory; an assumption too.
READ_SHARE = 0.5

#: What a training in bf16 makes of the operations that a GPU has: measured on an H200, where it was 60 % at the shape of
#: Llama-3.1-8B's draft and 63 % at Kimi-K2.5's (docs/benchmarks/training.md). A small draft's is less: half at Llama-3.2-1B's.
TRAINED_SHARE = 0.6

#: How many times the tokens a training in FP8 has: measured there too, at both shapes.
FP8_GAIN = 1.27

#: Requests that are decoded together while the target answers.
TOGETHER = 512

_TYPE_BITS = 16

#: Of a weight and its share of a scale, by what ``quantization_config`` calls the way: FP8's blocks are large, MXFP4 has a scale of 8
#: bits for 32 weights, NVFP4 one for 16.
_BITS_OF = {"fp8": 8.0, "fbgemm_fp8": 8.0, "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16}


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet.

    Attributes:
        operations: a second, in bf16 without sparsity.
        read: bytes of its memory a second.
    """

    operations: float
    read: float


#: NVIDIA's data sheet of the H200 SXM.
H200 = Gpu(989e12, 4.8e12)


@dataclass(frozen=True)
class Size:
    """How large a target is.

    Attributes:
        active: parameters that one token meets: of a mixture of experts those of the chosen ones; the head, and no embedding.
        weight_bytes: of all its weights.
    """

    active: float
    weight_bytes: float


def prefill_rate(size: Size, gpus: int, gpu: Gpu = H200) -> float:
    """Tokens/s of conversations that are computed whole."""
    return gpus * gpu.operations * COMPUTED_SHARE / (2 * size.active)


def answer_rate(size: Size, gpus: int, gpu: Gpu = H200) -> float:
    """Tokens/s of answers, all requests together."""
    reading = size.weight_bytes / (gpus * gpu.read * READ_SHARE)
    return TOGETHER / (reading + TOGETHER / prefill_rate(size, gpus, gpu))


def training_rate(operations: float, gpus: int, *, fp8: bool = False, gpu: Gpu = H200) -> float:
    """Tokens/s of a training in which every token counts, all GPUs together.

    Two GPUs of one host were measured to have 1.98 times the tokens of one; more are taken to go on like that.

    Args:
        operations: for one token (``DraftSize.operations``).
        gpus: all of them.
        fp8: its products are in FP8 (``train.precision``).
        gpu: of which kind.
    """
    return gpus * gpu.operations * TRAINED_SHARE * (FP8_GAIN if fp8 else 1.0) / operations


def extraction_seconds(tokens: float, size: Size, *, gpus: int, pods: int, answers: bool, gpu: Gpu = H200) -> float:
    """Seconds that an extraction takes.

    Args:
        tokens: of all conversations.
        size: of the target.
        gpus: of one pod.
        pods: that share the work.
        answers: the target answers itself first: all tokens are taken for its answers', as nobody knows how many of them will be.
        gpu: of which kind.
    """
    seconds = tokens / prefill_rate(size, gpus, gpu) + (tokens / answer_rate(size, gpus, gpu) if answers else 0.0)
    return seconds / pods


def size_of(config: Mapping[str, Any]) -> Size:
    """The size of a target by its ``config.json``, with its language model's section on top.

    Raises:
        KeyError, TypeError, ValueError: a size that is needed is not there or is not a number, or it does not say how many bits a
            weight has.
    """
    active, every = _parameters(config)
    return Size(active, every * _bits(config.get("quantization_config") or {}) / 8)


def active_parameters(config: Mapping[str, Any]) -> int:
    """``Size.active`` alone, whatever the bits of a weight.

    Raises:
        KeyError, TypeError, ValueError: a size that is needed is not there or is not a number.
    """
    return _parameters(config)[0]


def _parameters(config: Mapping[str, Any]) -> tuple[int, int]:
    """Those that one token meets, and all."""
    hidden, layers, vocabulary = (int(config[name]) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    experts = int(_first(config, "n_routed_experts", "num_experts", "num_local_experts") or 0)
    dense = layers if not experts else min(layers, int(config.get("first_k_dense_replace") or 0))
    a_block = 3 * hidden * int(config["intermediate_size"])  # gate, up and down
    an_expert = 3 * hidden * int(_first(config, "moe_intermediate_size", "intermediate_size") or 0)
    shared = int(config.get("n_shared_experts") or 0)
    chosen = (experts_of_a_token(config) or 0) if experts else 0
    always = layers * _attention(config, hidden) + dense * a_block + (layers - dense) * shared * an_expert
    head = hidden * vocabulary
    every = always + (layers - dense) * experts * an_expert
    every += head if config.get("tie_word_embeddings") else 2 * head
    active = always + (layers - dense) * chosen * an_expert + head
    return active, every


def _attention(config: Mapping[str, Any], hidden: int) -> int:
    heads = int(config["num_attention_heads"])
    if config.get("kv_lora_rank"):  # latent attention
        rank, rope, plain, value = (
            int(config[name]) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
        queries = heads * (plain + rope)
        narrow = int(config.get("q_lora_rank") or 0)
        asking = narrow * (hidden + queries) if narrow else hidden * queries
        return asking + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden
    wide = int(config.get("head_dim") or hidden // heads)
    return 2 * hidden * wide * (heads + int(config.get("num_key_value_heads") or heads))


def _bits(quantization: Mapping[str, Any]) -> float:
    """Of a weight; of what is written in sections, that of the first one."""
    if not quantization:
        return _TYPE_BITS
    # ModelOpt's method is its own name, and the way is its algorithm
    for way in (quantization.get("quant_algo"), quantization.get("quant_method")):
        if (bits := _BITS_OF.get(str(way).lower())) is not None:
            return bits
    for section in (quantization, *(quantization.get("config_groups") or {}).values()):
        if bits := section.get("bits") or (section.get("weights") or {}).get("num_bits"):
            return float(bits)
    raise ValueError("quantization_config does not say how many bits a weight has")


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name)), None)
