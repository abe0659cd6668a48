"""The node: containerd, kubelet, kube-proxy and DNS in network, mount and process namespaces of their own.

The configuration of each part is a pure function of the layout; `start` writes them down and makes the namespaces
around `innode.py`. Nothing is bridged or translated: each pod hangs on a point-to-point link, and this machine has a
route to the pods and to the Services. Pods reach this machine at `host_ip`, and nothing beyond it.
"""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testcluster import cgroups, innode
from testcluster.layout import NODE_NAME, PAUSE_IMAGE, Layout
from testcluster.processes import Processes, run
from testcluster.wait import wait_for

# What every container sees of this machine, read-only: so an image holds only a program's own files.
SEEN_BY_CONTAINERS = ("/usr", "/etc/ssl", "/etc/alternatives")
CNI_PLUGINS = Path("/usr/lib/cni")


def cni_configuration(layout: Layout) -> dict[str, Any]:
    routed = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": layout.pod_network}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    host_ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    return {"cniVersion": "0.4.0", "name": "eagle3-test", "plugins": [routed, host_ports]}


def base_container_spec(default: Mapping[str, Any], share: Sequence[str]) -> dict[str, Any]:
    """The OCI spec that every container starts from: containerd's default and this machine's programs."""
    process = {key: value for key, value in default["process"].items() if key != "rlimits"}  # else 1024 open files
    binds = [
        {"source": path, "destination": path, "type": "bind", "options": ["rbind", "ro", "rprivate"]}
        for path in (*SEEN_BY_CONTAINERS, *share)
    ]
    return {**default, "process": process, "mounts": [*default["mounts"], *binds]}


def containerd_configuration(layout: Layout) -> str:
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Pause containers ask for a low out-of-memory score, which a machine without CAP_SYS_RESOURCE gives to no process.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{layout.node}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{layout.node}/base-spec.json"
"""


def kubelet_configuration(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.node_ip,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "tlsCertFile": f"{layout.pki}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/kubelet-server.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [layout.node_ip],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        # No image can be pulled again, so none is ever removed.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def kube_proxy_configuration(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": layout.pod_network,
        "hostnameOverride": NODE_NAME,
        "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-proxy"))},
        # These settings belong to the machine, not to a network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def dns_configuration(layout: Layout) -> str:
    return f"""\
.:53 {{
    bind {layout.node_ip}
    errors
    cache 5
    loadbalance
    kubernetes cluster.local {{
        kubeconfig {layout.kubeconfig("admin")}
    }}
}}
"""


def init_configuration(layout: Layout, kube: Path, dns: Path) -> dict[str, Any]:
    """What `innode.py` does, step by step."""
    node = layout.node

    def daemon(name: str, *command: str | Path, after: Sequence[Path] = ()) -> dict[str, Any]:
        return {
            "name": name,
            "command": [str(part) for part in command],
            "log": str(layout.logs / f"{name}.log"),
            "after": [str(path) for path in after],
        }

    # containerd listens on the loopback link; a kubelet ends at once where containerd does not listen yet.
    connected = [node / "connected"]
    ready = [layout.containerd_socket, node / "start"]
    kubelet: list[str | Path] = [
        kube,
        "kubelet",
        f"--config={node}/kubelet.json",
        f"--kubeconfig={layout.kubeconfig('kubelet')}",
    ]
    names = [f"--node-ip={layout.node_ip}", f"--hostname-override={NODE_NAME}"]
    return {
        "binds": {
            str(node / "containerd"): "/var/lib/containerd",
            str(node / "kubelet"): "/var/lib/kubelet",
            str(node / "cni-state"): "/var/lib/cni",
            str(node / "log"): "/var/log",
        },
        "sysctls": {"/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/net/ipv4/conf/all/route_localnet": "1"},
        "mounted": str(node / "mounted"),
        "daemons": [
            daemon("containerd", "containerd", "--config", node / "containerd.toml", after=connected),
            daemon("kubelet", *kubelet, *names, after=ready),
            daemon("kube-proxy", kube, "kube-proxy", f"--config={node}/kube-proxy.json", after=ready),
            daemon("dns", dns, "-conf", node / "Corefile", after=ready),
        ],
    }


def start(processes: Processes, kube: Path, dns: Path, layout: Layout, share: Sequence[str], slot_fd: int) -> None:
    """Makes the namespaces, the link between them and this machine, and starts containerd.

    The others follow when `register` is called. `slot_fd` is what holds the slot: the node's processes keep it.
    """
    node = layout.node
    for folder in ("containerd", "kubelet", "cni-state", "log", "cni"):
        (node / folder).mkdir(parents=True)
    default_spec = json.loads(run("ctr", "oci", "spec"))
    for file, content in {
        "cni/10-eagle3-test.conflist": cni_configuration(layout),
        "base-spec.json": base_container_spec(default_spec, share),
        "kubelet.json": kubelet_configuration(layout),
        "kube-proxy.json": kube_proxy_configuration(layout),
        "init.json": init_configuration(layout, kube, dns),
    }.items():
        (node / file).write_text(json.dumps(content, indent=1))
    (node / "containerd.toml").write_text(containerd_configuration(layout))
    (node / "Corefile").write_text(dns_configuration(layout))
    cgroups.make(layout.cgroup)

    # `ip netns` would remount /sys, and hide the control groups of version 1 below it.
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    program: list[str | Path] = [sys.executable, Path(innode.__file__), node / "init.json"]
    outer = processes.start("node", [*namespaces, *program], pass_fds=[slot_fd])

    def mounted() -> bool:
        processes.check()
        return (node / "mounted").exists()

    wait_for("the node's namespaces", 30, mounted)
    _connect(layout, Path(f"/proc/{outer}/task/{outer}/children").read_text().strip())
    (node / "connected").touch()


def containerd_listens(layout: Layout) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(layout.containerd_socket)) == 0


def register(layout: Layout) -> None:
    """Starts the kubelet and the others, once there is an API server for them."""
    (layout.node / "start").touch()


def _connect(layout: Layout, inside: str) -> None:
    """Links this machine to the network namespace of process `inside`."""
    run("ip", "link", "add", layout.link, "type", "veth", "peer", "name", "eth0", "netns", inside)
    run("ip", "address", "add", f"{layout.host_ip}/30", "dev", layout.link)
    run("ip", "link", "set", layout.link, "up")
    for command in (
        f"address add {layout.node_ip}/30 dev eth0",
        "link set eth0 up",
        "link set lo up",
        f"route add default via {layout.host_ip}",
    ):
        run("nsenter", f"--net=/proc/{inside}/ns/net", "ip", *command.split())
    for network in (layout.pod_network, layout.service_network):
        run("ip", "route", "add", network, "via", layout.node_ip)


def link_exists(layout: Layout) -> bool:
    return Path("/sys/class/net", layout.link).exists()


def remove_traces(layout: Layout) -> None:
    """Removes what is named after the slot; the caller has made sure that no node uses it now."""

    def gone() -> bool:
        if link_exists(layout):  # it goes with the namespace; this is for one that a killed run left half made
            run("ip", "link", "delete", layout.link)
        return cgroups.remove(layout.cgroup)

    wait_for(f"the end of the link and the control groups of slot {layout.slot}", 30, gone, tolerate=(RuntimeError,))
