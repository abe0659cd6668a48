"""The budget of disruptions: it follows the public Service, whoever changes it or takes it away."""

from dataclasses import replace
from typing import Any

import pytest

from eagle3_operator.observation import Budget
from unit.decide.world import World, serving_draft, serving_plain


def guarded(world: World) -> int | None:
    return world.seen.budget.revision if world.seen.budget else None


def with_budget(world: World, budget: Budget | None) -> World:
    world.seen = replace(world.seen, budget=budget)
    return world


def edited(world: World, **changes: Any) -> Budget:
    assert world.seen.budget is not None
    return replace(world.seen.budget, spec={**world.seen.budget.spec, **changes})


def test_the_budget_follows_the_service() -> None:
    world = serving_plain()
    assert guarded(world) == 0
    assert guarded(serving_draft()) == 1


@pytest.mark.parametrize("changes", [{"maxUnavailable": 0}, {"selector": {"matchLabels": {"app": "a-shop"}}}])
def test_an_edited_budget_is_made_right_again(changes: dict[str, Any]) -> None:
    world = serving_draft()
    right = world.seen.budget
    assert with_budget(world, edited(world, **changes)).settle().seen.budget == right


def test_what_others_add_to_a_budget_is_left_to_them() -> None:
    world = serving_draft()
    assert with_budget(world, edited(world, aFieldOfTomorrow="Yes")).step().apply == ()


def test_a_budget_that_was_deleted_is_made_again() -> None:
    assert guarded(with_budget(serving_draft(), None).settle()) == 1


def test_a_budget_goes_when_nothing_serves_any_more() -> None:
    world = serving_draft()
    for number in (0, 1):
        world._delete("Deployment", f"kimi-r{number}")
    world._delete("Service", "kimi")
    world.step()
    assert world.serving is None
    assert world.seen.budget is None


def test_a_strangers_budget_is_not_deleted() -> None:
    world = serving_draft()
    with_budget(world, Budget({"minAvailable": 1}, None, owned=False))
    world._delete("Service", "kimi")
    assert not [deletion for deletion in world.step().delete if deletion.kind == "PodDisruptionBudget"]
