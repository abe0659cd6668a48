from pathlib import Path
from typing import Any

from testcluster import node
from testcluster.controlplane import Ports, arguments
from testcluster.layout import Layout

LAYOUT = Layout(Path("/tmp/a"), 3)
DEFAULT: dict[str, Any] = {"process": {"cwd": "/", "rlimits": [{"hard": 1024}]}, "mounts": [{"destination": "/proc"}]}


def test_containers_see_shared_paths_and_the_machines_programs_read_only() -> None:
    spec = node.base_container_spec(DEFAULT, ["/opt/models"])

    binds = {mount["destination"]: mount["options"] for mount in spec["mounts"] if mount.get("type") == "bind"}
    assert {"/usr", "/opt/models"} <= set(binds)
    assert all("ro" in options for options in binds.values())
    assert {"destination": "/proc"} in spec["mounts"]


def test_containers_are_not_held_to_a_thousand_open_files() -> None:
    assert node.base_container_spec(DEFAULT, [])["process"] == {"cwd": "/"}
    assert "rlimits" in DEFAULT["process"]


def test_the_kubelet_starts_only_after_containerd_listens_and_the_api_server_is_there() -> None:
    daemons = {
        daemon["name"]: daemon for daemon in node.init_configuration(LAYOUT, Path("/kube"), Path("/dns"))["daemons"]
    }

    assert daemons["kubelet"]["after"] == ["/tmp/a/node/containerd.sock", "/tmp/a/node/start"]


def test_no_image_is_ever_removed_because_none_can_be_pulled_again() -> None:
    assert node.kubelet_configuration(LAYOUT)["imageGCHighThresholdPercent"] == 100


def test_a_loopback_api_server_is_kept_out_of_the_endpoints_of_its_service() -> None:
    ports = Ports(1, 2, 3, 4, 5)
    alone = arguments(LAYOUT, ports, "127.0.0.1", with_node=False)["kube-apiserver"]
    beside_a_node = arguments(LAYOUT, ports, LAYOUT.host_ip, with_node=True)["kube-apiserver"]

    assert "--endpoint-reconciler-type=none" in alone
    assert "--endpoint-reconciler-type=lease" in beside_a_node


def test_free_ports_are_five_different_ones() -> None:
    ports = Ports.free()

    assert len({ports.etcd, ports.etcd_peer, ports.apiserver, ports.controller_manager, ports.scheduler}) == 5
