"""The embedded cluster: this machine's own Kubernetes, from nothing to ready and back to nothing."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testcluster import build, certificates, cgroups, controlplane, guard, images, node, processes, slots, system
from testcluster.any_cluster import AnyCluster
from testcluster.layout import NODE_NAME, PAUSE_IMAGE, Layout
from testcluster.processes import Processes
from testcluster.volumes import DEFAULT_VOLUMES, Volume, storage_class
from testcluster.wait import wait_for

ATTEMPTS = 3
SIGN = "testcluster.json"  # in its folder: the folder is a cluster's, and of which slot


def prepare(*, node: bool) -> dict[str, Path]:
    """Installs and builds what a cluster is made of, where it is missing; returns the path of each program built."""
    system.require(system.CONTROL_PLANE)
    if node:
        if os.geteuid() != 0:
            raise RuntimeError("a node needs root: control groups, namespaces and mounts")
        system.require(system.NODE)
    return {name: build.binary(name) for name in (("pause", "dns", "kube") if node else ("kube",))}


def end_abandoned(folders: Iterable[Path]) -> None:
    """Removes what is left of clusters whose processes are gone, and so is the process that started them."""
    for folder in folders:
        # not a cluster's, or another process makes or removes it just now
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            started_by = json.loads((folder / SIGN).read_text())["started_by"]
            if not Path(f"/proc/{started_by}").exists() and not list(processes.marked(folder)):
                Cluster(folder).down()


class Cluster(AnyCluster):
    """A cluster whose state lies in `folder`.

    Without a `folder` it is the one of the slot (default 0), the same in every process: so `down` of a new Cluster
    ends what an earlier process started. With a `folder` and no `slot`, `up` takes a slot that is free.

    A cluster outlives the process that started it, unless it is `tied` to it: then it ends when the thread that
    called `up` ends, however that happens, and leaves only its folder and empty control groups.
    """

    def __init__(self, folder: Path | None = None, slot: int | None = None, *, tied: bool = False) -> None:
        if folder is None:
            slot = slot or 0
            folder = Path(f"/tmp/eagle3-testcluster-{slot}")
        self._folder = folder.resolve()
        self._slot = slot
        self._layout = Layout(self._folder, self._sign().get("slot", 0) if slot is None else slot)
        self._processes = Processes(self._folder, self._layout.logs, tied=tied)

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def kubeconfig(self) -> Path:
        return self._layout.kubeconfig("admin")

    # Up

    def up(
        self,
        *,
        node: bool = False,
        gpus: int = 0,
        share: Sequence[str | Path] = (),
        volumes: Mapping[str, Volume] = DEFAULT_VOLUMES,
    ) -> None:
        """Starts the cluster and returns when it is ready; one that runs in the same folder is ended first.

        With `node` (root): pods run, see each path of `share` read-only, and find `gpus` nvidia.com/gpu and the
        `volumes`. If it fails, its logs stay in the folder until the next `up` or `down`.
        """
        if not node and (gpus or share):
            raise ValueError("gpus and share are a node's, and no node is asked for")
        programs = prepare(node=node)
        paths = [str(Path(path).resolve(strict=True)) for path in share]
        for attempt in range(1, ATTEMPTS + 1):
            self.down()
            try:
                if node:
                    self._boot_with_node(programs, paths)
                else:
                    self._boot(programs)
                break
            except BaseException as error:
                self._processes.end()
                error.add_note(f"{self._layout.logs} has the logs, which end so:\n{self._processes.log_ends()}")
                # A port that was free when it was chosen may be another's when it is used.
                if attempt == ATTEMPTS or "address already in use" not in str(error):
                    raise
        self.apply(guard.marker())
        if node:
            self.advertise_gpus(gpus)
            self.apply(storage_class())
            for name, volume in volumes.items():
                self.add_volume(name, volume.capacity, volume.folder, volume.access_modes)

    def _boot(self, programs: Mapping[str, Path]) -> None:
        address, ports = "127.0.0.1", controlplane.Ports.free()
        self._make_folder(address, ports, with_node=False)
        controlplane.start(self._processes, programs["kube"], self._layout, ports, address, with_node=False)

    def _boot_with_node(self, programs: Mapping[str, Path], share: Sequence[str]) -> None:
        slot, holder = slots.claim_free() if self._slot is None else (self._slot, slots.claim(self._slot))
        with contextlib.closing(holder):
            self._layout = layout = Layout(self._folder, slot)
            node.remove_traces(layout)
            address, ports = layout.host_ip, controlplane.Ports.free()
            self._make_folder(address, ports, with_node=True)
            node.start(self._processes, programs["kube"], programs["dns"], layout, share, holder.fileno())
        controlplane.start(self._processes, programs["kube"], layout, ports, address, with_node=True)
        node.register(layout)
        self._wait("containerd", lambda: node.containerd_listens(layout))
        self.image(PAUSE_IMAGE, [(programs["pause"], "/pause")], ["/pause"])
        self._wait("the node to be ready", self._node_is_ready)

    def _make_folder(self, address: str, ports: controlplane.Ports, *, with_node: bool) -> None:
        layout = self._layout
        self._folder.mkdir(parents=True, exist_ok=True)
        sign = {"slot": layout.slot, "node": with_node, "started_by": os.getpid()}
        (self._folder / SIGN).write_text(json.dumps(sign))  # before all else: without it nothing here is removed
        layout.logs.mkdir()
        certificates.issue(layout, address, f"https://{address}:{ports.apiserver}")

    def _wait(self, what: str, check: Callable[[], bool]) -> None:
        def check_all() -> bool:
            self._processes.check()
            return check()

        wait_for(what, 120, check_all)

    def _node_is_ready(self) -> bool:
        conditions = self.request("GET", f"/api/v1/nodes/{NODE_NAME}")["status"].get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    # Down

    def down(self) -> None:
        self.__dict__.pop("api", None)  # the next one has another port and other credentials
        self._processes.end()
        if os.geteuid() == 0:
            # Who can claim the slot knows that no other cluster uses it.
            with contextlib.suppress(slots.SlotTakenError), contextlib.closing(slots.claim(self._layout.slot)):
                node.remove_traces(self._layout)
        if self._folder.exists() and any(self._folder.iterdir()):
            if not (self._folder / SIGN).exists():
                raise RuntimeError(f"{self._folder} is not empty and not a cluster's: nothing in it is touched")
            if mounted := list(self._mounts()):
                raise RuntimeError(f"{self._folder} is not removed, because something is mounted in it: {mounted}")
            shutil.rmtree(self._folder)

    def traces(self) -> list[str]:
        """What there is of the cluster on this machine, in words; empty when it is down."""
        layout = self._layout
        found = [f"process {pid}" for pid in processes.marked(self._folder)]
        found += [f"mount {path}" for path in self._mounts()]
        if self._slot_is_ours():
            found += [f"control group {path}" for path in cgroups.existing(layout.cgroup)]
            if node.link_exists(layout):
                found.append(f"link {layout.link}, and the routes over it")
        if self._folder.exists():
            found.append(f"folder {self._folder}")
        return found

    def _mounts(self) -> list[Path]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = (Path(line.split()[4]) for line in lines)
        return [point for point in points if point.is_relative_to(self._folder)]

    def _slot_is_ours(self) -> bool:
        """Whether what is named after the slot is this cluster's, or nobody's any more; not another cluster's."""
        if sign := self._sign():
            return bool(sign["node"])
        try:
            slots.claim(self._layout.slot).close()
        except slots.SlotTakenError:
            return False
        return True

    def _sign(self) -> dict[str, Any]:
        """What the cluster in the folder wrote down of itself; empty if there is none, or if it got no further."""
        try:
            sign: dict[str, Any] = json.loads((self._folder / SIGN).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return sign

    # The node

    def load_image(self, archive: Path) -> None:
        images.import_into(self._layout.containerd_socket, archive)

    def volume_folder(self, name: str) -> Path:
        folder = self._layout.volumes / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
