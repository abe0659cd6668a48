"""One cluster with the product for the tests of this folder, and one object that went the whole way on it."""

from collections.abc import Iterator

import pytest

from testbed import Testbed, loop
from testbed.elsewhere import Elsewhere, deploy


@pytest.fixture(scope="session")
def bed() -> Iterator[Testbed]:
    """The product on a real cluster with a node."""
    with Testbed.up() as made:
        yield made


@pytest.fixture(scope="session")
def elsewhere(bed: Testbed) -> Elsewhere:
    """A hub and a registry."""
    return deploy(bed)


@pytest.fixture(scope="session")
def served(bed: Testbed, elsewhere: Elsewhere) -> loop.Loop:
    """An object that is Ready, from the hub and in the registry, after the operator was killed in every phase on the way."""
    return loop.run(bed, "tiny", **elsewhere.sections())
