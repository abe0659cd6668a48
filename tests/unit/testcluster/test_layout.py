import ipaddress
from itertools import combinations
from pathlib import Path

import pytest

from testcluster.layout import Layout


def test_two_slots_share_no_network_link_or_control_group() -> None:
    first, second = (Layout(Path("/tmp/a"), slot) for slot in (0, 1))

    assert first.link != second.link
    assert first.cgroup != second.cgroup
    networks = [
        ipaddress.ip_interface(network).network
        for layout in (first, second)
        for network in (layout.pod_network, layout.service_network, f"{layout.host_ip}/30")
    ]
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))


def test_the_node_is_in_the_same_network_as_the_end_of_its_link() -> None:
    layout = Layout(Path("/tmp/a"), 255)

    assert ipaddress.ip_address(layout.node_ip) in ipaddress.ip_interface(f"{layout.host_ip}/30").network


@pytest.mark.parametrize("slot", [-1, 256])
def test_a_slot_that_is_no_part_of_an_address_is_refused(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot}: 0 to 255 are possible"):
        Layout(Path("/tmp/a"), slot)


@pytest.mark.parametrize("folder", ["/run/user/0/cluster", "/var/lib/kubelet", "/var/log/cluster"])
def test_a_folder_that_the_node_would_cover_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="which a node covers"):
        Layout(Path(folder), 0)


def test_a_folder_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ValueError, match="too long for its sockets"):
        Layout(Path("/tmp") / ("x" * 80), 0)


def test_the_longest_socket_path_fits_the_longest_folder_that_is_taken() -> None:
    layout = Layout(Path("/tmp/" + "x" * 75), 0)

    assert len(f"{layout.containerd_socket}.ttrpc") <= 107
