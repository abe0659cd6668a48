"""Fixtures for all tests, and their markers: a test has the name of the suite whose folder it lies in."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from eagle3_api.jobs import ConvertResult
    from published.layouts import Original
    from unit.convert.drafts import Made

pytest_plugins = ["testcluster.pytest_plugin"]

TESTS = Path(__file__).parent

# Before torch is imported anywhere: threads that spin on a shared core are slower than one, and sums of several threads
# are not the same to the bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# A change is judged by examples that are the same each time; new ones are looked for at every developer's desk. On a busy machine
# an example may take any time.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", parent=settings.get_profile("desk"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported for it stays until the end: to look through half a million objects for garbage, ten times, takes seconds."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a test that may take longer than others come first, of the rest those of many tests.

    So none is left for one worker while the other has nothing to do, where xdist is told to keep this order (see the Makefile).
    """
    tests = Counter(item.path for item in items)
    longest: dict[Path, float] = {}
    for item in items:
        item.add_marker(item.path.relative_to(TESTS).parts[0])
        mark = item.get_closest_marker("timeout")
        allowed = float(mark.args[0] if mark else item.config.getini("timeout"))
        longest[item.path] = max(allowed, longest.get(item.path, 0))
    items.sort(key=lambda item: (-longest[item.path], -tests[item.path]))


# What many modules look at and none changes. Torch is imported only where a test asks for it: most suites do without.


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A target and a draft for it, as the trainer leaves it."""
    from unit.convert import drafts

    return drafts.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def original(made: Made) -> Original:
    """That draft's weights, for whoever writes them in the layout of another trainer."""
    from unit.convert import drafts

    return drafts.original_of(made)


@pytest.fixture(scope="session")
def converted(made: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ConvertResult]:
    """That draft as SGLang loads it: its folder, and what Convert said."""
    from eagle3_draft.convert import run
    from unit.convert import drafts

    folder = tmp_path_factory.mktemp("converted") / "draft"
    return folder, run(drafts.convert_config(made, folder))


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A process group of this process alone, as what is trained in it wants one."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
