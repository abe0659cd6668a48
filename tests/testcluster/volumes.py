"""Static `local` PersistentVolumes: folders of the node, and the claims that are bound to them.

There is no provisioner. Each volume lies on the node (node affinity), and is bound to the claim that names it. A claim
never reads or writes beyond its folder, but nothing holds it to its capacity either: that is only a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORAGE_CLASS = "test-local"
READ_WRITE_ONCE = ("ReadWriteOnce",)
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany")


@dataclass(frozen=True)
class Volume:
    """A folder of this machine as a volume; without `folder` it is an empty one of the cluster's own.

    A pod that mounts a volume writable with an fsGroup has the group of every file below `folder` changed by the
    kubelet. What belongs to somebody is mounted read-only, or is a copy.
    """

    capacity: str
    folder: Path | None = None
    access_modes: Sequence[str] = ACCESS_MODES


DEFAULT_VOLUMES = {
    "models": Volume("10Gi"),
    "data": Volume("1Gi"),
    "features": Volume("2Gi"),
    "drafts": Volume("1Gi"),
}


def storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Retain",
    }


def persistent_volume(
    name: str, folder: Path, capacity: str, node: str, access_modes: Sequence[str] = ACCESS_MODES
) -> dict[str, Any]:
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": capacity},
            "accessModes": list(access_modes),
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "volumeMode": "Filesystem",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def claim(
    namespace: str, volume: str, capacity: str, name: str | None = None, access_modes: Sequence[str] = READ_WRITE_ONCE
) -> dict[str, Any]:
    """A claim that is bound to the volume named, and to no other. It has the volume's name if not told another."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name or volume, "namespace": namespace},
        "spec": {
            "accessModes": list(access_modes),
            "storageClassName": STORAGE_CLASS,
            "volumeName": volume,
            "resources": {"requests": {"storage": capacity}},
        },
    }
