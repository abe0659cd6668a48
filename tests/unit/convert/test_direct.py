"""What is written past the kernel's cache is what was given, to the byte, on whatever file system."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_draft.convert import direct

NOISE = os.urandom(1 << 20) * 40


def refusing(call: Callable[..., int], refused: Callable[..., bool]) -> Callable[..., int]:
    """A file system that refuses some calls, as those do that always want their cache."""

    def asked(*arguments: object) -> int:
        if refused(*arguments):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return call(*arguments)

    return asked


def write(path: Path, *parts: bytes) -> str:
    with direct.create(path) as file:
        for part in parts:
            file.write(part)
        return file.finish(0o644)


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, len(NOISE)), max_size=6))
def test_a_file_is_the_bytes_that_were_given_and_its_digest_is_theirs(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("direct") / "file"
    ends = sorted(cuts)
    parts = [NOISE[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    whole = b"".join(parts)
    assert write(path, *parts) == hashlib.sha256(whole).hexdigest()
    assert path.read_bytes() == whole
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_where_the_cache_cannot_be_passed_by_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = direct._PAST_THE_CACHE
    monkeypatch.setattr(os, "open", refusing(os.open, lambda _, flags, *__: bool(flags & past)))
    write(tmp_path / "opened", NOISE[:9999])
    assert (tmp_path / "opened").read_bytes() == NOISE[:9999]


def test_where_only_larger_blocks_pass_the_cache_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter([True])
    monkeypatch.setattr(os, "write", refusing(os.write, lambda *_: next(first, False)))
    write(tmp_path / "written", NOISE)
    assert (tmp_path / "written").read_bytes() == NOISE


def test_a_full_disk_is_said() -> None:
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"), NOISE[:1])


def test_what_was_there_before_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(NOISE)
    write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
