from typing import Any

import pytest

from testcluster import guard


def test_a_cluster_with_the_marker_is_taken() -> None:
    assert guard.refusal(guard.marker()) is None


@pytest.mark.parametrize(
    ("config_map", "words"),
    [
        (None, "it has no ConfigMap kube-system/eagle3-test-cluster"),
        ({}, "its ConfigMap kube-system/eagle3-test-cluster says purpose None, not 'tests'"),
        ({"data": None}, "its ConfigMap kube-system/eagle3-test-cluster says purpose None, not 'tests'"),
        (
            {"data": {"purpose": "production"}},
            "its ConfigMap kube-system/eagle3-test-cluster says purpose 'production', not 'tests'",
        ),
    ],
    ids=["no marker", "no data", "empty data", "another purpose"],
)
def test_every_other_cluster_is_refused_with_the_reason(config_map: dict[str, Any] | None, words: str) -> None:
    assert guard.refusal(config_map) == words
