"""What is made once a machine is made by one worker alone, and is whole."""

import os
from multiprocessing import get_context
from pathlib import Path

import pytest

import once


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _make(folder: Path) -> None:
    (folder / "first").write_text(str(os.getpid()))
    with (folder.parent / "makers").open("a") as makers:
        makers.write(f"{os.getpid()}\n")
    (folder / "last").write_text(str(os.getpid()))


def _made(name: str) -> list[str]:
    return [path.read_text() for path in sorted(once.made(name, _make).iterdir())]


def test_of_workers_that_come_at_the_same_time_one_makes_it_and_all_find_it_whole(cache: Path) -> None:
    with get_context("fork").Pool(4) as workers:
        found = workers.map(_made, [f"folder-{n // 8}" for n in range(160)], chunksize=1)
    makers = (cache / "makers").read_text().split()
    assert len(makers) == 20
    assert all(first == last for first, last in found)


def test_what_was_not_made_to_the_end_is_not_there_and_is_made_anew(cache: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        once.made("folder", half)
    assert not (cache / "folder").exists()
    assert len(_made("folder")) == 2
