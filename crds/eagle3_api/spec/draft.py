"""``draft``: what the draft model is."""

from typing import Annotated, Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.spec.schema import rule, rules
from eagle3_api.spec.strings import HubRevision, Path, PathOrRepositoryOrAddress

Variant = Literal["EAGLE-3", "EAGLE-3.1"]
Attention = Literal["Heads", "Latent"]


class Draft(Model):
    """The draft model: a small decoder that reads the target's hidden states."""

    model_config = rules(
        rule(
            "!has(self.checkpoint) || !has(self.vocabularySize)",
            "draft.checkpoint brings its own vocabulary: leave vocabularySize out",
        ),
        rule(
            "!has(self.checkpoint) || (self.depth == 1 && self.variant == 'EAGLE-3' && self.attention == 'Heads')",
            "draft.checkpoint brings its own architecture: leave depth, variant and attention out",
        ),
        rule(
            "!(has(self.checkpoint) && has(self.initFrom))",
            "draft.checkpoint is served as it is, draft.initFrom is trained further: give one of the two",
        ),
        rule(
            "!has(self.revision) || (has(self.checkpoint) && !self.checkpoint.startsWith('/') && "
            "!self.checkpoint.startsWith('s3://'))",
            "draft.revision belongs to a repository of a hub, which draft.checkpoint must name: a path or an address "
            "has no revision",
        ),
        rule(
            "!has(self.checkpoint) || !self.checkpoint.startsWith('s3://') || "
            "self.checkpoint.matches('^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]/([^/]+/)*sha256-[0-9a-f]{64}$')",
            "draft.checkpoint: an address in an object store is one that publish.objectStore made, s3://BUCKET/PREFIX/sha256-..., as in "
            "status.artifact.stored; put other folders on a volume",
        ),
        rule(
            "!has(self.initFrom) || !has(self.vocabularySize)",
            "draft.initFrom brings its own vocabulary, in the order of its head's rows: leave vocabularySize out",
        ),
        rule(
            "!has(self.initFrom) || (self.depth == 1 && self.variant == 'EAGLE-3' && self.attention == 'Heads')",
            "draft.initFrom brings its own architecture: leave depth, variant and attention out",
        ),
        rule(
            "self.attention != 'Latent' || self.depth == 1",
            "SGLang serves drafts with latent attention of one layer only: set draft.depth to 1, or draft.attention to Heads",
        ),
    )

    vocabulary_size: int | None = Field(
        None,
        ge=64,
        le=1_048_576,
        multiple_of=64,
        description="Number of tokens that the draft can propose: the most frequent ones. Default 32000, at most the target's.",
    )
    auxiliary_layers: list[Annotated[int, Field(ge=-1, le=1023)]] | None = Field(
        None,
        min_length=1,
        max_length=8,
        description="Decoder layers whose output the draft reads, 0-based; -1 is the embedding. Default 1, n/2-1, n-4.",
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "self.isSorted() && self.all(x, self.exists_one(y, x == y))",
                    "auxiliaryLayers must be strictly increasing: SGLang captures in layer order",
                )
            ]
        },
    )
    depth: int = Field(
        1,
        ge=1,
        le=8,
        description="Decoder layers of the draft. EAGLE-3 has one. Each further layer raises the accept length a "
        "little and slows down every draft step; the probe weighs the two.",
    )
    variant: Variant = Field(
        "EAGLE-3",
        description="EAGLE-3.1 puts a norm on each auxiliary state and feeds the normed state back, which is meant for "
        "longer contexts and more draft steps.",
    )
    attention: Attention = Field(
        "Heads",
        description="Heads are Llama's. Latent is the target's own, where that is DeepSeek's or Kimi's: its keys and values take "
        "a tenth of the memory, and it runs on the target's attention backend.",
    )
    init_from: Path | None = Field(
        None,
        description="Begin training with an existing draft of this target, a folder on a volume, in any layout that "
        "draft.checkpoint takes. Its architecture, its vocabulary and, unless auxiliaryLayers says otherwise, its layers are kept.",
    )
    checkpoint: PathOrRepositoryOrAddress | None = Field(
        None,
        description="Adopt a draft trained elsewhere: a folder on a volume; or a repository of a hub (organisation/name), or what another "
        "object published in a bucket (its status.artifact.stored), which is fetched once into storage.models. Extraction and training "
        "are skipped; the target is run for minutes, on extract.gpus, to ask the draft about it. Its own layers are taken unless "
        "auxiliaryLayers says otherwise.",
    )
    revision: HubRevision | None = Field(
        None,
        description="Branch, tag or commit of the checkpoint's repository; if not set, its default branch. It is "
        "resolved once; to resolve it again, retry fetch.",
    )

    @property
    def repository(self) -> str | None:
        """The hub's repository of an adopted draft, or None where it is a path or none is adopted."""
        return None if self.checkpoint is None or self.checkpoint.startswith(("/", "s3://")) else self.checkpoint

    @property
    def address(self) -> str | None:
        """Of an adopted draft in an object store."""
        return self.checkpoint if self.checkpoint is not None and self.checkpoint.startswith("s3://") else None
