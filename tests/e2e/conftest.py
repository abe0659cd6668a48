"""One cluster with the product for the tests of this folder, and one object that went the whole way on it."""

from collections.abc import Iterator

import pytest

from testbed import Testbed, loop


@pytest.fixture(scope="session")
def bed() -> Iterator[Testbed]:
    """The product on a real cluster with a node."""
    with Testbed.up() as made:
        yield made


@pytest.fixture(scope="session")
def served(bed: Testbed) -> loop.Loop:
    """An object that is Ready, after the operator was killed in every phase on the way."""
    return loop.run(bed, "tiny")
