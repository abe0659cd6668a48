"""Where a cluster keeps its files, and what is its own on the machine: all derived from a folder and a slot."""

from dataclasses import dataclass
from pathlib import Path

NODE_NAME = "node-0"
PAUSE_IMAGE = "kit.local/pause:1"

# The node's mount namespace covers these with its own; a cluster's folder below one of them would vanish.
COVERED = ("/run", "/var/log", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/cni", "/proc", "/sys")
# A Unix socket's path has at most 107 characters, and the longest one here adds "/node/containerd.sock.ttrpc".
LONGEST_FOLDER = 80


@dataclass(frozen=True)
class Layout:
    """The paths and addresses of one cluster.

    `slot` (0 to 255) tells the clusters of a machine apart that have a node: each has its own networks, link and
    control group. A control plane without a node uses nothing of its slot but the Services' address range, which
    only exists in its own objects.
    """

    folder: Path
    slot: int

    def __post_init__(self) -> None:
        if not 0 <= self.slot <= 255:
            raise ValueError(f"slot {self.slot}: 0 to 255 are possible")
        if len(str(self.folder)) > LONGEST_FOLDER:
            raise ValueError(f"folder {self.folder}: longer than {LONGEST_FOLDER} characters, too long for its sockets")
        if any(self.folder.is_relative_to(path) for path in COVERED):
            raise ValueError(f"folder {self.folder}: below one of {', '.join(COVERED)}, which a node covers")

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def node(self) -> Path:
        """The node's own files; they appear at their usual places (/var/lib/kubelet and so on) in its namespaces."""
        return self.folder / "node"

    @property
    def containerd_socket(self) -> Path:
        return self.node / "containerd.sock"

    @property
    def volumes(self) -> Path:
        """Holds the folder of each volume for which the caller named none."""
        return self.folder / "volumes"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    @property
    def host_ip(self) -> str:
        """This machine, as the node and its pods reach it."""
        return f"10.250.{self.slot}.1"

    @property
    def node_ip(self) -> str:
        return f"10.250.{self.slot}.2"

    @property
    def pod_network(self) -> str:
        return f"10.251.{self.slot}.0/24"

    @property
    def service_network(self) -> str:
        return f"10.252.{self.slot}.0/24"

    @property
    def service_ip(self) -> str:
        """The Service `kubernetes`: always the first address of the range."""
        return f"10.252.{self.slot}.1"

    @property
    def link(self) -> str:
        """The machine's end of the wire to the node."""
        return f"e3test{self.slot}"

    @property
    def cgroup(self) -> str:
        return f"eagle3-test-{self.slot}"
