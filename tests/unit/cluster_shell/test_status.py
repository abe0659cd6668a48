"""The status that the shell itself writes: what it says, and what it leaves as it is."""

from datetime import UTC, datetime
from typing import Any

from eagle3_api.conditions import Reason, Type
from eagle3_api.status import Condition, Eagle3DraftStatus
from eagle3_operator.cluster.status import available, stalled

THEN = "2026-11-29T10:00:00Z"
NOW = datetime(2026, 11, 29, 11, tzinfo=UTC)


def condition(type_: Type, status: Any, *, at: str = THEN) -> Condition:
    return Condition(
        type=type_, status=status, reason=Reason.PENDING, message="", observed_generation=1, last_transition_time=at
    )


def seen(*conditions: Condition, **status: Any) -> dict[str, Any]:
    stored = {"conditions": [one.to_json() for one in conditions], **status}
    return {"metadata": {"name": "kimi", "namespace": "llm", "generation": 4}, "status": stored}


def test_a_stalled_object_says_so_in_three_conditions_for_its_present_generation() -> None:
    made = Eagle3DraftStatus.model_validate(
        stalled({"metadata": {"generation": 4}}, Reason.INVALID_CONFIGURATION, "cannot be read", NOW)
    )
    assert {one.type: one.status for one in made.conditions} == {
        "Ready": "False",
        "Reconciling": "False",
        "Stalled": "True",
    }
    assert {(one.reason, one.message, one.observed_generation) for one in made.conditions} == {
        ("InvalidConfiguration", "cannot be read", 4)
    }
    assert (made.phase, made.observed_generation) == ("Stalled", 4)


def test_what_the_status_remembers_stays() -> None:
    before = seen(servingRevision=1, handled={"retry": "train@1"}, somethingOfANewerVersion={"a": 1})
    made = stalled(before, Reason.INVALID_CONFIGURATION, "cannot be read", NOW)
    assert made["servingRevision"] == 1
    assert made["handled"] == {"retry": "train@1"}
    assert made["somethingOfANewerVersion"] == {"a": 1}


def test_a_condition_that_does_not_turn_keeps_the_time_of_its_last_turn() -> None:
    before = seen(condition(Type.READY, "False"), condition(Type.STALLED, "False"))
    made = stalled(before, Reason.INVALID_CONFIGURATION, "cannot be read", NOW)
    times = {one["type"]: one["lastTransitionTime"] for one in made["conditions"]}
    assert times["Ready"] == THEN
    assert times["Stalled"] == "2026-11-29T11:00:00Z"


def test_the_same_problem_seen_again_changes_nothing() -> None:
    once = stalled(seen(), Reason.INVALID_CONFIGURATION, "cannot be read", NOW)
    again = stalled(
        {"metadata": {"generation": 4}, "status": once},
        Reason.INVALID_CONFIGURATION,
        "cannot be read",
        NOW.replace(hour=12),
    )
    assert again == once


def test_the_other_conditions_stay_in_the_order_in_which_people_read_them() -> None:
    before = seen(
        condition(Type.DRAFT_TRAINED, "Unknown"), condition(Type.ACCEPTED, "True"), condition(Type.READY, "True")
    )
    made = stalled(before, Reason.INVALID_CONFIGURATION, "cannot be read", NOW)
    assert [(one["type"], one["status"]) for one in made["conditions"]] == [
        ("Ready", "False"),
        ("Accepted", "True"),
        ("DraftTrained", "Unknown"),
        ("Reconciling", "False"),
        ("Stalled", "True"),
    ]


def test_where_nobody_looked_at_the_servers_none_is_said_to_be_well() -> None:
    """All of them may have died since. An outage that was told goes on being told: somebody was called for it."""
    before = seen(condition(Type.SERVER_AVAILABLE, "True"), condition(Type.SPECULATION_ACTIVE, "False"))
    made = stalled(before, Reason.INTERNAL_ERROR, "a defect", NOW)
    said = {one["type"]: one["status"] for one in made["conditions"]}
    assert (said["ServerAvailable"], said["SpeculationActive"]) == ("Unknown", "False")
    assert "DraftHealthy" not in said
    assert available(made | {"replicas": 2}) is None
    assert stalled({"metadata": {"generation": 4}, "status": made}, Reason.INTERNAL_ERROR, "a defect", NOW) == made
