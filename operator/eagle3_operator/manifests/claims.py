"""Claims that the operator makes for the roots, where the user gave a size and not a claim."""

from eagle3_api.spec import DeletionPolicy, Eagle3Draft, Root
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests import names


def claim(obj: Eagle3Draft, root: names.RootName) -> Manifest:
    """The PersistentVolumeClaim of a root, ``<name>-features``, for one.

    Under ``deletionPolicy: Retain`` it has no owner and outlives the object: drafts that took days are not garbage.

    Raises:
        ValueError: the root is a claim of the user's, which the operator never touches.
    """
    asked: Root = getattr(obj.spec.storage, root)
    if asked.size is None:
        raise ValueError(f"storage.{root} is the user's claim {asked.claim}, not one to be made")
    spec: Manifest = {"accessModes": [asked.access_mode], "resources": {"requests": {"storage": asked.size}}}
    if asked.storage_class_name:
        spec["storageClassName"] = asked.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": names.metadata(
            obj,
            names.claim_name(obj, root),
            labels=names.labels(obj.metadata.name),
            owned=obj.spec.deletion_policy is DeletionPolicy.DELETE,
        ),
        "spec": spec,
    }
