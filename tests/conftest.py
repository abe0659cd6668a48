"""Fixtures for all tests, and their markers: a test has the name of the suite whose folder it lies in."""

from pathlib import Path

import pytest

pytest_plugins = ["testcluster.pytest_plugin"]

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = item.path.relative_to(TESTS).parts[0]
        item.add_marker(suite)
