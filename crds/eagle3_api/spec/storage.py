"""``storage``: where artifacts lie."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.spec.bucket import Bucket
from eagle3_api.spec.schema import rule, rules
from eagle3_api.spec.strings import Name, Quantity


class Root(Model):
    """Where artifacts lie: a claim of yours, or one that the operator makes."""

    model_config = rules(
        rule("has(self.claim) != has(self.size)", "give either claim (yours) or size (a claim made by the operator)"),
        rule(
            "!has(self.storageClassName) || has(self.size)", "storageClassName belongs to size, not to a claim of yours"
        ),
    )

    claim: Name | None = Field(None, description="A PersistentVolumeClaim of the object's namespace.")
    size: Quantity | None = Field(None, description="Create a claim of this size.")
    storage_class_name: Name | None = Field(
        None, description="StorageClass of a claim made by the operator. Default the cluster's."
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce",
        description="Access mode of a claim that the operator makes. ReadWriteOnce keeps all pods that mount it on one node.",
    )


class CachedBucket(Bucket):
    """A bucket of which a part lies on the node's disk."""

    cache: Quantity = Field(
        "100Gi",
        description="Room on the node's disk for what is in use: a part of 512 conversations while it is extracted, "
        "shards while training reads them.",
    )


class FeaturesRoot(Root):
    """Where features lie: a claim of yours, one that the operator makes, or an object store."""

    model_config = rules(
        rule(
            "[has(self.claim), has(self.size), has(self.objectStore)].filter(given, given).size() == 1",
            "give one of claim (yours), size (a claim made by the operator) and objectStore",
        ),
        rule(
            "!has(self.storageClassName) || has(self.size)",
            "storageClassName belongs to size, not to a claim of yours or an object store",
        ),
    )

    object_store: CachedBucket | None = Field(
        None,
        description="Keep features in a bucket instead of a claim. Train's checkpoints then lie with the drafts.",
    )


class Storage(Model):
    """features is huge scratch; drafts is small and outlives everything; models holds what comes from a hub."""

    features: FeaturesRoot = Field(
        description="Hidden states and resumable checkpoints. Emptied when training has finished; a claim that the "
        "operator made is deleted then. With draft.checkpoint no claim is made or needed."
    )
    drafts: Root = Field(description="Trained and converted drafts, reports, prompts and measurements.")
    models: Root | None = Field(
        None,
        description="What is fetched from a hub. Servers read the target from it, so it must be where they run.",
    )
