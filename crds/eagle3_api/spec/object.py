"""The whole object: its sections, and the rules between them."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.data import Data
from eagle3_api.spec.draft import Draft
from eagle3_api.spec.extract import Extract
from eagle3_api.spec.placement import Placement
from eagle3_api.spec.probe import Probe
from eagle3_api.spec.publish import Publish
from eagle3_api.spec.schema import Says, rule, rules, section
from eagle3_api.spec.serve import Serve
from eagle3_api.spec.storage import Storage
from eagle3_api.spec.strings import Text
from eagle3_api.spec.target import Target
from eagle3_api.spec.train import Train
from eagle3_api.spec.watch import Watch

#: Also the value of a label.
QueueName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


#: An image whose tag begins with SGLang's version, pinned by its digest or not: what ``sglang.Version.parse`` can read.
VERSIONED_IMAGE = "^[^@]*:v?[0-9]+[.][0-9]+[.][0-9]+[^:@]*(@.*)?$"


class DeletionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class AutoApply(StrEnum):
    WHEN_NO_OUTAGE = "WhenNoOutage"
    ALWAYS = "Always"
    NEVER = "Never"


class Eagle3DraftSpec(Model):
    """Which target, which data, which node, which bar; the operator does the rest."""

    model_config = rules(
        rule(
            "has(self.data) || (has(self.draft) && has(self.draft.checkpoint))",
            "give data to train a draft, or draft.checkpoint to adopt one",
        ),
        rule(
            "has(self.storage.models) || "
            "(self.target.model.startsWith('/') && (!has(self.data) || !has(self.data.dataset)) && "
            "(!has(self.draft) || !has(self.draft.checkpoint) || self.draft.checkpoint.startsWith('/')))",
            "storage.models: target.model, draft.checkpoint or data.dataset is a repository of a hub, or lies in a bucket (a path begins "
            "with /); say where what is fetched is kept",
        ),
        rule("has(self.serve) || !has(self.watch)", "watch judges a serving revision: it needs serve"),
        rule(
            "!has(self.serve) || !has(self.serve.gpus) || self.serve.gpus == 0 || "
            "self.serve.gpus >= self.target.tensorParallelSize",
            "serve.gpus: fewer than target.tensorParallelSize; SGLang would not start",
        ),
        rule(
            "!has(self.serve) || self.probe.concurrency <= self.serve.maxRunningRequests && "
            "(!has(self.probe.loads) || self.probe.loads.all(load, load <= self.serve.maxRunningRequests))",
            "probe: a server does not decode as many requests together as probe.concurrency or probe.loads says, and would be measured at "
            "fewer; raise serve.maxRunningRequests (default 48)",
        ),
        rule(
            "!has(self.publish) || !has(self.publish.hook) || !has(self.publish.hook.volumes) || "
            "self.publish.hook.volumes.all(name, has(self.placement) && has(self.placement.volumes) && "
            "self.placement.volumes.exists(volume, volume.name == name))",
            "publish.hook.volumes: each must be the name of a volume in placement.volumes",
        ),
        rule(
            f"has(self.sglangVersion) || self.image.matches('{VERSIONED_IMAGE}')",
            "image: SGLang's version cannot be read from the tag; set sglangVersion (0.5.23)",
        ),
        rule(
            "!has(self.train) || !has(self.train.trainer) || !has(self.draft) || !has(self.draft.initFrom)",
            "train.trainer chooses its own initial weights: leave draft.initFrom out and give the path in "
            "trainer.arguments",
        ),
        rule(
            "!has(self.train) || self.train.nodes == 1 || "
            "(!has(self.storage.features.size) || self.storage.features.accessMode == 'ReadWriteMany') && "
            "(!has(self.storage.drafts.size) || self.storage.drafts.accessMode == 'ReadWriteMany')",
            "train.nodes: pods on several nodes write to storage.features and storage.drafts; set accessMode of both to "
            "ReadWriteMany, or nodes to 1",
        ),
        rule(
            "has(self.serve) || !has(oldSelf.serve)",
            "serve cannot be removed once it is set: running servers would stop unannounced. Set serve.replicas to 0, or delete the object",
        ),
    )

    image: Text = Field(
        description="The SGLang image that GPU Jobs and servers run in, so that extraction cannot drift from serving."
    )
    sglang_version: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$"),
            Says("a release of SGLang, without v: 0.5.23"),
        ]
        | None
    ) = Field(None, description="SGLang's version, if the image's tag does not contain it.")
    target: Target
    data: Data | None = None
    draft: Draft = section(Draft)
    extract: Extract = section(Extract)
    train: Train = section(Train)
    serve: Serve | None = Field(
        None,
        description="How the model is served: one SGLang Deployment per revision behind one Service. Leave it out to "
        "train only: status.artifact names the result.",
    )
    probe: Probe = section(Probe)
    watch: Watch | None = Field(
        None,
        description="How the serving revision is judged by its servers' counters. It is always watched; fields that "
        "are left out have their defaults.",
    )
    publish: Publish | None = Field(
        None,
        description="Push the converted draft to a registry or a bucket, with its provenance beside it. Rollouts do "
        "not wait for it.",
    )
    storage: Storage
    placement: Placement = section(
        Placement, "Placement of all pods; a field that a stage's own placement sets replaces the one here."
    )
    queue_name: QueueName | None = Field(
        None,
        description="A LocalQueue of Kueue in the object's namespace: Extract, Train and the servers wait there for quota. "
        "Running Jobs and servers stay in the queue they were made for.",
    )
    suspend: bool = Field(False, description="Start nothing new and suspend running Jobs. Servers keep serving.")
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Delete removes the claims that the operator made together with the object; yours always stay.",
    )
    revision_history_limit: int = Field(3, ge=1, le=20, description="Retired revisions that are kept, scaled to 0.")
    auto_apply: AutoApply = Field(
        AutoApply.WHEN_NO_OUTAGE,
        description="Once the object has been Ready: whether a rollout or a training that leaves the Service without "
        "a pod for a while starts by itself. Rollbacks never wait.",
    )

    @property
    def watched(self) -> Watch | None:
        """How what serves is watched; None for an object that does not serve."""
        return (self.watch or Watch()) if self.serve else None

    @property
    def fetches(self) -> bool:
        """Whether anything comes from a hub or a bucket."""
        named = (
            self.target.repository,
            self.draft.repository,
            self.draft.address,
            self.data.dataset if self.data is not None else None,
        )
        return any(source is not None for source in named)


class Metadata(Model):
    """What the operator reads of an object's metadata."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    annotations: dict[str, str] = Field(default_factory=dict)


class Eagle3Draft(Model):
    """The whole object, as read from the API server."""

    metadata: Metadata
    spec: Eagle3DraftSpec
    status: dict[str, Any] = Field(default_factory=dict)
