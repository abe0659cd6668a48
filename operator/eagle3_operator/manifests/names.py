"""Names, labels and annotations of everything that the operator makes."""

from collections.abc import Mapping
from typing import Literal

from eagle3_api import API_VERSION, GROUP, KIND
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec

FIELD_MANAGER = "eagle3-operator"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
NAME_LABEL = f"{GROUP}/name"
STAGE_LABEL = f"{GROUP}/stage"
REVISION_LABEL = f"{GROUP}/revision"

#: The full key of a Job's stage or of a Deployment's revision; names carry its first characters only.
KEY_ANNOTATION = f"{GROUP}/key"
#: ``jobs.template_hash`` of a Job.
TEMPLATE_ANNOTATION = f"{GROUP}/template"
#: What a revision is (JSON), on its Deployment: a lost status is rebuilt from it.
RECORD_ANNOTATION = f"{GROUP}/record"
#: Steps that a server may choose from (JSON), on its pods.
ADAPTIVE_ANNOTATION = f"{GROUP}/adaptive"

#: Of pods that mount a claim which only one node can have at a time: they want to be where the others are.
TOGETHER_LABEL = f"{GROUP}/together"

#: Kueue's: the LocalQueue that a Job or a Deployment, and its pods, wait in.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

#: Where JobSets are served, if at all.
JOBSET_API = "jobset.x-k8s.io/v1alpha2"

#: Characters of a key in the name of a Job, and at least in an approval.
KEY_CHARACTERS = 8

RootName = Literal["features", "drafts", "models"]


def labels(
    name: str, *, stage: str | None = None, revision: int | None = None, queue: str | None = None
) -> dict[str, str]:
    """The labels of a child and of its pods.

    Args:
        name: of the object.
        stage: of a Job.
        revision: of a Deployment, of its Service, or of a Job that probes it.
        queue: of a Job or a Deployment that waits for quota.
    """
    made = {MANAGED_BY_LABEL: FIELD_MANAGER, NAME_LABEL: name}
    if stage is not None:
        made[STAGE_LABEL] = str(stage)
    if revision is not None:
        made[REVISION_LABEL] = revision_label(revision)
    if queue is not None:
        made[QUEUE_LABEL] = queue
    return made


def together_labels(name: str) -> dict[str, str]:
    """The labels by which the pods of an object that have to be on one node are known."""
    return {NAME_LABEL: name, TOGETHER_LABEL: "true"}


def revision_label(number: int) -> str:
    """``r<n>``, as labels, metrics and messages say it."""
    return f"r{number}"


def job_name(name: str, stage: str, key: str) -> str:
    """``<name>-<stage>-<key8>``: one Job for one key."""
    return f"{name}-{stage}-{key[:KEY_CHARACTERS]}"


def revision_name(name: str, number: int) -> str:
    """``<name>-r<n>``: a revision's Deployment and its own Service."""
    return f"{name}-{revision_label(number)}"


def budget_name(name: str) -> str:
    """``<name>-servers``: the PodDisruptionBudget of the serving revision's pods."""
    return f"{name}-servers"


def claim_name(obj: Eagle3Draft, root: RootName) -> str:
    """The claim behind one of the roots: the user's, or the one that the operator makes."""
    return getattr(obj.spec.storage, root).claim or f"{obj.metadata.name}-{root}"


def roots(spec: Eagle3DraftSpec) -> tuple[RootName, ...]:
    """The roots that an object has on claims: features may lie in an object store instead."""
    features: tuple[RootName, ...] = ("features",) if spec.storage.features.object_store is None else ()
    models: tuple[RootName, ...] = ("models",) if spec.storage.models is not None else ()
    return (*features, "drafts", *models)


def owner_reference(obj: Eagle3Draft) -> dict[str, object]:
    """What makes the object the controller of a child: it is deleted with the object, and nobody else adopts it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": obj.metadata.name,
        "uid": obj.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(
    obj: Eagle3Draft,
    name: str,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    owned: bool = True,
) -> dict[str, object]:
    """The metadata of a child, in the object's namespace."""
    made: dict[str, object] = {"name": name, "namespace": obj.metadata.namespace, "labels": dict(labels)}
    if annotations:
        made["annotations"] = dict(annotations)
    if owned:
        made["ownerReferences"] = [owner_reference(obj)]
    return made
