"""A `kind` cluster, where a docker engine exists.

Not run by this repository's own continuous integration, whose machines have no docker engine: it is kept as small as
it can be, and differs from the embedded cluster in what containers see of the machine (nothing but what an image
holds), so images for it must be whole.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from testcluster import guard
from testcluster.any_cluster import AnyCluster
from testcluster.processes import run
from testcluster.volumes import DEFAULT_VOLUMES, Volume

FOLDERS = "/var/eagle3-test"  # on kind's node


def engine_works() -> bool:
    """Whether there is a docker engine that answers."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


class KindCluster(AnyCluster):
    """One kind cluster, named after its slot; its kubeconfig lies in `folder`."""

    def __init__(self, folder: Path, slot: int = 0) -> None:
        self._folder = folder
        self._name = f"eagle3-test-{slot}"

    @property
    def kubeconfig(self) -> Path:
        return self._folder / "admin.kubeconfig"

    def up(
        self, *, gpus: int = 0, share: Sequence[str | Path] = (), volumes: Mapping[str, Volume] = DEFAULT_VOLUMES
    ) -> None:
        self.down()
        self._folder.mkdir(parents=True)
        given = [volume.folder for volume in volumes.values() if volume.folder]
        mounts = [{"hostPath": str(path), "containerPath": str(path)} for path in (*share, *given)]
        config = {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": "control-plane", "extraMounts": mounts}],
        }
        options = ("--name", self._name, "--kubeconfig", self.kubeconfig, "--config", "-", "--wait", "180s")
        run("kind", "create", "cluster", *options, stdin=yaml.safe_dump(config))
        self.apply(guard.marker())
        self.advertise_gpus(gpus)
        for name, volume in volumes.items():
            self.add_volume(name, volume.capacity, volume.folder, volume.access_modes)

    def down(self) -> None:
        self.__dict__.pop("api", None)
        run("kind", "delete", "cluster", "--name", self._name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def load_image(self, archive: Path) -> None:
        run("kind", "load", "image-archive", "--name", self._name, archive)

    def volume_folder(self, name: str) -> Path:
        folder = f"{FOLDERS}/{name}"
        run("docker", "exec", f"{self._name}-control-plane", "mkdir", "-p", folder)
        return Path(folder)
