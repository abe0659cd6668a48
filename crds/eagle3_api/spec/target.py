"""``target``: the model that is served."""

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.spec.schema import rule, rules
from eagle3_api.spec.strings import HubRevision, PathOrRepository


class Target(Model):
    """The target model: the large model that is served."""

    model_config = rules(
        rule(
            "!has(self.revision) || !self.model.startsWith('/')",
            "target.revision belongs to a repository of a hub: a path on a volume has no revision",
        ),
    )

    model: PathOrRepository = Field(
        description="Folder of the target's checkpoint (config.json, safetensors, tokenizer) on a volume, or a repository of "
        "a hub (organisation/name), which is fetched once into storage.models.",
    )
    revision: HubRevision | None = Field(
        None,
        description="Branch, tag or commit of the repository; if not set, its default branch. It is resolved once; to "
        "resolve it again, retry fetch.",
    )
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs that one server spreads the target over.")
    trust_remote_code: bool = Field(False, description="Let the target's own Python code run (Kimi-K2.5 needs it).")

    @property
    def repository(self) -> str | None:
        """The hub's repository, or None where the target is a path."""
        return None if self.model.startswith("/") else self.model
