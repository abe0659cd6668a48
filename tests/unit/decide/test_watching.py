"""The watch of what serves: where its numbers come from, and what becomes of them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.jobs import FetchConfig
from eagle3_api.spec import seconds
from eagle3_api.status import AHEAD, Eagle3DraftStatus, PodReading, Reading
from eagle3_operator.decide.stages import fetch
from eagle3_operator.judge import counters, promql
from eagle3_operator.observation import ServerMetrics
from unit.decide.world import World, serving_draft, stamp
from unit.samples import FACTS, converted, measured


def unwatched() -> World:
    """r1 serves, of an object that says nothing of a watch."""
    return serving_draft(World().edit(watch=None))


def read(world: World) -> Reading:
    return Reading(time=stamp(world.now), pods=[PodReading(pod="a", tokens=1000, requests=10, verify_calls=400)])


def test_what_serves_is_watched_also_where_nothing_is_said_of_it() -> None:
    world = unwatched()
    assert world.reason("DraftHealthy") == ("Unknown", Reason.WARMING_UP)
    said = world.condition("DraftHealthy").message
    assert said == (
        "the first window of 5m has not ended. Read directly from its pods, because spec.watch names no Prometheus"
    )


def test_a_prometheus_is_not_mistaken_for_the_pods_themselves() -> None:
    assert "pods themselves" not in serving_draft().window().condition("DraftHealthy").message


def test_the_servers_counters_are_kept_where_the_next_window_begins() -> None:
    world = unwatched()
    world.seen = replace(world.seen, metrics=ServerMetrics(1, reading=read(world)))
    decision = world.later(60).step()
    assert world.told.revisions[1].reading == read(world.later(-60))
    assert world.told.revisions[1].windows == []
    assert decision.requeue_after == 241


def test_a_window_that_the_servers_told_is_judged_like_any_other() -> None:
    world = unwatched().window(tokens=30_000, requests=1000, verify=29_000)
    assert world.reason("DraftHealthy") == ("Unknown", Reason.SLOWER_THAN_BASELINE)
    world.window(tokens=30_000, requests=1000, verify=29_000)
    assert world.serving == 0


def test_a_retried_revision_begins_its_watch_anew() -> None:
    world = unwatched()
    world.seen = replace(world.seen, metrics=ServerMetrics(1, reading=read(world)))
    world.settle()
    world.annotations["eagle3.dev/retry"] = "r1@again"
    world.settle()
    assert world.told.revisions[1].reading is None


# ---------------------------------------------------------------------------------------------------- a wrong clock

DAY = 86400.0


@pytest.mark.parametrize("ahead", [3600.0, 400 * DAY])
@pytest.mark.parametrize("watch", [{}, None], ids=["of a Prometheus", "of the pods"])
def test_the_watch_goes_on_at_once_where_a_clock_that_was_ahead_is_put_right(
    ahead: float, watch: dict[str, Any] | None
) -> None:
    """The next window began where the last one ended, in an hour: nobody looked until then, and a bad draft served."""
    world = serving_draft(World().edit(watch=watch)).later(ahead)
    world.window()
    world.seen = replace(world.seen, metrics=ServerMetrics(1, reading=read(world)))
    world.step()
    world.later(-ahead).seen = replace(world.seen, metrics=None)
    decision, policy = world.step(), world.obj.spec.watched
    assert policy is not None
    length = seconds(policy.window)
    assert decision.requeue_after is not None
    assert decision.requeue_after <= length + 1
    assert world.step().status.to_json() == world.status  # which is written once
    ends, now = world.now + timedelta(seconds=length), stamp(world.now)
    status = Eagle3DraftStatus.as_of(world.status, ends).revisions[1]
    if watch is None:
        assert counters.due(status, policy, ends)
        assert status.reading is not None
        assert status.reading.time == now
    else:
        assert promql.due(status, policy, ends) == (times.parse(now), times.parse(now) + timedelta(seconds=length))
    for _ in range(2):
        world.window(verify=2900)
    assert world.ready(0).serving == 0


def test_no_time_is_read_that_lies_ahead_but_those_that_are_to_come_and_a_nodes_own() -> None:
    """What is reckoned from it (a cooldown, a start, a bake, silence) would wait until the right clock is there."""
    world = rolled_back_to_a_draft("10m")
    status = json.loads(json.dumps(world.status))
    status["handled"]["drift"] = stamp(world.now)
    status["revisions"][1]["mended"] = [{"at": stamp(world.now), "runs": "another"}]
    status["revisions"][1]["bakesUntil"] = stamp(world.now)
    status["stages"][2]["progress"] = {"done": 1, "time": stamp(world.now), "heard": stamp(world.now)}
    now = world.now - timedelta(hours=2)
    found = {path for path, at in _times(Eagle3DraftStatus.as_of(status, now).to_json()) if at > now + AHEAD}
    assert found == {"revisions.bakesUntil", "stages.progress.time"}
    near = Eagle3DraftStatus.as_of(status, world.now - AHEAD).to_json()
    assert near == Eagle3DraftStatus.model_validate(status).to_json()  # two clocks that are nearly right do not quarrel


def _times(value: object, path: str = "") -> Iterator[tuple[str, datetime]]:
    """All times of a status, by the names of their fields."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _times(one, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for one in value:
            yield from _times(one, path)
    elif isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value):
        yield path, times.parse(value)


