"""Of several ranks that ended, the one that knows why is believed, and a kill may be tried again."""

import errno
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.files import write_atomic
from eagle3_draft.train import endings, worker
from unit.train.test_telemetry import config

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711\nand more")
HANGS = StageError(ExitCode.ENGINE_CRASHED, Reason.STORAGE_UNAVAILABLE, "the volume hangs")
NAN = StageError(ExitCode.NON_FINITE, Reason.NON_FINITE, "step 3: loss nan")


@pytest.fixture(autouse=True)
def _a_pod_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("pod")))


def ended(folder: Path, errors: dict[int, BaseException], *, hosts: int = 0) -> tuple[TrainConfig, StageError]:
    """The end of a pod of three ranks (of several pods the first), of which the launcher found the lowest ended."""
    of = config(folder, processes=3, hosts=[f"pod-{number}" for number in range(hosts)])
    for rank, error in errors.items():
        assert endings.leave(of, rank, error) != ExitCode.DONE
    return of, endings.of_failure(of, range(3), first=0, code=1)


@pytest.mark.parametrize("error", [LOST, dist.DistBackendError("NCCL error"), dist.DistNetworkError("reset")], ids=type)
def test_a_rank_that_was_killed_is_named_and_not_those_that_it_left_alone(error: Exception, tmp_path: Path) -> None:
    _, told = ended(tmp_path, {0: error, 1: error})
    assert (told.code, told.reason) == (ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED)
    assert told.message.startswith("rank 2 of the training died")


@pytest.mark.parametrize(
    ("error", "code"),
    [(NAN, ExitCode.NON_FINITE), (KeyError("w"), ExitCode.INTERNAL_ERROR), (HANGS, ExitCode.ENGINE_CRASHED)],
)
def test_a_rank_that_knows_why_it_ended_is_believed_before_those_that_it_left_alone(
    error: Exception, code: ExitCode, tmp_path: Path
) -> None:
    _, told = ended(tmp_path, {0: LOST, 1: LOST, 2: error})
    assert told.code == code
    assert told.reason != Reason.JOB_FAILED


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGKILL, "died and said nothing; rank 2 of SIGKILL: a lack of memory looks like this"),
        (
            -signal.SIGABRT,
            "died and said nothing; rank 2 of SIGABRT: so NCCL ends a rank that waits for another in vain",
        ),
        (-signal.SIGBUS, "died and said nothing; rank 2 of SIGBUS: a volume that cannot be read any more"),
        (1, "died and said nothing. The next try continues"),
    ],
)
def test_a_rank_that_died_without_a_word_is_told_with_the_signal_that_it_died_of(
    code: int, words: str, tmp_path: Path
) -> None:
    of, _ = ended(tmp_path, {0: LOST, 1: LOST})
    assert words in endings.of_failure(of, range(3), first=2, code=code).message
    assert "SIG" not in endings.of_failure(of, range(3), first=0, code=code).message  # which is not of rank 2


def test_the_stage_that_a_rank_wants_retried_is_what_the_training_says(tmp_path: Path) -> None:
    corrupt = StageError(ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT, "train-00000 is cut", retry=StageName.EXTRACT)
    _, told = ended(tmp_path, {0: LOST, 1: corrupt})
    assert told.retry == StageName.EXTRACT


def test_a_pod_that_another_left_alone_says_so(tmp_path: Path) -> None:
    _, told = ended(tmp_path, {0: LOST, 1: LOST, 2: LOST}, hosts=2)
    assert told.code == ExitCode.ENGINE_CRASHED
    assert "another process of this training ended ([gloo/transport" in told.message


def test_a_rank_that_failed_of_a_full_volume_says_so_though_nothing_can_be_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def write_where_there_is_room(path: Path, data: bytes) -> None:
        if path.is_relative_to(tmp_path):
            raise full
        write_atomic(path, data)

    monkeypatch.setattr(endings, "write_atomic", write_where_there_is_room)
    of, told = ended(tmp_path, {0: LOST, 1: full, 2: LOST})
    assert (told.code, told.reason) == (ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL)
    endings.forget(of)
    assert "rank 0, 1, 2 of the training died" in endings.of_failure(of, range(3), first=0, code=1).message


def test_a_rank_that_failed_of_a_volume_that_hangs_says_so_and_ends_though_nothing_can_be_written_or_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes_back, written = threading.Event(), []

    def write_where_the_server_is_there(path: Path, data: bytes) -> None:
        if path.is_relative_to(tmp_path):
            comes_back.wait(5)
            written.append(path)
        write_atomic(path, data)

    monkeypatch.setattr(endings, "write_atomic", write_where_the_server_is_there)
    monkeypatch.setattr(endings, "VOLUME_SECONDS", 0.1)
    os.mkfifo(tmp_path / ".outcome-2.json")  # whoever opens it waits: nobody is at its other end
    _, told = ended(tmp_path, {0: LOST, 1: HANGS})
    assert not written
    comes_back.set()
    assert (told.code, told.reason) == (ExitCode.ENGINE_CRASHED, Reason.STORAGE_UNAVAILABLE)


def test_what_ranks_said_before_is_forgotten_when_they_begin_again(tmp_path: Path) -> None:
    of, _ = ended(tmp_path, {0: NAN})
    endings.forget(of)
    assert "rank 0, 1, 2 of the training died" in endings.of_failure(of, range(3), first=0, code=1).message


def test_an_eviction_is_an_interruption_whatever_the_ranks_died_of(tmp_path: Path) -> None:
    of, _ = ended(
        tmp_path, {0: LOST, 1: StageError(ExitCode.INTERRUPTED, Reason.INTERRUPTED, "interrupted after step 4")}
    )
    assert endings.of_interruption(of).message == "interrupted after step 4"
    endings.forget(of)
    assert endings.of_interruption(of).code == ExitCode.INTERRUPTED


def test_no_rank_gives_up_waiting_before_the_operator_says_that_the_training_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in one.items():
        monkeypatch.setenv(name, value)
    worker._join_group(config(tmp_path, stall_timeout=7200.0))
    try:
        group: Any = dist.group.WORLD
        assert group._get_backend(torch.device("cpu")).options._timeout.total_seconds() > 7200
    finally:
        dist.destroy_process_group()
