"""How many pods each revision has, as a table."""

from typing import Any

import pytest

from eagle3_api.status import RevisionStatus
from eagle3_operator.decide.capacity import Claimant, replicas
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.observation import Deployment
from unit.decide.world import START, World


def claimant(number: int, *, alone: bool, pods: int = 0) -> Claimant:
    """A revision that has so many pods already."""
    status = RevisionStatus(number=number, key=f"k{number}", plain_key="k0")
    deployment = Deployment(f"kimi-r{number}", number, status.key, START, pods)
    return Claimant(Revision(status, deployment, World().obj.spec), alone)


#: Of r0, r1 and r2, where the object asks for three pods.
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "nothing serves yet, and a candidate is tried with one": ({"candidate": claimant(0, alone=False)}, [1, 0, 0]),
    "what serves has all": ({"serving": 1}, [0, 3, 0]),
    "so does what is kept warm": ({"serving": 1, "baking": [0]}, [3, 3, 0]),
    "a candidate is tried with one beside what serves": (
        {"serving": 1, "candidate": claimant(2, alone=False)},
        [0, 3, 1],
    ),
    "one that displaces what serves has one too": ({"serving": 1, "candidate": claimant(2, alone=True)}, [0, 0, 1]),
    "a candidate that has pods already keeps them": (
        {"serving": 1, "candidate": claimant(2, alone=False, pods=2)},
        [0, 3, 2],
    ),
    "and no more than the object asks for": ({"serving": 1, "candidate": claimant(2, alone=False, pods=9)}, [0, 3, 3]),
    "what shall serve has all beside what serves still": ({"serving": 1, "goal": claimant(2, alone=False)}, [0, 3, 3]),
    "without GPUs for both it has all alone": ({"serving": 1, "goal": claimant(2, alone=True)}, [0, 0, 3]),
    "a rollback's goal comes before what is kept warm": (
        {"serving": 2, "baking": [1], "goal": claimant(0, alone=True)},
        [3, 0, 0],
    ),
    "a candidate that displaces what serves displaces the goal": (
        {"serving": 1, "goal": claimant(1, alone=False), "candidate": claimant(2, alone=True)},
        [0, 0, 1],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_revision_has_as_many_pods_as_its_part_is_worth(case: str) -> None:
    given, pods = CASES[case]
    asked: dict[str, Any] = {"serving": None, "baking": [], "goal": None, "candidate": None}
    assert replicas([0, 1, 2], count=3, **asked | given) == dict(enumerate(pods))


def test_an_object_that_is_scaled_to_nothing_serves_nothing_and_still_tries_its_candidate() -> None:
    candidate = claimant(2, alone=False)
    assert replicas([1, 2], count=0, serving=1, baking=[], goal=None, candidate=candidate) == {1: 0, 2: 1}
