"""How many pods each revision has, as a table."""

from typing import Any

import pytest

from eagle3_api.status import RevisionStatus
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decide.serving.capacity import Claimant, replicas
from eagle3_operator.observation import Deployment
from unit.decide.world import START, World


def claimant(number: int, *, pods: int = 0, ready: int = 0, takes_place: bool = False) -> Claimant:
    """A revision that has so many pods already."""
    status = RevisionStatus(number=number, key=f"k{number}", plain_key="k0")
    deployment = Deployment(f"kimi-r{number}", number, status.key, START, pods, ready_replicas=ready)
    return Claimant(Revision(status, deployment, World().obj.spec), takes_place)


#: Of r0, r1 and r2, where the object asks for three pods.
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "nothing serves yet, and a candidate is tried with one": ({"candidate": claimant(0)}, [1, 0, 0]),
    "what serves has all": ({"serving": 1}, [0, 3, 0]),
    "what is kept warm keeps what it has": ({"serving": 1, "baking": {0: 2}}, [2, 3, 0]),
    "and no more than the object asks for by now": ({"serving": 1, "baking": {0: 9}}, [3, 3, 0]),
    "a candidate is tried with one beside what serves": ({"serving": 1, "candidate": claimant(2)}, [0, 3, 1]),
    "one that takes its place has one of its pods' instead": (
        {"serving": 1, "candidate": claimant(2, takes_place=True)},
        [0, 2, 1],
    ),
    "a candidate that has pods already keeps them": ({"serving": 1, "candidate": claimant(2, pods=2)}, [0, 3, 2]),
    "and no more than the object asks for": ({"serving": 1, "candidate": claimant(2, pods=9)}, [0, 3, 3]),
    "what shall serve has all beside what serves still": ({"serving": 1, "goal": claimant(2)}, [0, 3, 3]),
    "without GPUs for both, one goes for each that is ready": (
        {"serving": 1, "goal": claimant(2, ready=2, takes_place=True)},
        [0, 1, 3],
    ),
    "until all are": ({"serving": 1, "goal": claimant(2, ready=3, takes_place=True)}, [0, 0, 3]),
    "what is kept warm goes first": (
        {"serving": 2, "baking": {1: 3}, "goal": claimant(0, takes_place=True)},
        [3, 0, 2],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_revision_has_as_many_pods_as_its_part_is_worth(case: str) -> None:
    given, pods = CASES[case]
    asked: dict[str, Any] = {"serving": None, "baking": {}, "goal": None, "candidate": None}
    assert replicas([0, 1, 2], count=3, **asked | given) == dict(enumerate(pods))


def test_an_object_that_is_scaled_to_nothing_serves_nothing_and_still_tries_its_candidate() -> None:
    assert replicas([1, 2], count=0, serving=1, baking={}, goal=None, candidate=claimant(2)) == {1: 0, 2: 1}
