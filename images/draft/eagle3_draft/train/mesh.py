"""On which ranks a draft's weights, gradients and optimizer lie: cut up, as copies, or as copies that are cut up."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from eagle3_api.jobs import TrainConfig


def shards_of(config: TrainConfig) -> int:
    """Ranks that one copy of the draft is cut up among."""
    each = config.processes
    return {"Full": each * max(1, len(config.hosts)), "Hybrid": each, "Replicate": 1}[config.sharding]


def mesh_of(device: torch.device, shards: int) -> DeviceMesh:
    """The ranks as FSDP2 takes them, (copies, ``shards``): the first dimension holds the same, the second is cut up.

    Ranks of one pod follow each other, and so do those that share a copy. All ranks call it together.

    Args:
        device: of this rank.
        shards: ranks that one copy is cut up among, a divisor of all. With all of them there is the second dimension alone.
    """
    ranks = torch.arange(dist.get_world_size()).view(-1, shards)
    if len(ranks) == 1:
        return init_device_mesh(device.type, (shards,))
    # For two dimensions ``init_device_mesh`` splits the group of all ranks, which has gloo beside NCCL: it cannot be split
    backend = "nccl" if device.type == "cuda" else "gloo"
    with _unsplit():
        groups: list[Any] = [
            dist.group.WORLD
            if len(lines) == 1
            else dist.new_subgroups_by_enumeration(lines.tolist(), backend=backend)[0]  # type: ignore[no-untyped-call]
            for lines in (ranks.T, ranks)
        ]
    return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))


@contextmanager
def _unsplit() -> Iterator[None]:
    """Groups that are made meanwhile connect when they are first used, each by itself.

    Under a group that is bound to a device they are split off it at once, by all ranks together, also those of a single rank,
    which talks to nobody. NCCL's splits have hung where not every rank is in the new group (pytorch/pytorch#134314).
    """
    world: Any = dist.group.WORLD
    bound, world.bound_device_id = world.bound_device_id, None
    try:
        yield
    finally:
        world.bound_device_id = bound
