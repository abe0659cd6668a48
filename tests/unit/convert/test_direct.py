"""What is written past the kernel's cache is what was given, to the byte, on whatever file system."""

import errno
import hashlib
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_draft.convert import direct

#: A fraction of the product's, so that files of several take little.
BUFFER = 64 * 1024
NOISE = random.Random(0).randbytes(5 * BUFFER + 1000)


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "BUFFER", BUFFER)


def refusing(call: Callable[..., int], number: int, refused: Callable[..., bool]) -> Callable[..., int]:
    """A file system that refuses some calls with an error of this number, as those do that always want their cache."""

    def asked(*arguments: object) -> int:
        if refused(*arguments):
            raise OSError(number, os.strerror(number))
        return call(*arguments)

    return asked


def write(path: Path, *parts: bytes) -> str:
    with direct.create(path) as file:
        for part in parts:
            file.write(part)
        return file.finish(0o644)


def passes_the_cache(folder: Path) -> bool:
    """Whether the file system of a folder opens files so."""
    try:
        os.close(os.open(folder / "asked", os.O_CREAT | os.O_WRONLY | direct._PAST_THE_CACHE))
    except OSError:
        return False
    return bool(direct._PAST_THE_CACHE)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(NOISE)) | st.integers(0, 5).map(lambda count: count * BUFFER), max_size=6))
def test_a_file_is_the_bytes_that_were_given_and_its_digest_is_theirs(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "file"
    ends = sorted(cuts)
    parts = [NOISE[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    whole = b"".join(parts)
    assert write(path, *parts) == hashlib.sha256(whole).hexdigest()
    assert path.read_bytes() == whole
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


refusals = pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP], ids=errno.errorcode.get)


@refusals
def test_where_the_cache_cannot_be_passed_by_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    past = direct._PAST_THE_CACHE
    opened = Mock(side_effect=refusing(os.open, number, lambda _, flags, *__: bool(flags & past)))
    monkeypatch.setattr(os, "open", opened)
    write(tmp_path / "opened", NOISE[:9999])
    assert opened.call_count == (2 if past else 1), "refused once, and opened otherwise"
    assert (tmp_path / "opened").read_bytes() == NOISE[:9999]


@refusals
def test_where_only_larger_blocks_pass_the_cache_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    if not passes_the_cache(tmp_path):
        pytest.skip("this file system opens no file past the cache")
    first = iter([True])
    monkeypatch.setattr(os, "write", refusing(os.write, number, lambda *_: next(first, False)))
    write(tmp_path / "written", NOISE)
    assert next(first, None) is None, "nothing was refused"
    assert (tmp_path / "written").read_bytes() == NOISE


def test_a_full_disk_is_said() -> None:
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"), NOISE[:1])


def test_what_was_there_before_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(NOISE)
    write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
