"""The object store of the stages' tests, one for each file of them."""

from collections.abc import Iterator

import pytest

from objectstore import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def plain(server: Server) -> Server:
    """A server before which a stand-in may be put, to inject a fault."""
    if not server.can_be_stood_before:
        pytest.skip("what goes to the store that is named cannot be looked into")
    return server
