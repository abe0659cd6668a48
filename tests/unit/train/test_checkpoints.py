"""A checkpoint is there as a whole or not at all."""

import errno
import json
import math
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.fsdp import fully_shard

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest
from eagle3_draft.train import checkpoints
from eagle3_draft.train.checkpoints import Checkpoints, TrainingState
from served.volume import small_volume
from testcluster.wait import wait_for


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """A model that reads numbers of some width, an optimizer and their checkpoints."""

    def __init__(self, folder: Path, width: int = 3, *, patience: float = 60.0) -> None:
        self.model = torch.nn.Linear(width, 2)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.checkpoints = Checkpoints(folder, self.model, self.optimizer, patience=patience)

    def step(self) -> float:
        loss: torch.Tensor = self.model(torch.ones(self.model.in_features)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def trained(folder: Path, steps: int, width: int = 3) -> Training:
    """A training with a checkpoint after each step."""
    torch.manual_seed(0)
    training = Training(folder, width)
    for step in range(1, steps + 1):
        training.step()
        training.checkpoints.save(TrainingState(step=step, tokens=10 * step))
    training.checkpoints.wait()
    return training


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Of a volume: it is away, and writes wait for it as those to NFS do, until it is set."""
    away, write = threading.Event(), FileSystemWriter.write_data

    def waiting(*given: Any) -> Any:
        assert away.wait(30), "nobody let it come back"
        return write(*given)

    monkeypatch.setattr(FileSystemWriter, "write_data", waiting)
    yield away
    away.set()


def test_what_is_loaded_goes_on_to_the_bit(tmp_path: Path) -> None:
    training = trained(tmp_path, 3)
    again = Training(tmp_path)
    state = again.checkpoints.load()
    assert state == TrainingState(step=3, tokens=30)
    assert [again.step() for _ in range(3)] == [training.step() for _ in range(3)]


def test_a_training_goes_on_while_a_checkpoint_is_written_and_it_holds_what_was_then(
    tmp_path: Path, server: threading.Event
) -> None:
    training = Training(tmp_path)
    training.checkpoints.save(TrainingState(step=1))
    following = [training.step() for _ in range(3)]
    assert training.checkpoints.busy()
    assert not list(tmp_path.glob(".step-*[0-9]"))
    server.set()
    training.checkpoints.wait()
    again = Training(tmp_path)
    assert again.checkpoints.load() == TrainingState(step=1)
    assert [again.step() for _ in range(3)] == following


def test_only_the_last_two_are_kept(tmp_path: Path) -> None:
    trained(tmp_path, 12)
    assert {path.name for path in tmp_path.iterdir()} == {".step-11", ".step-12"}


def test_without_one_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert Training(tmp_path / "missing").checkpoints.load() is None


def test_one_that_was_cut_short_while_it_was_written_is_not_seen(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    (tmp_path / ".step-1").rename(tmp_path / ".step-1.partial")
    assert Training(tmp_path).checkpoints.load() is None


def cut_to(share: float) -> Callable[[Training, Path], None]:
    """What the file system lost the end of, in each part."""

    def spoil(_: Training, checkpoint: Path) -> None:
        for part in checkpoint.glob("*.distcp"):
            os.truncate(part, int(part.stat().st_size * share))

    return spoil


def flipped_bit_in(pattern: str) -> Callable[[Training, Path], None]:
    """What a disk gives back otherwise than it was given, in the middle of a file."""

    def spoil(_: Training, checkpoint: Path) -> None:
        (path,) = checkpoint.glob(pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return spoil


def with_a_flipped_bit_in_a_weight(training: Training, checkpoint: Path) -> None:
    """Which makes another number of it, and nothing else that anybody would notice."""
    (path,) = checkpoint.glob("*.distcp")
    content = bytearray(path.read_bytes())
    weight = training.model.state_dict()["weight"].full_tensor().numpy().tobytes()
    content[content.index(weight)] ^= 1
    path.write_bytes(content)


def without(pattern: str) -> Callable[[Training, Path], None]:
    """What the file system lost, but for its name."""

    def spoil(_: Training, checkpoint: Path) -> None:
        (path,) = checkpoint.glob(pattern)
        path.unlink()

    return spoil


def with_an_optimizer_that_is_not_finite(training: Training, checkpoint: Path) -> None:
    """Made between the step that spoiled it and the loss that shows it."""
    shutil.rmtree(checkpoint)
    for of_weight in training.optimizer.state.values():
        of_weight["exp_avg_sq"].fill_(math.nan)
    training.checkpoints.save(TrainingState(step=4))
    training.checkpoints.wait()
    (checkpoint.parent / ".step-4").rename(checkpoint)


@pytest.mark.parametrize(
    "spoil",
    [
        cut_to(0),
        cut_to(0.5),
        cut_to(0.99),
        with_a_flipped_bit_in_a_weight,
        flipped_bit_in(".metadata"),
        flipped_bit_in("state.json"),
        flipped_bit_in("SHA256SUMS"),
        without("*.distcp"),
        without("state.json"),
        without("SHA256SUMS"),
        with_an_optimizer_that_is_not_finite,
    ],
    ids=[
        "empty",
        "half",
        "without its end",
        "bit of a weight",
        "bit of their places",
        "bit of the state",
        "bit of a digest",
        "tensors lost",
        "state lost",
        "digests lost",
        "optimizer",
    ],
)
def test_one_that_cannot_be_gone_on_from_is_passed_over_for_the_one_before_and_removed(
    tmp_path: Path, spoil: Callable[[Training, Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(trained(tmp_path, 3), tmp_path / ".step-3")
    good = trained(tmp_path / "good", 2)
    again = Training(tmp_path)
    state = again.checkpoints.load()
    assert state is not None
    assert state.step == 2
    assert {path.name for path in tmp_path.glob(".step-*")} == {".step-2"}
    assert [passed.partition(":")[0] for passed in state.passed_over] == [".step-3"]
    assert f"{tmp_path / '.step-3'} is passed over for .step-2" in capsys.readouterr().err
    assert [again.step() for _ in range(3)] == [good.step() for _ in range(3)]
    again.checkpoints.save(TrainingState(step=3))
    again.checkpoints.wait()
    state = Training(tmp_path).checkpoints.load()
    assert state is not None
    assert state.step == 3


@pytest.mark.parametrize("read", [(FileSystemReader, "read_data"), (Path, "read_text")], ids=["tensors", "state"])
@pytest.mark.parametrize(
    "met",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        PermissionError(errno.EACCES, "Permission denied"),
        MemoryError("no room"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
    ids=["EIO", "ESTALE", "kernel", "permission", "host", "device"],
)
def test_one_that_another_try_may_read_is_neither_passed_over_nor_removed(
    tmp_path: Path, met: Exception, read: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 2)

    def failing(*_: object) -> None:
        raise met

    with monkeypatch.context() as now:
        now.setattr(*read, failing)
        with pytest.raises(type(met), match=str(met.args[-1])):
            Training(tmp_path).checkpoints.load()
    assert Training(tmp_path).checkpoints.load() == TrainingState(step=2, tokens=20)


def test_one_of_a_newer_version_which_says_more_is_gone_on_from(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    file, sums = (tmp_path / ".step-1" / name for name in ("state.json", "SHA256SUMS"))
    before = file_digest(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mood": "good"}))
    sums.write_text(sums.read_text().replace(before, file_digest(file)))
    assert Training(tmp_path).checkpoints.load() == TrainingState(step=1, tokens=10)


def test_every_file_of_one_can_be_checked_with_coreutils(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    folder = tmp_path / ".step-1"
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True, text=True
    )
    named = {line.removesuffix(": OK") for line in checked.stdout.splitlines()}
    assert named == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}


def test_one_that_is_written_for_unusually_long_is_told(
    tmp_path: Path, server: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)
    training.checkpoints.save(TrainingState(step=1))
    assert not training.checkpoints.slow()
    monkeypatch.setattr(checkpoints, "SLOW", 0.0)
    assert training.checkpoints.slow() == "the checkpoint of step 1 is being written for 0m"
    server.set()
    training.checkpoints.wait()
    assert not training.checkpoints.slow()


def test_one_that_is_never_written_ends_the_training_once_patience_is_over(
    tmp_path: Path, server: threading.Event
) -> None:
    training = Training(tmp_path, patience=0.2)
    training.checkpoints.save(TrainingState(step=1))
    wait_for("the end of patience", 30, lambda: not training.checkpoints.busy())
    with pytest.raises(StageError, match=f"step 1 was not written .* volume of {tmp_path} hangs") as ended:
        training.checkpoints.save(TrainingState(step=2))
    assert (ended.value.code, ended.value.reason) == (ExitCode.ENGINE_CRASHED, Reason.STORAGE_UNAVAILABLE)


def test_a_full_volume_is_told_as_such_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", mebibytes=2) as volume:
        training = trained(volume, 1, width=50_000)  # 1.2 MB, of which a second does not fit
        training.checkpoints.save(TrainingState(step=2))
        with pytest.raises(OSError, match="No space left"):
            training.checkpoints.wait()
        assert Training(volume, width=50_000).checkpoints.load() == TrainingState(step=1, tokens=10)
        assert {path.name for path in volume.iterdir()} == {".step-1"}


def test_when_none_can_be_read_training_does_not_silently_start_anew(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    for state in tmp_path.glob(".step-*/state.json"):
        state.write_text("{")
    with pytest.raises(StageError, match="cannot continue from any checkpoint") as refused:
        Training(tmp_path).checkpoints.load()
    assert refused.value.reason == Reason.CHECKPOINT_UNREADABLE


def test_when_none_can_be_read_it_says_what_was_met_in_each(tmp_path: Path) -> None:
    cut_to(0)(trained(tmp_path, 1), tmp_path / ".step-1")
    with pytest.raises(StageError, match=r"\(\.step-1: __0_0.distcp is not as it was written\)"):
        Training(tmp_path).checkpoints.load()


def test_a_training_whose_best_weights_are_lost_has_none_until_it_measures_again() -> None:
    assert not TrainingState().has_best
    assert TrainingState(evaluations=[{"step": 1}, {"step": 2}], best=1).has_best
    assert not TrainingState(evaluations=[{"step": 1}, {"step": 2}], best=2).has_best