def test_what_is_kept_warm_is_kept_no_longer_than_bake_time_whatever_a_clock_once_said() -> None:
    world = serving_draft().later(3600)
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    world.ready(2).finish("probe", measured(accept=2.5, speed=130.0))
    assert world.serving == 2
    world.later(-3600).step()
    assert world.replicas[1] == 1
    bake = seconds(world.obj.spec.serve.bake_time) if world.obj.spec.serve else 0.0
    assert 0 < (world.step().requeue_after or 0) <= bake


# ---------------------------------------------------------------------------------------------------------- no data


def silent(world: World, windows: int) -> World:
    for _ in range(windows):
        world.window(tokens=0, requests=0, verify=0)
    return world


def test_no_traffic_is_reported_only_where_that_is_asked_for_and_rolls_nothing_back() -> None:
    ignored, reported = (serving_draft(World().edit(watch={"onNoData": what})) for what in ("Ignore", "Report"))
    assert silent(ignored, 3).reason("DraftHealthy") == ("Unknown", Reason.NO_TRAFFIC)
    assert silent(reported, 1).reason("DraftHealthy") == ("Unknown", Reason.NO_TRAFFIC)
    assert silent(reported, 1).reason("DraftHealthy") == ("False", Reason.NO_TRAFFIC)
    assert reported.reason() == ("False", Reason.NO_TRAFFIC)
    assert reported.reason("Stalled")[0] == "True"
    assert reported.serving == 1


def test_metrics_that_cannot_be_read_are_reported_at_once_where_that_is_asked_for() -> None:
    world = serving_draft(World().edit(watch={"onNoData": "Report"})).window(problem="connection refused")
    assert world.reason("DraftHealthy") == ("False", Reason.METRICS_UNAVAILABLE)
    assert world.serving == 1
    assert world.window().reason() == ("True", Reason.DRAFT_HEALTHY)


def test_idle_hours_take_no_measured_failure_back_while_the_other_server_is_loading() -> None:
    world = serving_draft().later(700).settle()
    for _ in range(2):
        world.window(verify=2900)
    assert world.replicas == {0: 1, 1: 1}
    for _ in range(30):
        world.window(tokens=50, requests=5, verify=44)
    assert world.told.revisions[1].state == "Rejected"
    world.ready(0)
    assert (world.serving, world.replicas) == (0, {0: 1, 1: 0})


# --------------------------------------------------------------------------------------------------------- cooldown


def rolled_back_to_a_draft(cooldown: str) -> World:
    """r2 has failed its watch, and r1 serves again: a draft too."""
    world = serving_draft(World().edit(watch={"cooldown": cooldown}))
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    world.ready(2).finish("probe", measured(accept=2.5, speed=130.0))
    assert world.serving == 2
    for _ in range(2):
        world.window(verify=2900)
    assert world.serving == 1
    return world


def test_after_a_rollback_the_watch_moves_nothing_until_the_cooldown_is_over() -> None:
    world = rolled_back_to_a_draft("10m")
    for _ in range(4):
        world.window(verify=2900)
    assert world.serving == 1
    assert world.reason("DraftHealthy")[0] == "False"
    decision = world.step()
    assert decision.requeue_after is not None
    world.later(600).settle()
    assert world.replicas[0] == 1
    world.ready(0)
    assert world.serving == 0


def test_without_a_cooldown_one_rollback_follows_the_other() -> None:
    world = rolled_back_to_a_draft("0s")
    for _ in range(2):
        world.window(verify=2900)
    world.ready(0)
    assert world.served[-3:] == [2, 1, 0]


def test_a_cooldown_holds_no_new_draft_back() -> None:
    world = rolled_back_to_a_draft("10h")
    world.edit(serve={"speculative": {"numSteps": 4, "numDraftTokens": 5}}).settle()
    world.ready(3).finish("probe", measured(accept=2.9, speed=140.0))
    assert world.serving == 3


def test_a_server_that_is_gone_is_not_held_by_a_cooldown() -> None:
    world = rolled_back_to_a_draft("10h")
    for _ in range(2):
        world.window(verify=2900)
    world.pods(1)
    world.ready(0)
    assert world.serving == 0


