"""Fixtures for all tests, and their markers: a test has the name of the suite whose folder it lies in."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = item.path.relative_to(TESTS).parts[0]
        item.add_marker(suite)
