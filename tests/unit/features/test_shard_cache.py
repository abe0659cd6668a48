"""Shards on the pod's disk: never more than the limit, never one that is read now taken away, none fetched without need."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.storage.shard_cache import ShardCache
from testcluster.wait import wait_for

LIMIT = 100

#: Bytes of each shard: one is larger than the limit.
SIZES = {"a": 30, "b": 40, "c": 50, "d": 60, "e": 100, "f": 130}


def content(name: str) -> bytes:
    return name.encode() * SIZES[name]


def taken(folder: Path) -> list[int]:
    """Bytes of each file of the cache."""
    return [path.stat().st_size for path in folder.iterdir() if path.name != ".lock"]


def taken_by(shard: Path) -> int:
    return shard.stat().st_size if shard.exists() else 0


def within(sizes: list[int]) -> bool:
    return sum(sizes) <= LIMIT or len(sizes) == 1


def listed(cache: ShardCache) -> list[str]:
    """Of which shards there are files, those that come included, at one moment."""
    with cache._alone():
        return [path.name.partition(".")[0] for path in cache._folder.iterdir() if path.name != ".lock"]


class OneReader(RuleBasedStateMachine):
    """Leases that begin and end in any order, fetches that fail now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "shards"
        self.cache = ShardCache(self.folder, LIMIT)
        self.leases: list[tuple[str, AbstractContextManager[Path], Path]] = []

    def fits(self, name: str) -> bool:
        """Whether a lease would not wait for others to end."""
        held = {leased for leased, *_ in self.leases}
        return name in held or not held or sum(SIZES[one] for one in held) + SIZES[name] <= LIMIT

    def is_whole(self, name: str) -> bool:
        return taken_by(self.folder / name) == SIZES[name]

    @rule(name=st.sampled_from(sorted(SIZES)))
    def lease(self, name: str) -> None:
        if not self.fits(name):
            return
        was_there, fetched = self.is_whole(name), []

        def fetch() -> bytes:
            fetched.append(name)
            assert sum(taken(self.folder)) + SIZES[name] <= LIMIT or not sum(taken(self.folder)), "room comes first"
            return content(name)

        lease = self.cache.lease(name, SIZES[name], fetch)
        self.leases.append((name, lease, lease.__enter__()))
        assert bool(fetched) != was_there

    @rule(name=st.sampled_from(sorted(SIZES)))
    def fail(self, name: str) -> None:
        if not self.fits(name) or self.is_whole(name):
            return

        def fetch() -> bytes:
            raise ConnectionError(name)

        with pytest.raises(ConnectionError), self.cache.lease(name, SIZES[name], fetch):
            pass
        assert not list(self.folder.glob("*.partial")), "what did not come takes no room"

    @precondition(lambda self: self.folder.exists())
    @rule(name=st.sampled_from(sorted(SIZES)))
    def forget(self, name: str) -> None:
        self.cache.forget(name)
        assert not (self.folder / name).exists()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def lose_its_end(self, name: str) -> None:
        """As a disk does with what was written last when its node loses power: nobody reads then."""
        if (self.folder / name).exists() and name not in {leased for leased, *_ in self.leases}:
            os.truncate(self.folder / name, SIZES[name] - 1)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        _, lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.__exit__(None, None, None)

    @invariant()
    def bytes_stay_within_the_limit(self) -> None:
        if self.folder.exists():
            assert within(taken(self.folder))

    @invariant()
    def what_is_leased_is_there(self) -> None:
        for name, _, path in self.leases:
            assert path.read_bytes() == content(name)

    def teardown(self) -> None:
        self.temporary.cleanup()


TestOneReader = OneReader.TestCase
TestOneReader.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, LIMIT)
    for name in ("a", "b", "a", "c"):
        with cache.lease(name, SIZES[name], lambda name=name: content(name)):  # type: ignore[misc]
            pass
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", ".lock"}


def test_many_readers_of_one_process_get_all_they_want_within_the_limit(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, LIMIT)
    coming, together = Counter[str](), threading.Lock()

    def fetch(name: str) -> bytes:
        with together:
            coming[name] += 1
            assert coming[name] == 1, "nobody else fetches the same"
        assert within([SIZES[one] for one in listed(cache)])
        with together:
            coming[name] -= 1
        return content(name)

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(60):
            name = chosen.choice(sorted(SIZES))
            with cache.lease(name, SIZES[name], lambda name=name: fetch(name)) as path:  # type: ignore[misc]
                assert path.read_bytes() == content(name)

    with ThreadPoolExecutor(6) as readers:
        for done in [readers.submit(read, seed) for seed in range(6)]:
            done.result(60)


