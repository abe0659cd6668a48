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


# A change is judged by examples that are the same each time; new ones are looked for at every developer's desk.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = item.path.relative_to(TESTS).parts[0]
        item.add_marker(suite)
