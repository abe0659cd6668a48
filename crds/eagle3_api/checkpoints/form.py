"""The one form that every published draft is brought into: named fields, in this product's conventions.

Readers make it from a folder, rules look at it, and Convert's writer makes of it what SGLang loads. Nothing is invented on the
way: what a checkpoint does not say is None here, and a rule says what that means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from eagle3_api.checkpoints.files import StoredTensor


class Notation(StrEnum):
    """How a family writes down the layers that its draft reads."""

    OUTPUT = "output"  # 0-based decoder layers whose output is taken: this product's own
    INPUT = "input"  # layers whose input is taken (vLLM): one more
    SERVER = "server"  # as the serving SGLang reads them, which depends on the target and on the version


class MapKind(StrEnum):
    """How a family writes down which tokens of the target its draft knows."""

    OFFSETS = "offsets"  # target id minus draft id, as SGLang reads it
    ABSOLUTE = "absolute"  # target ids
    EITHER = "either"  # seen in both spellings: the values tell


@dataclass(frozen=True)
class Layers:
    """Which of the target's layers a draft reads.

    Attributes:
        ids: as written; None where the checkpoint does not say.
        notation: what they mean.
        field: where they stand.
        problem: what is wrong with what stands there.
    """

    ids: tuple[int, ...] | None
    notation: Notation
    field: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """Which of the target's tokens a draft knows.

    Attributes:
        ids: the map, (draft vocabulary,); None where the draft knows them all.
        kind: how it is spelled.
        members: (target vocabulary,), true where the draft knows a token; None where the checkpoint has none.
    """

    ids: StoredTensor | None = None
    kind: MapKind = MapKind.OFFSETS
    members: StoredTensor | None = None


#: Sizes of latent attention, as configurations name them.
LATENT_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention, as configurations name them; None where it does not say."""

    q_lora_rank: int | None
    kv_lora_rank: int | None
    qk_nope_head_dim: int | None
    qk_rope_head_dim: int | None
    v_head_dim: int | None
    rope_interleave: bool = True


@dataclass(frozen=True)
class Form:
    """A draft.

    Attributes:
        family: whose layout it has, for people.
        path: its folder.
        hidden_size, intermediate_size, heads, kv_heads, head_dim: of its decoder layer.
        target_hidden_size: numbers in one auxiliary hidden state.
        vocabulary_size: the target's, draft_vocabulary_size: its own.
        max_position_embeddings: positions that its configuration allows.
        rms_norm_eps, activation: of its layer.
        rope: in Transformers 5's spelling (``rope_parameters``), ``rope_theta`` included.
        layers: of the target.
        vocabulary: of the draft.
        tensors: by SGLang's names (``fc.weight``, ``midlayer.*``, ``norm.weight``, ``lm_head.weight``, ``embed_tokens.weight``;
            EAGLE-3.1's ``input_norm.weight`` and ``fc_norm.<i>.weight``; of deeper layers ``layers.<n>.*``, n from 1).
        extra: names in the checkpoint that are none of a draft's.
        depth: decoder layers.
        tied: the configuration ties the head to the embedding.
        shares_head: without a head of its own it is meant to use the target's (or the embedding, if tied).
        fc_norm, norm_before_fc, norm_output: EAGLE-3.1's: a norm for each auxiliary state, one for all of them side by side,
            and the normalised state fed back.
        fc_bias, output_bias: fc, and attention's output projection, have a bias.
        latent: its attention is latent (DeepSeek's); head_dim is then that of queries and keys.
        embedding_trained: its training moved the embedding too.
        window: positions that its attention was trained to see; None where all.
        unsupported: why this kind of draft cannot be served; empty where it can.
        invalid: what config.json says that nothing can be made of.
        doubts: what tools write in one meaning and read in another, so that only its trainer knows.
        mended: what conversion will write otherwise than it stands here.
    """

    family: str
    path: Path
    hidden_size: int | None
    intermediate_size: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    target_hidden_size: int | None
    vocabulary_size: int | None
    draft_vocabulary_size: int | None
    max_position_embeddings: int | None
    rms_norm_eps: float
    activation: str
    rope: Mapping[str, Any]
    layers: Layers
    vocabulary: Vocabulary
    tensors: Mapping[str, StoredTensor]
    extra: tuple[str, ...] = ()
    depth: int = 1
    tied: bool = False
    shares_head: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    fc_bias: bool = False
    output_bias: bool = False
    latent: Latent | None = None
    embedding_trained: bool = False
    window: int | None = None
    unsupported: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    mended: tuple[str, ...] = field(default=())

    @property
    def own_embedding(self) -> bool:
        """Whether the server embeds with the draft's own table: only where its states are not as wide as the target's."""
        return self.hidden_size != self.target_hidden_size
