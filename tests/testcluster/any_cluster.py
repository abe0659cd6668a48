"""What a test may do with its cluster, whatever kind of cluster it was given."""

import functools
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testcluster import build, images, volumes
from testcluster.api import MERGE_PATCH, Api
from testcluster.guard import require_test_cluster
from testcluster.processes import run
from testcluster.wait import wait_for

GPU = "nvidia.com/gpu"


class AnyCluster(ABC):
    """A cluster for tests, reached by `kubeconfig`. As a context manager it ends with the context."""

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""

    @abstractmethod
    def load_image(self, archive: Path) -> None:
        """Puts an image on the node."""

    @abstractmethod
    def down(self) -> None:
        """Ends the cluster and removes what it left, also what an earlier run left that was killed."""

    @abstractmethod
    def volume_folder(self, name: str) -> Path:
        """An empty folder on the node for a volume for which the caller has none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # Requests

    @functools.cached_property
    def api(self) -> Api:
        return Api(self.kubeconfig)

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Any request to the API server; returns JSON (or text), raises ApiException."""
        return self.api.request(method, path, body, content_type)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Server-side apply, one object after the other."""
        for manifest in manifests:
            self.api.apply(manifest)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as the administrator and returns what it printed."""
        return run(build.kubectl(), *arguments, stdin=stdin, env={"KUBECONFIG": str(self.kubeconfig)})

    def helm(self, *arguments: str) -> str:
        """Runs helm as the administrator and returns what it printed."""
        return run(build.binary("helm"), *arguments, env={"KUBECONFIG": str(self.kubeconfig)})

    # Namespaces

    def create_namespace(self, about: str = "test") -> str:
        """Makes a namespace with a name that says what it is for, and that no other has; pods can run in it at once."""
        slug = re.sub(r"[^a-z0-9]+", "-", about.lower()).strip("-")[:40].strip("-") or "test"
        name = f"{slug}-{uuid.uuid4().hex[:6]}"
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_for(f"the service account of namespace {name}", 30, lambda: self.request("GET", account))
        return name

    def delete_namespace(self, name: str) -> None:
        """Asks for the end of a namespace and does not wait for it."""
        self.request("DELETE", f"/api/v1/namespaces/{name}")

    # The node

    @functools.cached_property
    def node_name(self) -> str:
        """The node that holds the volumes and the GPUs: the only one, or the first."""
        nodes = self.request("GET", "/api/v1/nodes")["items"]
        if not nodes:
            raise RuntimeError("the cluster has no node: it was started without one")
        return str(min(node["metadata"]["name"] for node in nodes))

    def advertise_gpus(self, count: int) -> None:
        """Makes the node offer so many nvidia.com/gpu, which are not there but are scheduled, counted and waited for."""
        path = f"/api/v1/nodes/{self.node_name}"
        offer = {GPU: str(count)}
        self.request("PATCH", f"{path}/status", {"status": {"capacity": offer, "allocatable": offer}}, MERGE_PATCH)

    def image(
        self,
        name: str,
        add: Sequence[tuple[str | Path, str]] = (),
        entrypoint: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        path: Sequence[str] = (),
    ) -> None:
        """Makes an image of files of this machine, and puts it on the node.

        `add` has (source, place in the image) pairs; `path` stands before the usual folders in PATH. A container sees
        the machine's /usr and the shared paths besides. No image is ever pulled: `name` must have a registry and a
        tag other than `latest`.
        """
        images.check_name(name)
        with images.archive(name, add, entrypoint, env or {}, path) as archive:
            self.load_image(archive)

    # Volumes

    def add_volume(
        self,
        name: str,
        capacity: str,
        folder: Path | None = None,
        access_modes: Sequence[str] = volumes.ACCESS_MODES,
    ) -> Path:
        """Makes a `local` PersistentVolume of class test-local; returns its folder (see `volumes.Volume`)."""
        place = folder or self.volume_folder(name)
        self.apply(
            volumes.storage_class(),
            volumes.persistent_volume(name, place, capacity, self.node_name, access_modes),
        )
        return place

    def claim(
        self,
        namespace: str,
        volume: str,
        name: str | None = None,
        access_modes: Sequence[str] = volumes.READ_WRITE_ONCE,
    ) -> None:
        """Makes the claim of a namespace that is bound to a volume, and waits until it is.

        A volume that was bound to a claim that is gone is free again, with what is in it.
        """
        path = f"/api/v1/persistentvolumes/{volume}"
        claim_name = name or volume

        def free() -> bool:
            found = self.request("GET", path)
            bound_to, phase = found["spec"].get("claimRef"), found["status"].get("phase")
            if bound_to and phase == "Released":
                self.request("PATCH", path, {"spec": {"claimRef": None}}, MERGE_PATCH)
            return not bound_to or (bound_to["namespace"], bound_to["name"]) == (namespace, claim_name)

        wait_for(f"volume {volume}, which another claim holds, to be free", 90, free)
        capacity = self.request("GET", path)["spec"]["capacity"]["storage"]
        self.apply(volumes.claim(namespace, volume, capacity, claim_name, access_modes))
        claim = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}"
        wait_for(
            f"claim {namespace}/{claim_name} to be bound to volume {volume}",
            30,
            lambda: self.request("GET", claim)["status"].get("phase") == "Bound",
        )


class ExternalCluster(AnyCluster):
    """A cluster that a kubeconfig names and that carries the marker. It is used, never ended."""

    def __init__(self, kubeconfig: str | os.PathLike[str]) -> None:
        require_test_cluster(Path(kubeconfig))
        self._kubeconfig = Path(kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    def load_image(self, archive: Path) -> None:
        raise RuntimeError(f"no image can be put on the nodes of {self.api.server}: only where they can pull it")

    def down(self) -> None:
        pass

    def volume_folder(self, name: str) -> Path:
        raise ValueError(f"volume {name}: say which folder of the node of {self.api.server} it is")