def test_all_who_wait_for_a_fetch_that_fails_see_its_error_and_the_next_try_fetches_again(tmp_path: Path) -> None:
    cache, go = ShardCache(tmp_path, LIMIT), threading.Event()
    tries: list[int] = []

    def fetch() -> bytes:
        tries.append(len(tries))
        assert go.wait(30)
        raise ConnectionError(f"try {len(tries)}")

    def read() -> None:
        with cache.lease("a", SIZES["a"], fetch):
            pass

    with ThreadPoolExecutor(4) as readers:
        failed = [readers.submit(read) for _ in range(4)]
        wait_for("three who wait", 30, lambda: "a" in cache._coming and _waiting(cache) == 3)
        go.set()
        assert {str(one.exception(30)) for one in failed} == {"try 1"}
    assert tries == [0]
    with cache.lease("a", SIZES["a"], lambda: content("a")) as path:
        assert path.read_bytes() == content("a")


def _waiting(cache: ShardCache) -> int:
    return len(cache._coming["a"]._condition._waiters)  # type: ignore[attr-defined]


def test_who_wants_more_than_there_is_room_for_waits_until_another_lease_ends(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, LIMIT)

    def read() -> bytes:
        with cache.lease("d", SIZES["d"], lambda: content("d")) as path:
            return path.read_bytes()

    with ThreadPoolExecutor(1) as other:
        with cache.lease("c", SIZES["c"], lambda: content("c")):
            waiting = other.submit(read)
            wait_for("the other to begin", 10, lambda: "d" in cache._coming)
            assert not waiting.done()
            assert (tmp_path / "c").exists()
        assert waiting.result(30) == content("d")
    assert not (tmp_path / "c").exists()


def test_a_disk_that_others_fill_leaves_less_than_the_limit_and_where_it_is_full_another_try_may_help(
    tmp_path: Path,
) -> None:
    disk = 70
    cache = ShardCache(tmp_path, LIMIT, lambda folder: disk - sum(taken(folder)))
    for name in ("a", "b", "c"):
        with cache.lease(name, SIZES[name], lambda name=name: content(name)) as path:  # type: ignore[misc]
            assert path.read_bytes() == content(name)
    assert listed(cache) == ["c"]
    with (
        pytest.raises(StageError, match=r"70 B free, too little for a shard of 100 B.*objectStore[.]cache") as raised,
        cache.lease("e", SIZES["e"], lambda: content("e")),
    ):
        pass
    assert (raised.value.code, raised.value.reason) == (ExitCode.ENGINE_CRASHED, Reason.STORAGE_TOO_SMALL)


#: A process that reads shards in an order of its own and writes down what it fetches, or that never ends a fetch.
READER = """
import random, sys, time
from itertools import chain
from pathlib import Path
from eagle3_draft.storage.shard_cache import ShardCache

folder, log, seed, limit, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
cache, chosen = ShardCache(folder, limit), random.Random(seed)

def fetch(name):
    if seed == "stuck":
        print("fetching", flush=True)
        time.sleep(600)
    with open(log, "a") as file:
        file.write(name)
    while len(list(Path(log).parent.glob("begun-*"))) < 3:  # all want the first one while it comes
        time.sleep(0.001)
    return name.encode() * 30

(Path(log).parent / f"begun-{seed}").touch()
for name in chain(names, (chosen.choice(names) for _ in range(200))):
    with cache.lease(name, 30, lambda: fetch(name)) as path:
        assert path.read_bytes() == name.encode() * 30
"""


@pytest.fixture
def reader(tmp_path: Path) -> Callable[[str, int], subprocess.Popen[str]]:
    def start(seed: str, limit: int) -> subprocess.Popen[str]:
        words = [
            sys.executable,
            "-c",
            READER,
            str(tmp_path / "shards"),
            str(tmp_path / "log"),
            seed,
            str(limit),
            "abcdef",
        ]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    return start


def test_the_processes_of_a_pod_fetch_a_shard_once_for_all_of_them(
    tmp_path: Path, reader: Callable[[str, int], subprocess.Popen[str]]
) -> None:
    ranks = [reader(str(seed), 6 * 30) for seed in range(3)]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert sorted((tmp_path / "log").read_text()) == list("abcdef")


def test_the_processes_of_a_pod_keep_to_the_limit_together(
    tmp_path: Path, reader: Callable[[str, int], subprocess.Popen[str]]
) -> None:
    (tmp_path / "shards").mkdir()
    watching, seen = ShardCache(tmp_path / "shards", LIMIT), []
    ranks = [reader(str(seed), LIMIT) for seed in range(3)]
    while any(rank.poll() is None for rank in ranks):
        seen.append(len(listed(watching)))
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert max(seen) <= LIMIT // 30
    assert len((tmp_path / "log").read_text()) > 6, "they had to fetch some again"


def test_a_process_that_is_killed_while_it_fetches_holds_no_room_and_keeps_nobody_waiting(
    tmp_path: Path, reader: Callable[[str, int], subprocess.Popen[str]]
) -> None:
    stuck = reader("stuck", LIMIT)
    assert stuck.stdout is not None
    assert stuck.stdout.readline() == "fetching\n"
    (partial,) = (tmp_path / "shards").glob("*.partial")
    os.kill(stuck.pid, signal.SIGKILL)
    stuck.wait(30)
    cache = ShardCache(tmp_path / "shards", LIMIT)
    with cache.lease("e", SIZES["e"], lambda: content("e")) as path:
        assert path.read_bytes() == content("e")
    assert not partial.exists()
