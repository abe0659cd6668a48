"""``--update-golden`` writes what the builders make now; look at the difference before you commit it."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden manifests")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite. pytest knows the option only when it is started on this folder."""
    return bool(request.config.getoption("--update-golden", default=False))