# ------------------------------------------------------------------------------------------------------------ drift


def drifting(**watch: str) -> World:
    """r1 has served at accept length 2.9 and now serves at 2.3: above the bar of 2.2."""
    world = serving_draft(World().edit(watch=watch))
    for _ in range(2):
        world.window()
    assert world.reason("DraftHealthy") == ("True", Reason.DRAFT_HEALTHY)
    for _ in range(2):
        world.window(verify=2900 / 2.3)
    return world


def test_drift_is_reported_and_the_draft_serves_on() -> None:
    world = drifting()
    assert world.reason("DraftHealthy") == ("False", Reason.DRIFTING)
    assert world.reason() == ("False", Reason.DRIFTING)
    assert "more than 20% below the 2.90 of this revision's first windows" in world.condition("Ready").message
    assert (world.serving, world.told.revisions[1].state) == (1, "Serving")
    assert world.reason("Stalled")[0] == "True"
    assert len(world.jobs("inspect")) == 1
    assert world.window().reason() == ("True", Reason.DRAFT_HEALTHY)


def test_a_fall_within_the_band_is_no_drift() -> None:
    assert drifting(driftBand=0.3).reason() == ("True", Reason.DRAFT_HEALTHY)  # type: ignore[arg-type]


def test_retrain_looks_at_the_data_again_and_trains_on_what_changed() -> None:
    world = drifting(onDrift="Retrain")
    assert world.reason() == ("False", Reason.INSPECTING)
    assert world.reason("Stalled")[0] == "False"
    world.finish("inspect", FACTS.model_copy(update={"data_digest": "data-2"}))
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64))
    world.ready(2).finish("probe", measured(accept=2.9, speed=140.0))
    assert world.serving == 2


def test_retrain_does_nothing_about_data_that_has_not_changed_and_asks_once_per_cooldown() -> None:
    world = drifting(onDrift="Retrain", cooldown="1h")
    world.finish("inspect")
    trained_once = len(world.completed)
    for _ in range(5):
        world.window(verify=2900 / 2.3)
    assert len(world.completed) == trained_once
    assert world.reason() == ("False", Reason.DRIFTING)
    world.later(3600).window(verify=2900 / 2.3)
    assert world.reason() == ("False", Reason.INSPECTING)


def test_without_a_cooldown_the_data_is_looked_at_once_per_window() -> None:
    world = drifting(onDrift="Retrain", cooldown="0s")
    world.finish("inspect")
    assert world.reason() == ("False", Reason.DRIFTING)
    world.window(verify=2900 / 2.3)
    assert world.reason() == ("False", Reason.INSPECTING)


def test_a_data_set_of_a_hub_is_fetched_anew_and_the_target_is_not() -> None:
    data = {"conversations": None, "dataset": {"repository": "org/chats"}}
    obj = World().edit(target={"model": "org/model"}, data=data).obj

    def config(drift: str | None) -> FetchConfig:
        link = fetch(obj, None, drift)
        assert link is not None
        assert isinstance(link.config, FetchConfig)
        return link.config

    before, after = config(None), config("2026-11-29T12:00:00Z")
    assert before.target == after.target
    assert before.dataset != after.dataset


def test_pods_that_do_not_answer_are_asked_again_when_the_next_window_has_passed() -> None:
    """Each try waits for them, and what one window could not be told the next one is."""
    pods, prometheus = unwatched(), serving_draft()
    for world, after in ((pods, 300), (prometheus, 30)):
        world.seen = replace(world.seen, metrics=ServerMetrics(1, problem="does not answer"))
        assert world.step().requeue_after == after


# ------------------------------------------------------------------------------------- what a newer operator has written


def test_what_serves_is_left_by_an_older_operator_too_that_does_not_know_all_words_of_the_status() -> None:
    """After a ``helm rollback`` the status is the newer operator's."""
    world = serving_draft(World().edit(watch={"onDrift": "Retrain"})).later(700).settle()
    words = {"phase": "Novel", "attempts": [{"stage": "novel", "inputs": "k1", "token": "1"}]}
    world.status |= words
    for condition in world.status["conditions"]:
        condition["reason"] = "Novel"
    world.status["conditions"].append({**world.status["conditions"][0], "type": "Novel"})
    world.status["stages"].append({**world.status["stages"][0], "name": "novel", "state": "Novel", "reason": "Novel"})
    for revision in world.status["revisions"]:
        revision |= {"state": "Novel", "reason": "Novel"}
    for _ in range(2):
        world.window(verify=29_000)
    world.ready(0).settle()
    assert world.serving == 0
    assert "Novel" not in {condition.type for condition in world.told.conditions}
    assert "novel" not in {stage.name for stage in world.told.stages}
