"""The weights that were measured best outlive whatever the checkpoint that speaks of them does."""

import os
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from eagle3_api.artifacts import WEIGHTS
from eagle3_draft.train.best import BestWeights
from eagle3_draft.train.checkpoints import KEPT
from served.volume import small_volume

pytestmark = pytest.mark.usefixtures("one_rank")

PROPOSALS = torch.zeros(5, 2, dtype=torch.int32)


def test_kept_weights_are_on_the_disk_before_and_after_they_get_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes the power away here: the order of what is made durable is looked at instead."""
    synced, sync = [], os.fsync

    def noted(descriptor: int) -> None:
        names = {path.name for path in tmp_path.iterdir()}
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, ".best-3.safetensors" in names))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    BestWeights(tmp_path).keep(torch.nn.Linear(3, 2), 3, PROPOSALS)
    assert synced == [(".proposals-3.partial", False), (".best-3.partial", False), (tmp_path.name, True)]


def test_as_many_are_kept_as_checkpoints_can_speak_of(tmp_path: Path) -> None:
    best, model = BestWeights(tmp_path), torch.nn.Linear(3, 2)
    for step in range(1, 6):
        best.keep(model, step, PROPOSALS + step)
    names = {f".{what}-{step}.safetensors" for what in ("best", "proposals") for step in (3, 4, 5)}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert KEPT + 1 == 3
    best.take(4)
    best.take(4)  # publishing may begin a second time
    assert torch.equal(load_file(tmp_path / WEIGHTS)["weight"], model.weight)
    proposals = best.proposals(4)
    assert proposals is not None
    assert torch.equal(proposals, PROPOSALS + 4)
    assert best.proposals(1) is None


def test_what_is_not_trained_goes_along_as_it_is(tmp_path: Path) -> None:
    table = torch.randn(7, 3).bfloat16()
    best = BestWeights(tmp_path, {"embed_tokens.weight": table})
    best.keep(torch.nn.Linear(3, 2), 1, PROPOSALS)
    best.take(1)
    weights = load_file(tmp_path / WEIGHTS)
    assert set(weights) == {"weight", "bias", "embed_tokens.weight"}
    assert torch.equal(weights["embed_tokens.weight"], table)
    assert weights["embed_tokens.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(("rank", "held"), [(0, True), (1, False)])
def test_the_rank_that_writes_what_is_not_trained_holds_it_and_no_other(
    rank: int, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    table = torch.randn(7, 3)
    kept = weakref.ref(table)
    best = BestWeights(tmp_path, {"embed_tokens.weight": table})
    del table
    assert (kept() is not None) == held
    del best


def test_weights_that_are_gone_or_cut_short_are_not_there(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    best.keep(torch.nn.Linear(3, 2), 4, PROPOSALS)
    assert best.has(4)
    assert not best.has(3)
    kept = tmp_path / ".best-4.safetensors"
    os.truncate(kept, kept.stat().st_size - 1)
    assert not best.has(4)


def test_a_full_volume_is_told_as_such_and_is_not_kept_full(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", mebibytes=1) as volume:
        with pytest.raises(OSError, match="No space left"):
            BestWeights(volume).keep(torch.nn.Linear(1000, 1000), 4, PROPOSALS)
        assert [path.name for path in volume.iterdir()] == [".proposals-4.safetensors"]
