"""A file is there, whole, or it is not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_draft.files import noticing_a_full_volume, sync_folder, write_atomic, write_pieces


def test_two_pods_that_write_the_same_file_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    """The parts of an extraction are joined by whichever pod finds them all there, and two may."""
    path = tmp_path / "lengths.safetensors"

    def pieces() -> Iterator[memoryview]:
        yield memoryview(b"one and ")
        write_atomic(path, b"one and the same")
        yield memoryview(b"the same")

    write_pieces(path, pieces())
    assert path.read_bytes() == b"one and the same"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_that_cannot_make_a_folder_durable_is_none_to_fail_on() -> None:
    """As some network file systems; of those here it is the kernel's own."""
    folder = os.open("/proc", os.O_RDONLY)
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(folder)
    os.close(folder)
    sync_folder(Path("/proc"))


def test_a_digest_that_could_not_be_computed_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def update(self, piece: memoryview) -> None:
            if bytes(piece) == b"second":
                raise MemoryError

        def hexdigest(self) -> str:
            return "that of the first piece alone"

    monkeypatch.setattr("eagle3_draft.files.hashlib.sha256", Failing)
    with pytest.raises(MemoryError):
        write_pieces(tmp_path / "shard", map(memoryview, (b"first", b"second")))


def test_a_writers_error_stays_what_it_is_where_nothing_says_that_the_volume_is_full(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unexpected pos"), noticing_a_full_volume(tmp_path / "gone"):
        raise RuntimeError("unexpected pos 64")
