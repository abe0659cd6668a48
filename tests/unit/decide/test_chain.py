"""The stages before serving."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    CONFIG_ANNOTATION,
    CleanConfig,
    ExtractConfig,
    InspectConfig,
    JobEnvelope,
    Progress,
    Report,
    StageName,
    TrainConfig,
)
from eagle3_operator.decide.stages import Attempts, after_inspection, clean
from eagle3_operator.decision import Decision, Delete, Manifest
from eagle3_operator.observation import Claim, Pod, Service
from unit.decide.world import World, serving_draft, stamp, trained
from unit.samples import EXTRACTED, FACTS, KIMI, MODELS, SETTINGS, TRAINED, converted, measured


def test_a_new_object_is_inspected_and_says_so() -> None:
    world = World().settle()
    assert [job.stage for job in world.seen.jobs.values()] == ["inspect"]
    assert world.reason() == ("False", Reason.INSPECTING)
    assert world.told.phase == "Inspecting"
    assert world.reason("Accepted") == ("Unknown", Reason.INSPECTING)


def test_every_condition_that_applies_is_present_from_first_sight() -> None:
    kinds = [c.type for c in World().settle().told.conditions]
    assert kinds == [
        "Ready",
        "Accepted",
        "FeaturesReady",
        "DraftTrained",
        "DraftConverted",
        "RevisionProven",
        "ServerAvailable",
        "SpeculationActive",
        "DraftHealthy",
        "Reconciling",
        "Stalled",
    ]


def test_an_object_without_serve_has_no_serving_conditions_and_is_ready_when_converted() -> None:
    world = trained(World().edit(serve=None, watch=None))
    kinds = {c.type for c in world.told.conditions}
    assert not kinds & {"RevisionProven", "ServerAvailable", "SpeculationActive", "DraftHealthy"}
    assert world.reason() == ("True", Reason.ARTIFACT_PUBLISHED)
    assert world.told.artifact is not None
    assert world.told.artifact.digest == "d" * 64
    assert not world.seen.deployments


def test_an_adopted_checkpoint_skips_extraction_and_training() -> None:
    world = World().edit(draft={"checkpoint": "/drafts/mine"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"}))
    assert [job.stage for job in world.seen.jobs.values()] == ["inspect", "convert"]
    kinds = {c.type for c in world.told.conditions}
    assert not kinds & {"FeaturesReady", "DraftTrained"}


def test_features_in_an_object_store_need_no_claim_and_the_checkpoints_lie_with_the_drafts() -> None:
    store = {"url": "s3://bucket/team", "endpoint": "https://s3.example.com", "secret": "bucket", "cache": "10Gi"}
    world = World().edit(storage={"features": {"objectStore": store}, "drafts": {"claim": "drafts"}})
    world.seen = replace(world.seen, claims={name: c for name, c in world.seen.claims.items() if name == "drafts"})
    world = trained(world)
    links = after_inspection(world.obj, FACTS, Attempts())
    configs = {link.stage: link.config for link in links}
    train, extract = configs[StageName.TRAIN], configs[StageName.EXTRACT]
    assert isinstance(train, TrainConfig)
    assert isinstance(extract, ExtractConfig)
    assert train.object_store == extract.object_store
    assert train.object_store is not None
    assert (train.object_store.url, train.object_store.cache_bytes) == ("s3://bucket/team", 10 * 2**30 * 9 // 10)
    assert train.scratch == f"{train.folder}/.scratch"
    removed = clean(world.obj, links[0], links[1]).config
    assert isinstance(removed, CleanConfig)
    assert removed.object_store == extract.object_store


def test_the_stages_follow_one_another() -> None:
    world = trained()
    assert [name.split("-")[1] for name in world.created[:4]] == ["inspect", "extract", "train", "convert"]
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)


def test_the_end_of_a_training_is_told_with_its_measure_its_speed_and_its_report() -> None:
    world = trained()
    told = next(event for event in world.events if event.reason == "TrainSucceeded")
    folder = next(stage.artifact for stage in world.told.stages if stage.name == "train")
    assert told.message == (
        "expected accept length 2.74 with 3 draft steps on 20 held-out conversations, after step 80 of 100; "
        f"108.0 M tokens/h, 2% of the time waiting for data; report in {folder}/report.html"
    )


def test_the_end_of_a_training_warns_where_gpus_stood_idle() -> None:
    idle = TRAINED.model_copy(update={"busy": 0.5})
    world = World().settle().finish("inspect").finish("extract").finish("train", idle)
    told = next(event for event in world.events if event.reason == "TrainSucceeded")
    assert told.type == "Warning"
    assert "waiting for data: the GPUs stand idle for 50% of the time" in told.message


def test_the_end_of_a_training_warns_where_it_made_no_better_draft_than_it_began_with() -> None:
    vain = TRAINED.model_copy(update={"best_step": 0})
    world = World().settle().finish("inspect").finish("extract").finish("train", vain)
    told = next(event for event in world.events if event.reason == "TrainSucceeded")
    assert told.type == "Warning"
    assert "no step made the draft of draft.initFrom better, which is published as it was" in told.message


@pytest.mark.parametrize(
    ("extract", "data", "parameters", "told"),
    [
        ({"gpus": 8}, {}, 32 * 10**9, "8 GPUs, about 2.29 TiB at fp8, about 39m on H200s (estimated from 87.8 M tokens)"),
        ({"gpus": 8, "shards": 2}, {}, 32 * 10**9, "2 pods of 8 GPUs, about 2.29 TiB at fp8, about 20m on H200s"),
        ({"gpus": 8}, {"regenerate": {"enabled": True}}, 32 * 10**9, "about 2.8h on H200s"),
        ({"gpus": 8}, {}, None, "8 GPUs, about 2.29 TiB at fp8 (estimated from 87.8 M tokens)"),
        ({"gpus": 0}, {}, 32 * 10**9, "0 GPUs, about 2.29 TiB at fp8 (estimated from 87.8 M tokens)"),
        ({"gpus": 8}, {}, 10**6, "8 GPUs, about 2.29 TiB at fp8 (estimated from 87.8 M tokens)"),
    ],
    ids=["a pod", "two pods", "answers", "a target of unknown size", "no GPU", "less than a minute"],
)  # fmt: skip
def test_the_start_of_an_extraction_tells_its_gpus_bytes_and_hours(
    extract: dict[str, Any], data: dict[str, Any], parameters: int | None, told: str
) -> None:
    facts = KIMI.model_copy(
        update={
            "expected_tokens": 87_800_000,
            "feature_bytes": round(2.29 * 2**40),
            "active_parameters": parameters,
        }
    )
    world = World().edit(extract={"dtype": "fp8", **extract}, data=data).settle().finish("inspect", facts)
    started = next(event.message for event in world.events if event.reason == "ExtractStarted")
    assert started.startswith(f"Job {world.job('extract').name}: ")
    assert told in started


def test_the_end_of_an_extraction_tells_what_was_dropped_and_what_was_cut() -> None:
    lost = EXTRACTED.model_copy(update={"dropped": {"duplicate": 3}, "cut": 12, "lost_tokens": 3400})
    world = World().settle().finish("inspect").finish("extract", lost)
    told = next(event for event in world.events if event.reason == "ExtractSucceeded")
    assert told.message == (
        "980 conversations and 20 held out, 400,000 tokens, 12.11 GiB, 9,000 tokens/s per pod; 3 dropped, "
        "12 cut at data.maxLength, which lost 3,400 tokens"
    )


@pytest.mark.parametrize(("cut", "kind"), [(150, "Normal"), (480, "Warning")])
def test_the_end_of_an_extraction_warns_where_a_length_cut_many_answers(cut: int, kind: str) -> None:
    answered = EXTRACTED.model_copy(update={"answers": 1000, "cut_answers": cut})
    world = World().settle().finish("inspect").finish("extract", answered)
    told = next(event for event in world.events if event.reason == "ExtractSucceeded")
    assert told.type == kind
    assert f"1000 answers generated by the target, {cut} of them cut at a limit" in told.message
    assert ("48% of the answers" in told.message and "raise data.regenerate.maxTokens" in told.message) is (cut == 480)


def test_a_finished_stage_is_not_run_again_when_its_job_is_gone() -> None:
    world = World().settle().finish("inspect").finish("extract")
    world._delete("Job", world.job("extract").name)
    world.settle()
    assert world.jobs("extract") == []
    assert world.reason("FeaturesReady")[0] == "True"


def test_a_complete_job_without_a_report_is_run_again() -> None:
    world = World().settle()
    job = world.job("inspect")
    world._put_job(replace(job, complete=True))
    world.settle()
    assert world.created == [job.name, job.name]
    assert world.reason("Accepted")[0] == "Unknown"


def test_a_failed_stage_stalls_the_object_with_its_own_words_and_is_left_alone() -> None:
    world = World().settle()
    world.fail("inspect", Reason.STORAGE_TOO_SMALL, "features need 4.58 TiB; claim 'nvme' has 3.1 TiB free.", code=14)
    assert world.reason("Accepted") == ("False", Reason.STORAGE_TOO_SMALL)
    assert world.reason() == ("False", Reason.STORAGE_TOO_SMALL)
    assert world.reason("Stalled") == ("True", Reason.STORAGE_TOO_SMALL)
    assert world.reason("Reconciling")[0] == "False"
    assert "4.58 TiB" in world.condition("Ready").message
    command = f"kubectl annotate e3d kimi -n llm eagle3.dev/retry=inspect@{stamp(world.now)} --overwrite"
    assert world.condition("Ready").message.endswith(f"after any other repair, run: {command}")
    world.later(86400).settle()
    assert len(world.created) == 1


def test_a_stage_that_fails_for_what_another_has_made_has_that_one_retried() -> None:
    world = World().settle().finish("inspect").finish("extract")
    message = "the features in /eagle3/features/llm/kimi are corrupt: a byte flipped. Delete their folder"
    world.fail("train", Reason.CORRUPT_ARTIFACT, message, retry=StageName.EXTRACT)
    command = f"kubectl annotate e3d kimi -n llm eagle3.dev/retry=extract@{stamp(world.now)} --overwrite"
    assert world.condition("DraftTrained").message == f"{message}. To run that stage again: {command}"


def test_a_job_that_a_sidecar_of_somebody_elses_keeps_from_ending_is_told_after_two_minutes() -> None:
    world = World().settle()
    pod = Pod(
        "kimi-inspect-x",
        world.now,
        "Running",
        started_at=world.now,
        exit_code=0,
        finished_at=world.now,
        held_by="istio-proxy",
    )
    world._put_job(replace(world.job("inspect"), pods=(pod,)))
    assert world.settle().reason("Accepted") == ("Unknown", Reason.INSPECTING)
    world.later(121).settle()
    assert world.reason("Accepted") == ("Unknown", Reason.HELD_BY_SIDECAR)
    assert (
        "but container istio-proxy, which was injected into it, keeps running. Have it injected as"
        in world.condition("Ready").message
    )


def test_a_job_that_a_sidecar_holds_is_made_anew_where_the_object_keeps_the_sidecar_away() -> None:
    world = World().settle()
    name = world.job("inspect").name
    pod = Pod("kimi-inspect-x", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("inspect"), pods=(pod,)))
    world.edit(placement={"labels": {"mesh": "none"}}).settle()
    assert world.created.count(name) == 1, "it still works"
    world._put_job(replace(world.job("inspect"), pods=(replace(pod, exit_code=0, held_by="istio-proxy"),)))
    world.settle()
    assert world.created.count(name) == 2


@pytest.mark.parametrize(("by", "resumed"), [("kueue", False), (None, True), ("eagle3-operator", True)])
def test_only_what_was_suspended_for_the_object_is_resumed_with_it(by: str | None, resumed: bool) -> None:
    world = World().settle()
    world._put_job(replace(world.job("inspect"), suspended=True, suspended_by=by, pods=()))
    world.settle()
    assert world.job("inspect").suspended is not resumed
    if not resumed:
        assert world.reason("Accepted") == ("Unknown", Reason.SUSPENDED)
        assert "was suspended by kueue" in world.condition("Ready").message


def test_a_retry_gives_a_failed_stage_another_chance_once() -> None:
    world = World().settle().finish("inspect")
    world.fail("extract", Reason.DATA_UNREADABLE, "line 7 is not JSON.")
    first = world.job("extract").name
    world.annotations["eagle3.dev/retry"] = "extract@1"
    world.settle()
    # The retry also inspects anew, because the data may have been mended
    world.finish("inspect")
    assert world.created.count(first) == 2
    world.fail("extract", Reason.DATA_UNREADABLE, "line 9 is not JSON.")
    world.later(3600).settle()
    assert world.created.count(first) == 2
    assert world.told.handled.retry == "extract@1"


def test_a_retry_of_a_finished_stage_is_a_new_attempt_under_a_new_key() -> None:
    world = World().settle().finish("inspect").finish("extract")
    first = world.told.stages[1].key
    world.annotations["eagle3.dev/retry"] = "extract@again"
    world.settle()
    world.finish("inspect")
    assert world.told.stages[1].key != first
    assert world.told.stages[1].attempt == "again"
    assert world.job("extract").key == world.told.stages[1].key


def test_a_retry_of_one_draft_is_none_of_another() -> None:
    world = World().edit(draft={"checkpoint": "/drafts/mine"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"})).finish("convert")
    world.annotations["eagle3.dev/retry"] = "convert@again"
    world.settle().finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"})).finish("convert")
    assert [one.token for one in world.told.attempts] == ["again"]
    trained(world.edit(draft={"checkpoint": None}))
    assert world.job("convert").key == trained().job("convert").key


def test_a_retry_that_a_former_version_wrote_down_keeps_its_key() -> None:
    world = World().settle().finish("inspect").finish("extract")
    world.annotations["eagle3.dev/retry"] = "extract@again"
    world.settle().finish("inspect").finish("extract")
    before, attempts = world.told.stages, world.told.attempts
    assert [(one.stage, one.token) for one in attempts] == [("extract", "again")]
    del world.status["attempts"]
    world.settle()
    assert (world.told.stages, world.told.attempts) == (before, attempts)


@pytest.mark.parametrize("asked", ["trian@1", "r9@1", "train", "train@", "publish@1"])
def test_a_retry_that_names_nothing_is_told_once_and_does_nothing(asked: str) -> None:
    world = trained()
    before, created = world.told, len(world.created)
    world.annotations["eagle3.dev/retry"] = asked
    world.settle().later(700).settle()
    (event,) = [one for one in world.events if one.reason == "RetryUnknown"]
    assert event.type == "Warning"
    assert f"eagle3.dev/retry={asked} was ignored: it matches no stage or revision" in event.message
    assert event.message.endswith("This object has: inspect, extract, train, clean, convert, r0")
    assert (world.told.stages, len(world.created)) == (before.stages, created)


def test_changed_data_is_extracted_anew_and_the_former_job_goes() -> None:
    world = World().settle().finish("inspect")
    old = world.job("extract").name
    world.edit(data={"maxLength": 1024}).settle()
    world.finish("inspect")
    assert world.job("extract").name != old


def test_editing_the_speculation_retrains_nothing() -> None:
    world = serving_draft()
    created = list(world.created)
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    assert [name for name in world.created[len(created) :] if "probe" not in name] == []


def test_a_corrected_placement_helps_a_pending_job_and_leaves_a_running_one() -> None:
    world = World().settle().finish("inspect")
    job = world.job("extract")
    pending = Pod("p", world.now, unschedulable="0/1 nodes match", unschedulable_since=world.now)
    world._put_job(replace(job, pods=(pending,)))
    world.settle()
    assert world.reason("FeaturesReady") == ("Unknown", Reason.UNSCHEDULABLE)
    said = "finds no node: 0/1 nodes match. Free GPUs or quota, or correct placement."
    assert said in world.condition("Ready").message
    world.edit(extract={"placement": {"nodeSelector": {"gpu": "h200"}}}).settle()
    assert world.created.count(job.name) == 2
    world._put_job(replace(world.job("extract"), pods=(Pod("q", world.now, "Running", started_at=world.now),)))
    world.edit(extract={"placement": {"nodeSelector": {"gpu": "b200"}}}).settle()
    assert world.created.count(job.name) == 2


@pytest.mark.parametrize(
    ("stage", "reason", "mended"),
    [
        ("inspect", Reason.STORAGE_TOO_SMALL, {"storage": {"features": {"claim": "larger"}}}),
        ("inspect", Reason.TARGET_UNREADABLE, {"target": {"model": "/models/there"}}),
        ("extract", Reason.OUT_OF_MEMORY, {"extract": {"placement": {"memory": "200Gi"}}}),
        ("train", Reason.NON_FINITE, {"train": {"learningRate": 1e-5}}),
    ],
)
def test_what_is_corrected_in_the_spec_is_tried_at_once_as_the_message_says(
    stage: str, reason: Reason, mended: dict[str, Any]
) -> None:
    world = World().settle()
    for before in ("inspect", "extract"):
        if before == stage:
            break
        world.finish(before)
    world.fail(stage, reason, "it could not")
    assert "A correction of the spec is tried at once" in world.condition("Ready").message
    made = len(world.created)
    claims = {**world.seen.claims, "larger": Claim("larger", 10**14)}
    world.seen = replace(world.seen, claims=claims)
    world.edit(**mended).settle()
    assert [name for name in world.created[made:] if f"-{stage}-" in name]


def test_progress_is_shown_with_the_time_that_is_left() -> None:
    world = World().settle().finish("inspect")
    progress = Progress(done=0.62, seconds_left=3.4 * 3600, message="step 62 of 100", time=world.now.timestamp())
    running = Pod("p", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(running,), progress=progress))
    world.settle()
    assert world.told.progress == "62% 3.4h left"
    assert world.condition("FeaturesReady").message == "62% step 62 of 100"


def test_progress_of_less_than_a_percent_is_a_line_for_those_who_watch_once_a_minute() -> None:
    world = World().settle().finish("inspect")
    running = Pod("p", world.now, "Running", started_at=world.now)

    def shown(done: float, seconds: int) -> str:
        world.later(seconds)
        progress = Progress(done=done, message=f"{done:.4f}", time=world.now.timestamp())
        world._put_job(replace(world.job("extract"), pods=(running,), progress=progress))
        return world.settle().condition("FeaturesReady").message

    assert shown(0.101, 0) == "10% 0.1010"
    assert shown(0.102, 10) == "10% 0.1010"
    assert shown(0.110, 10) == "11% 0.1100"
    assert shown(0.111, 59) == "11% 0.1100"
    assert shown(0.112, 1) == "11% 0.1120"


def test_a_job_without_progress_is_resumed_once_and_then_failed() -> None:
    """Row 41."""
    world = World().settle().finish("inspect")
    name = world.job("extract").name
    for expected in (2, 2):
        world._put_job(replace(world.job("extract"), pods=(Pod("p", world.now, "Running", started_at=world.now),)))
        world.settle().later(1801).settle()
        assert world.created.count(name) == expected
    assert world.jobs("extract") == []
    assert world.reason("FeaturesReady") == ("False", Reason.JOB_STALLED)


@pytest.mark.parametrize("off", [-7200, 0, 7200], ids=["late", "right", "early"])
def test_a_job_on_a_node_with_another_time_is_ended_when_it_is_silent_and_not_before(off: float) -> None:
    world = World().settle().finish("inspect")
    job = world.job("extract")
    pods = (Pod("p", world.now, "Running", started_at=world.now),)
    for step in range(1, 5):
        said = Progress(done=step / 10, message="", time=world.later(1000).now.timestamp() + off)
        world._put_job(replace(job, pods=pods, progress=said))
        world.settle().later(500).settle()
    assert world.created.count(job.name) == 1
    world.later(1301).settle()
    assert world.created.count(job.name) == 2


def test_a_pod_that_waited_long_for_its_gpus_has_the_whole_timeout_once_it_runs() -> None:
    world = World().settle().finish("inspect")
    name, created = world.job("extract").name, world.now
    running = Pod("p", created, "Running", started_at=world.later(2 * 3600).now)
    world._put_job(replace(world.job("extract"), pods=(running,)))
    world.settle().later(1799).settle()
    assert world.created.count(name) == 1
    world.later(2).settle()
    assert world.created.count(name) == 2


@pytest.mark.parametrize("stage", ["inspect", "extract"])
def test_a_job_whose_report_is_always_lost_is_made_anew_twice_and_then_failed(stage: str) -> None:
    """Something removes finished pods at once, or takes their termination messages away."""
    world = World().settle()
    if stage != "inspect":
        world.finish("inspect")
    name = world.job(stage).name
    for made in (2, 3):
        world.complete(stage)
        assert world.created.count(name) == made
        assert world.reason("Stalled")[0] == "False"
    world.complete(stage).later(86400).settle()
    assert world.created.count(name) == 3
    assert name not in world.seen.jobs
    assert world.reason() == ("False", Reason.JOB_FAILED)
    assert world.reason("Stalled") == ("True", Reason.JOB_FAILED)
    said = world.condition("Ready").message
    assert f"Job {name} completed 3 times, but its report is lost. See what removes its pods" in said
    world.annotations["eagle3.dev/retry"] = said.split("eagle3.dev/retry=")[1].split()[0]
    if stage != "inspect":
        world.settle().finish("inspect")
    world.settle().finish(stage)
    assert {s.name: s.state for s in world.told.stages}[StageName(stage)] == "Succeeded"


def test_a_failed_job_that_is_not_let_go_is_not_counted_on() -> None:
    world = World().settle()
    world.complete("inspect").complete("inspect")
    world.refuses = ("Job/.*",)
    world.complete("inspect")
    lost = [stage.lost for stage in world.told.stages]
    assert world.later(3600).settle().told.stages[0].lost == lost[0] == 3


def test_a_pod_that_is_not_started_on_its_node_for_half_an_hour_is_told_of() -> None:
    """A volume that cannot be mounted, or that another node has: the pod stays in ContainerCreating, of which only Events tell."""
    world = World().settle().finish("inspect")
    pod = Pod("kimi-extract-0", world.now, node="gpu-1", placed_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,)))
    assert world.later(1800).step().requeue_after == 1.0, "nobody calls when the half hour is over"
    assert world.reason() == ("False", Reason.EXTRACTING)
    world.later(1).settle()
    assert world.reason() == ("False", Reason.POD_NOT_STARTED)
    assert world.reason("Stalled")[0] == "False", "its node tries on"
    assert world.reason("Reconciling") == ("True", Reason.POD_NOT_STARTED)
    said = world.condition("FeaturesReady").message
    assert said.startswith(
        "pod kimi-extract-0 was scheduled to node gpu-1 at 2026-11-29T12:00:00Z, but its container has not started. "
    )
    assert "kubectl get events" in said
    why = "claim drafts can be mounted by one node at a time, and gpu-2 has it, for pod llama-r1-x of Eagle3Draft llama"
    world._put_job(replace(world.job("extract"), pods=(replace(pod, kept_from=why),)))
    assert f"but its container has not started: {why}. " in world.settle().condition("FeaturesReady").message
    told = world.status
    assert world.later(5000).settle().status == told, "its words do not change with the time"
    assert world.later(500).settle().reason("Stalled") == ("True", Reason.POD_NOT_STARTED), "two hours are for a person"
    assert world.told.phase == "Stalled", "which the alert of the chart goes by"
    assert len(world.created) == 2, "it is left: it may come yet"
    world._put_job(replace(world.job("extract"), pods=(replace(pod, phase="Running", started_at=world.now),)))
    assert world.settle().reason() == ("False", Reason.EXTRACTING)


def test_a_conversion_that_hangs_while_it_runs_the_target_keeps_no_gpus() -> None:
    """Row 41."""
    world = World().edit(draft={"checkpoint": "/drafts/mine"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"}))
    name = world.job("convert").name
    world._put_job(replace(world.job("convert"), pods=(Pod("p", world.now, "Running", started_at=world.now),)))
    world.settle().later(1801).settle()
    assert world.created.count(name) == 2


def test_what_a_draft_and_its_target_agree_on_is_told_when_it_is_converted() -> None:
    world = World().settle()
    for stage in ("inspect", "extract", "train"):
        world.finish(stage)
    world.finish(
        "convert",
        converted().model_copy(update={"accuracy": [0.747, 0.7], "chance": 0.011, "equal_proposals": [0.998, 0.985]}),
    )
    (told,) = [event.message for event in world.events if event.reason == "ConvertSucceeded"]
    assert "74.7% of its first proposals are the target's, 1.1% would be by chance" in told
    assert told.endswith("at each step at least 98.5% of its proposals equal those of its training")


def test_a_pod_killed_for_its_memory_is_told_so() -> None:
    """Row 39."""
    world = World().settle().finish("inspect")
    pod = Pod("p", world.now, "Failed", started_at=world.now, exit_code=137, oom_killed=True, finished_at=world.now)
    job = world.job("extract")
    world._put_job(replace(job, failed=True, failure_reason="BackoffLimitExceeded", pods=(pod,)))
    world.settle()
    assert world.reason("FeaturesReady") == ("False", Reason.OUT_OF_MEMORY)


def test_a_job_that_failed_is_told_by_the_pod_that_ended_last_and_shows_no_progress_any_more() -> None:
    world = World().settle().finish("inspect")
    begun, half = world.now, Progress(done=0.5, message="half of it", time=world.now.timestamp())
    world._put_job(replace(world.job("extract"), pods=(Pod("p", begun, "Running", started_at=begun),), progress=half))
    world.settle().later(60)
    last = Pod("first-made", begun, "Failed", started_at=begun, exit_code=7, finished_at=world.now)
    other = Pod("x", begun + timedelta(seconds=1), "Failed", exit_code=8, finished_at=begun + timedelta(seconds=9))
    world._put_job(replace(world.job("extract"), failed=True, finished_at=world.now, pods=(last, other)))
    world.settle()
    assert "pod first-made ended with code 7" in world.condition("FeaturesReady").message
    extract = next(stage for stage in world.told.stages if stage.name is StageName.EXTRACT)
    assert (extract.progress, extract.finished_at) == (None, stamp(world.now))


def test_an_image_that_cannot_be_pulled_is_told_in_the_kubelets_words() -> None:
    """Row 40."""
    world = World().settle().finish("inspect")
    pod = Pod("p", world.now, waiting_reason="ImagePullBackOff", waiting_message='Back-off pulling image "x"')
    world._put_job(replace(world.job("extract"), pods=(pod,)))
    world.settle()
    assert world.reason() == ("False", Reason.IMAGE_PULL)
    assert 'Back-off pulling image "x"' in world.condition("Ready").message


def test_suspend_starts_nothing_and_suspends_what_runs() -> None:
    world = World().settle().finish("inspect")
    world.edit(suspend=True).settle()
    assert world.job("extract").suspended
    assert world.told.phase == "Suspended"
    world.edit(suspend=False).settle()
    assert not world.job("extract").suspended


@pytest.mark.parametrize("queue", [None, "gpus"])
def test_suspend_frees_the_gpus_also_where_something_is_looked_at_first(queue: str | None) -> None:
    world = World().edit(queueName=queue).settle().finish("inspect")
    running = Pod("p", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("extract"), suspended=False, pods=(running,)))
    world.settle().edit(data={"maxLength": 1024}, suspend=True).settle()
    assert [job.suspended for job in world.jobs("extract")] == ([True] if queue is None else [])
    assert world.reason() == ("False", Reason.SUSPENDED)
    world.edit(data={"maxLength": None}, suspend=False).settle().finish("inspect")
    assert world.job("extract").suspended == (queue is not None), "Kueue resumes its own"


def test_suspend_frees_the_gpus_also_where_a_claim_is_gone() -> None:
    world = World().settle().finish("inspect")
    world.seen = replace(world.seen, claims={"drafts": Claim("drafts", 1)})
    world.edit(suspend=True).settle()
    assert world.job("extract").suspended


def test_without_the_claim_nothing_is_started_and_the_claim_is_named() -> None:
    world = World()
    world.seen = replace(world.seen, claims={"drafts": Claim("drafts", 1)})
    world.settle()
    assert world.created == []
    assert world.reason() == ("False", Reason.STORAGE_UNAVAILABLE)
    assert "'features'" in world.condition("Accepted").message
    assert world.last is not None
    assert world.last.requeue_after == 30.0
    world.seen = replace(world.seen, claims={**world.seen.claims, "features": Claim("features", 1)})
    world.settle()
    assert world.job("inspect")


@pytest.mark.parametrize("root", ["features", "drafts"])
def test_on_a_claim_of_the_users_that_is_being_deleted_nothing_is_started(root: str) -> None:
    world = World()
    going = replace(world.seen.claims[root], terminating=True)
    world.seen = replace(world.seen, claims={**world.seen.claims, root: going})
    world.settle()
    assert world.created == []
    assert world.reason() == ("False", Reason.STORAGE_UNAVAILABLE)
    assert f"storage.{root}: PersistentVolumeClaim '{root}' is being deleted" in world.condition("Accepted").message


def test_a_claim_that_somebody_else_made_is_not_taken_for_ours() -> None:
    world = World().edit(storage={"features": {"claim": None, "size": "1Ti"}})
    theirs = Claim("kimi-features", 10**13, owned=None)
    world.seen = replace(world.seen, claims={**world.seen.claims, theirs.name: theirs})
    world.settle()
    assert world.created == []
    assert world.reason("Accepted") == ("False", Reason.NAME_CONFLICT)
    assert "storage.features: claim 'kimi-features' exists" in world.condition("Accepted").message
    world.seen = replace(world.seen, claims={**world.seen.claims, theirs.name: replace(theirs, owned=True)})
    world.edit(deletionPolicy="Delete").settle()
    assert world.job("inspect")


def test_a_prometheus_that_nobody_has_is_told_before_anything_is_started_and_stops_nothing_later() -> None:
    nameless = SETTINGS.model_copy(update={"prometheus": {}})
    world = World(settings=nameless).settle()
    assert world.created == []
    assert world.reason() == world.reason("Accepted") == ("False", Reason.INVALID_CONFIGURATION)
    assert "no Prometheus 'default' (prometheus.servers: none)" in world.condition("Accepted").message
    world.edit(watch={"prometheus": None}).settle()
    assert world.job("inspect")
    begun = World().settle().finish("inspect")
    begun.settings = nameless
    begun.settle()
    assert begun.reason("Accepted") == ("True", Reason.ACCEPTED)


def test_nothing_is_trained_where_the_name_of_the_service_is_somebody_elses() -> None:
    world = World()
    world.seen = replace(world.seen, services={"kimi": Service("kimi", owned=False)})
    world.settle()
    assert world.created == []
    assert world.reason() == world.reason("Accepted") == ("False", Reason.NAME_CONFLICT)
    assert world.condition("Accepted").message.startswith("Service kimi exists and does not belong to this object")
    assert world.last is not None
    assert world.last.requeue_after == 30.0
    world.seen = replace(world.seen, services={})
    assert world.settle().job("inspect")


def test_who_only_trains_needs_no_name_for_a_service() -> None:
    world = World().edit(serve=None, watch=None)
    world.seen = replace(world.seen, services={"kimi": Service("kimi", owned=False)})
    assert world.settle().job("inspect")


def test_several_nodes_do_not_train_on_a_claim_that_one_of_them_keeps_for_itself() -> None:
    world = World().edit(train={"nodes": 2})
    shared = Claim("drafts", 1, access_modes=("ReadWriteMany",))
    alone = Claim("features", 1, access_modes=("ReadWriteOnce",))
    world.seen = replace(world.seen, claims={"drafts": shared, "features": alone})
    world.settle()
    assert world.created == []
    assert world.reason() == ("False", Reason.STORAGE_NOT_SHARED)
    assert 'storage.features: claim "features" is ReadWriteOnce' in world.condition("Accepted").message
    world.seen = replace(world.seen, claims={"drafts": shared, "features": replace(shared, name="features")})
    world.settle().finish("inspect").finish("extract")
    assert world.job("train")


def training_of(job: Manifest) -> TrainConfig:
    """What the pods of a training are told."""
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    config = JobEnvelope.model_validate_json(annotations[CONFIG_ANNOTATION]).config
    assert isinstance(config, TrainConfig)
    return config


def test_a_training_is_told_the_served_context_which_is_nothing_that_it_is_known_by() -> None:
    """Where the target says none the draft's positions are its, and conversion raises them where more is served."""
    links = [after_inspection(World().obj, FACTS.model_copy(update={"context_length": n}), Attempts()) for n in (1, 2)]
    trains = [link for chain in links for link in chain if isinstance(link.config, TrainConfig)]
    assert [link.config.context_length for link in trains if isinstance(link.config, TrainConfig)] == [1, 2]
    assert trains[0].key == trains[1].key


def about_to_train(*, jobsets: bool, name: str = "kimi") -> World:
    """Everything is there for a training on three nodes but its Job."""
    world = World(name=name).edit(train={"nodes": 3, "gpus": 8, "sharding": "Hybrid"})
    shared = {name: Claim(name, 10**13, access_modes=("ReadWriteMany",)) for name in ("features", "drafts")}
    world.seen = replace(world.seen, claims=shared, jobsets=jobsets)
    return world.settle().finish("inspect").finish("extract")


def test_the_pods_of_a_training_on_several_nodes_have_their_names_before_they_start() -> None:
    world = about_to_train(jobsets=False)
    service, job = world.applied[-2:]
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert (training_of(job).processes, training_of(job).sharding) == (8, "Hybrid")
    subdomain = service["metadata"]["name"]
    assert training_of(job).hosts == [f"{job['metadata']['name']}-{index}.{subdomain}" for index in range(3)]
    assert job["spec"]["template"]["spec"]["subdomain"] == subdomain


def test_where_the_cluster_serves_jobsets_one_of_them_runs_the_training_and_names_its_pods() -> None:
    world = about_to_train(jobsets=True)
    former, made = world.applied[-2:]
    assert (former["metadata"]["labels"]["eagle3.dev/stage"], made["kind"]) == ("extract", "JobSet")
    name = made["metadata"]["name"]
    (replicated,) = made["spec"]["replicatedJobs"]
    assert training_of(replicated["template"]).hosts == [f"{name}-nodes-0-{index}.{name}" for index in range(3)]
    assert world.told.stages[-1].message == ""
    world.finish("train").finish("convert")
    assert world.created.count(name) == 1


@pytest.mark.parametrize(("length", "kind"), [(32, "JobSet"), (33, "Job")])
def test_a_name_too_long_for_the_pods_of_a_jobset_goes_without(length: int, kind: str) -> None:
    made = about_to_train(jobsets=True, name="k" * length).applied[-1]
    assert made["kind"] == kind
    pod = f"{made['metadata']['name']}-nodes-0-2-abcde"
    assert (len(pod) <= 63) == (kind == "JobSet")


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "removed"])
def test_a_training_goes_on_in_the_form_in_which_it_began(installed: bool) -> None:
    world = about_to_train(jobsets=not installed)
    name = world.job("train").name
    world._put_job(replace(world.job("train"), pods=(Pod("p", world.now, "Running", started_at=world.now),)))
    world.seen = replace(world.seen, jobsets=installed)
    world.settle()
    world.edit(suspend=True).settle()
    assert world.job("train").suspended
    world.edit(suspend=False).settle().finish("train")
    assert world.created.count(name) == 1


def test_a_jobset_that_makes_no_job_is_told() -> None:
    world = about_to_train(jobsets=True)
    world._put_job(replace(world.job("train"), unmade=True))
    world.settle()
    assert world.told.stages[-1].reason is Reason.PENDING
    assert f"kubectl describe jobset {world.job('train').name}" in world.told.stages[-1].message


def test_a_jobset_whose_pods_nobody_lets_be_made_is_told_with_the_job_that_it_made() -> None:
    world = about_to_train(jobsets=True)
    world._put_job(replace(world.job("train"), pods=()))
    world.later(121).settle()
    assert f"kubectl describe job {world.job('train').name}-nodes-0 -n" in world.told.stages[-1].message


def test_a_jobset_whose_pods_are_gone_is_looked_at_until_it_is_gone_itself() -> None:
    world = about_to_train(jobsets=True)
    going = replace(world.job("train"), terminating=True, deleted_at=world.now, pods=())
    world._put_job(going)
    assert world.step().requeue_after == 1.0
    assert world.later(3600).step().requeue_after == 30.0


@pytest.mark.parametrize("stage", ["inspect", "extract", "train", "convert"])
def test_a_report_of_another_key_is_not_believed(stage: str) -> None:
    world = World().settle()
    for before in ("inspect", "extract", "train", "convert"):
        if before == stage:
            break
        world.finish(before)
    job = world.job(stage)
    report = Report(stage=StageName(stage), key="other", ok=True, result=converted().to_json())
    world._put_job(replace(job, complete=True, report=report))
    world.settle()
    assert world.created.count(job.name) == 2


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    world = World().settle()
    began = world.condition("Ready").last_transition_time
    world.later(300).finish("inspect")
    assert world.condition("Ready").last_transition_time == began
    assert world.condition("Accepted").last_transition_time == stamp(world.now)


def test_a_settled_object_changes_nothing() -> None:
    world = serving_draft()
    status, created = world.status, len(world.created)
    decision = world.later(5).step()
    assert world.status == status
    assert (decision.apply, decision.delete, decision.scale, decision.events) == ((), (), (), ())
    assert len(world.created) == created


def test_a_job_whose_pods_fail_and_are_tried_again_says_so() -> None:
    world = World().settle().finish("inspect")
    crashed = Pod("p", world.now, "Failed", started_at=world.now, exit_code=1, finished_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(crashed, Pod("q", world.now, "Running", started_at=world.now))))
    world.settle()
    assert "pod p ended with code 1; it is tried again" in world.condition("FeaturesReady").message


def test_a_log_that_cannot_be_read_is_no_stalled_job() -> None:
    world = World().settle().finish("inspect")
    pod = Pod("p", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,), progress_problem="the kubelet does not answer"))
    world.later(3600).settle()
    assert world.jobs("extract") != []
    assert len(world.created) == 2
    assert "the log of one of its pods cannot be read" in world.condition("FeaturesReady").message


def test_a_pod_without_a_place_for_a_day_stalls_its_object_and_goes_on_once_it_has_one() -> None:
    """The GPUs may be others' for the night; one that asks for what no node has waits for ever, and nobody was told to look."""
    world = World().settle().finish("inspect")
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    pod = Pod("kimi-extract-0", world.now, unschedulable=why, unschedulable_since=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,)))
    world.later(86_400).settle()
    assert (world.reason("Stalled")[0], world.reason()) == ("False", ("False", Reason.UNSCHEDULABLE))
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.UNSCHEDULABLE)
    assert (world.reason("Reconciling")[0], world.told.phase) == ("False", "Stalled")
    world._put_job(replace(world.job("extract"), pods=(replace(pod, unschedulable=None, unschedulable_since=None),)))
    assert (world.settle().reason("Stalled")[0], world.told.phase) == ("False", "Extracting")


def test_a_job_of_which_some_pods_work_waits_for_nobody_though_one_finds_no_place() -> None:
    """Of sixteen shards fifteen were at work, and the object said that nothing more would happen without a person."""
    world = World().settle().finish("inspect")
    working = Pod("kimi-extract-0", world.now, "Running", started_at=world.now)
    waiting = Pod(
        "kimi-extract-1", world.now, unschedulable="Insufficient nvidia.com/gpu.", unschedulable_since=world.now
    )
    world.later(86_401)
    said = Progress(done=0.5, message="", time=world.now.timestamp())
    world._put_job(replace(world.job("extract"), pods=(working, waiting), progress=said))
    assert (world.settle().reason(), world.reason("Stalled")[0]) == (("False", Reason.UNSCHEDULABLE), "False")
    world._put_job(replace(world.job("extract"), pods=(waiting,), progress=None))
    assert world.settle().reason("Stalled")[0] == "True"


def test_shards_that_hang_are_ended_though_another_one_finds_no_place() -> None:
    """Those that ran kept their GPUs for as long as one waited, and how far they were stood still."""
    world = World().settle().finish("inspect")
    name = world.job("extract").name
    working = Pod("kimi-extract-0", world.now, "Running", started_at=world.now)
    waiting = Pod(
        "kimi-extract-1", world.now, unschedulable="Insufficient nvidia.com/gpu.", unschedulable_since=world.now
    )
    said = Progress(done=0.5, message="", time=world.now.timestamp())
    world._put_job(replace(world.job("extract"), pods=(working, waiting), progress=said))
    assert world.settle().reason() == ("False", Reason.UNSCHEDULABLE)
    assert world.told.progress == "50%"
    world.later(1799).settle()
    assert world.created.count(name) == 1
    world.later(2).settle()
    assert world.created.count(name) == 2


def test_a_job_of_which_no_pod_is_let_be_made_for_a_day_stalls_its_object() -> None:
    world = World().settle().finish("inspect")
    world._put_job(replace(world.job("extract"), pods=()))
    assert world.later(86_400).settle().reason("Stalled")[0] == "False"
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.UNSCHEDULABLE)


def test_an_image_that_does_not_come_for_two_hours_stalls_the_object() -> None:
    world = World().settle()
    pulling = Pod("p", world.now, node="gpu-1", placed_at=world.now, waiting_reason="ImagePullBackOff")
    world._put_job(replace(world.job("inspect"), pods=(pulling,)))
    assert world.later(7200).settle().reason("Stalled")[0] == "False"
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.IMAGE_PULL)


def test_a_first_server_that_finds_no_node_for_a_day_stalls_the_object() -> None:
    world = trained(World(room=0))
    assert world.later(86_000).settle().reason("Stalled")[0] == "False"
    assert world.later(1000).settle().reason("Stalled") == ("True", Reason.UNSCHEDULABLE)


def test_a_job_stalls_by_the_logs_that_come_though_one_is_missing() -> None:
    """A node whose kubelet does not answer hid for days that all others had stopped."""
    world = World().settle().finish("inspect")
    job = world.job("extract")
    pods = tuple(Pod(name, world.now, "Running", started_at=world.now) for name in ("p", "q"))
    said = Progress(done=0.5, message="", time=world.now.timestamp())
    world._put_job(replace(job, pods=pods, progress=said, progress_problem="the kubelet does not answer"))
    world.settle().later(1799).settle()
    assert world.created.count(job.name) == 1
    world.later(2).settle()
    assert world.created.count(job.name) == 2


def test_a_claim_that_is_bound_with_another_size_is_not_inspected_again() -> None:
    world = World().settle()
    world.seen = replace(world.seen, claims={**world.seen.claims, "features": Claim("features", 2 * 10**13)})
    world.settle()
    assert len(world.created) == 1


def test_the_number_of_pods_that_extract_changes_no_key() -> None:
    one, four = World().settle().finish("inspect"), World().edit(extract={"shards": 4}).settle().finish("inspect")
    assert one.job("extract").key == four.job("extract").key
    assert one.job("extract").template != four.job("extract").template


def test_an_extraction_of_which_no_pod_saw_the_whole_is_made_anew_and_publishes_it() -> None:
    world = World().edit(extract={"shards": 2}).settle().finish("inspect")
    world.finish("extract", EXTRACTED.model_copy(update={"whole": False}))
    assert world.reason("FeaturesReady")[0] == "Unknown"
    assert not world.jobs("train")
    world.finish("extract")
    assert world.reason("FeaturesReady")[0] == "True"


def test_an_extraction_of_which_no_pod_ever_sees_the_whole_has_failed_by_its_storage() -> None:
    """Nothing has taken a report away: whoever looks for that looks at the wrong end."""
    world = World().edit(extract={"shards": 2}).settle().finish("inspect")
    for _ in range(3):
        world.finish("extract", EXTRACTED.model_copy(update={"whole": False}))
    assert world.reason("FeaturesReady") == ("False", Reason.JOB_FAILED)
    said = world.condition("FeaturesReady").message
    assert (
        "completed 3 times, but each of its pods ended before it saw the others' last part. Find out why a pod" in said
    )
    assert "removes" not in said


def test_features_go_when_training_has_finished_while_the_draft_is_converted() -> None:
    world = World().settle()
    for stage in ("inspect", "extract"):
        world.finish(stage)
    assert not world.jobs("clean")
    world.finish("train")
    assert world.job("clean")
    assert world.job("convert")
    world.finish("clean")
    assert "removed after training" in world.condition("FeaturesReady").message
    created = list(world.created)
    world.finish("convert").later(3600).settle()
    assert [name for name in world.created if name not in created and "-r" not in name and "probe" not in name] == []
    world.now += timedelta(days=1)
    world.seen = replace(world.seen, jobs={})
    world.settle()
    assert not world.jobs("clean") and not world.jobs("extract")


def test_features_stay_where_they_are_to_be_retained() -> None:
    world = trained(World().edit(extract={"retain": True}))
    assert not world.jobs("clean")


def test_a_training_that_needs_features_that_are_gone_has_them_extracted_again() -> None:
    world = trained()
    extract = world.job("extract").name
    world.finish("clean").edit(train={"epochs": 9}).settle()
    assert world.created.count(extract) == 2
    assert not world.jobs("train")
    world.finish("extract")
    assert world.job("train").key != trained().job("train").key
    world.finish("train")
    assert world.job("clean")


def test_an_edit_that_goes_back_to_a_former_draft_extracts_and_trains_nothing() -> None:
    """Not even where the draft since then, an adopted one, has taken the stages' own statuses with it."""
    world = trained()
    first = world.told.artifact
    world.finish("clean").edit(draft={"checkpoint": "/data/another", "vocabularySize": None}).settle()
    world.finish("inspect").finish("convert")
    assert world.told.artifact != first
    assert [one.folder for one in world.told.former_artifacts] == [first.folder if first else ""]
    created = list(world.created)
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").settle()
    assert world.told.artifact == first
    again = {name.split("-")[1] for name in world.created[len(created) :]}
    assert again.isdisjoint({"extract", "train", "convert"}), again


@pytest.mark.parametrize("before", [{"extract": {"retain": True}}, {"suspend": True}])
def test_features_that_nobody_has_seen_since_an_adopted_draft_are_extracted_again(before: dict[str, object]) -> None:
    world = trained()
    extract = world.job("extract").name
    world.finish("clean").edit(draft={"checkpoint": "/data/another", "vocabularySize": None}).settle()
    world.finish("inspect").finish("convert")
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().edit(**before).settle().finish("inspect")
    world.edit(suspend=False, train={"epochs": 9}).settle()
    assert world.created.count(extract) == 2
    assert not world.jobs("train")
    world.finish("extract")
    assert not world.job("train").finished


def test_a_removal_that_has_begun_is_ended_also_where_the_next_features_are_to_be_retained() -> None:
    world = trained()
    extract = world.job("extract").name
    assert not world.job("clean").finished
    world.edit(extract={"retain": True}).settle()
    assert not world.job("clean").finished, "half of the features may be gone"
    world.edit(train={"epochs": 9}).settle()
    assert world.created.count(extract) == 2


def on_a_claim_of_the_operators(**changes: Any) -> World:
    """An object whose features lie on a claim that the operator makes."""
    return World().edit(storage={"features": {"claim": None, "size": "1Ti"}}, **changes).settle()


def test_a_claim_that_the_operator_made_for_the_features_goes_with_them() -> None:
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract")
    assert "kimi-features" in world.seen.claims
    world.finish("train").finish("convert")
    assert set(world.seen.claims) == {"features", "drafts"}, "those of the user's stay"
    assert not world.jobs("clean")
    assert "removed after training" in world.condition("FeaturesReady").message
    world.later(3600).settle()
    assert "kimi-features" not in world.seen.claims, "and is not made again for nothing"
    assert world.reason("Accepted") == ("True", Reason.ACCEPTED)


def test_the_claim_of_features_stays_while_a_job_is_under_way() -> None:
    """A conversion or a probe of a former version of the operator mounts it, and would wait for it for ever."""
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract").finish("train")
    assert not world.job("convert").finished
    assert "kimi-features" in world.seen.claims
    world.finish("convert")
    assert "kimi-features" not in world.seen.claims


@pytest.mark.parametrize("user", ["another", "a-notebook"])
def test_of_a_claim_that_somebody_else_uses_only_this_objects_features_are_removed(user: str) -> None:
    world = on_a_claim_of_the_operators()
    world.use("kimi-features", by=(user,))
    trained(world)
    assert world.job("clean")
    world.finish("clean").use("kimi-features", by=()).later(3600).settle()
    assert "kimi-features" in world.seen.claims, "who used it may have left something"
    assert "removed after training" in world.condition("FeaturesReady").message


def test_a_claim_is_not_deleted_before_somebody_has_looked_who_uses_it() -> None:
    world = on_a_claim_of_the_operators()
    world.use("kimi-features", by=None)
    trained(world).later(3600).settle()
    assert "kimi-features" in world.seen.claims
    assert not world.jobs("clean")
    world.use("kimi-features", by=()).settle()
    assert "kimi-features" not in world.seen.claims


class EditedWhileItsClaimIsDeleted(World):
    """The claim is deleted, and the status of that look is not written: the object was edited meanwhile."""

    def step(self) -> Decision:
        before = self.status
        decision = super().step()
        if Delete("PersistentVolumeClaim", "kimi-features") in decision.delete:
            self.status = before
            self.edit(train={"epochs": 9})
        return decision


def test_a_status_that_is_lost_with_the_deletion_of_a_claim_has_nobody_train_on_an_empty_one() -> None:
    world = EditedWhileItsClaimIsDeleted().edit(storage={"features": {"claim": None, "size": "1Ti"}}).settle()
    world.finish("inspect").finish("extract")
    extract = world.job("extract").name
    world.finish("train").finish("convert")
    assert world.created.count(extract) == 2, "what was on the claim is gone"
    assert not world.jobs("train")
    world.finish("extract")
    assert not world.job("train").complete


def test_a_training_that_needs_its_features_again_has_the_claim_made_anew() -> None:
    world = trained(on_a_claim_of_the_operators())
    extract, made = world.job("extract").name, len(world.applied)
    world.edit(train={"epochs": 9}).settle()
    kinds = [
        manifest["kind"] for manifest in world.applied[made:] if manifest["kind"] in ("Job", "PersistentVolumeClaim")
    ]
    assert kinds.index("PersistentVolumeClaim") < kinds.index("Job"), "its pods would wait for it unseen"
    assert world.created.count(extract) == 2
    world.finish("extract")
    assert "kimi-features" in world.seen.claims
    world.finish("train").finish("convert")
    assert "kimi-features" not in world.seen.claims


def given_up(world: World) -> World:
    """Another training is begun, and ends in nothing: its best weights so far lie with the drafts."""
    world.edit(train={"epochs": 9}).settle().finish("extract")
    assert not world.job("train").finished
    return world


@pytest.mark.parametrize(
    "instead", [{"train": {"epochs": 3}}, {"draft": {"checkpoint": "/data/another", "vocabularySize": None}}]
)
def test_where_the_claim_of_features_goes_a_job_removes_what_a_training_that_was_given_up_left_with_the_drafts(
    instead: dict[str, Any],
) -> None:
    """No training ends that would do it: an edit is taken back, or a draft adopted."""
    world = trained(on_a_claim_of_the_operators(train={"epochs": 3}))
    assert not world.jobs("clean"), "the training itself did it"
    given_up(world).edit(**instead).settle()
    if "draft" in instead:
        world.finish("inspect").finish("convert")
    assert "kimi-features" not in world.seen.claims
    pod = world.applied_job("clean")["spec"]["template"]["spec"]
    assert "/eagle3/features" not in json.dumps(pod["containers"][0]["volumeMounts"]), "it would wait for the claim"
    assert "kimi-features" not in world.seen.claims
    world.finish("clean").later(3600).settle()
    assert "kimi-features" not in world.seen.claims, "and is not made again for nothing"
    assert sum("clean" in name for name in world.created) == 1


@pytest.mark.parametrize("hindered", [{"suspend": True}, {}])
def test_a_job_that_cannot_remove_what_was_left_with_the_drafts_has_no_claim_made_anew(
    hindered: dict[str, Any],
) -> None:
    world = given_up(trained(on_a_claim_of_the_operators(train={"epochs": 3}))).edit(train={"epochs": 3}).settle()
    if hindered:
        world.edit(**hindered).settle()
    else:
        world.fail("clean", Reason.STORAGE_UNAVAILABLE, "read-only file system")
        assert "read-only" in world.condition("FeaturesReady").message
    world.annotations["eagle3.dev/retry"] = "inspect@again"
    world.later(3600).settle()
    assert "kimi-features" not in world.seen.claims


@pytest.mark.parametrize("going", [False, True])
def test_an_inspection_after_the_training_needs_no_volume_for_the_features(going: bool) -> None:
    """One of their whole size would be provisioned to be deleted; where there is none, not even a server could be edited."""
    world = trained(on_a_claim_of_the_operators())
    claim = Claim("kimi-features", 10**13, owned=False, terminating=True)
    if going:
        world.seen = replace(world.seen, claims={**world.seen.claims, claim.name: claim})
    made = len(world.applied)
    world.annotations["eagle3.dev/retry"] = "inspect@again"
    world.settle()
    job = world.applied_job("inspect")
    assert job["spec"]["suspend"] is False
    assert "kimi-features" not in json.dumps(job["spec"]["template"]["spec"]["volumes"])
    config = JobEnvelope.model_validate_json(job["spec"]["template"]["metadata"]["annotations"][CONFIG_ANNOTATION])
    assert isinstance(config.config, InspectConfig)
    assert (config.config.features_gone, config.config.features_capacity) == (True, 2**40)
    world.finish("inspect")
    assert "PersistentVolumeClaim" not in {manifest["kind"] for manifest in world.applied[made:]}
    assert world.reason("Accepted") == ("True", Reason.ACCEPTED)


def test_nothing_is_started_on_a_claim_that_is_going_and_everything_once_it_has_gone() -> None:
    world = trained(on_a_claim_of_the_operators())
    assert "kimi-features" not in world.seen.claims
    going = Claim("kimi-features", 10**13, owned=False, terminating=True)
    world.seen = replace(world.seen, claims={**world.seen.claims, going.name: going})
    extract = world.job("extract").name
    world.edit(train={"epochs": 9}).settle()
    assert world.created.count(extract) == 1
    assert "being deleted" in world.condition("FeaturesReady").message
    assert world.last is not None
    assert world.last.requeue_after == 1.0, "nobody tells when it has gone"
    hanging = {going.name: replace(going, deleted_at=world.now)}
    world.seen = replace(world.seen, claims={**world.seen.claims, **hanging})
    for seconds, soon in ((3, 1.0), (37, 10.0), (86400, 30.0)):
        assert world.later(seconds).step().requeue_after == soon, "less often the longer it hangs"
    world.seen = replace(world.seen, claims={n: c for n, c in world.seen.claims.items() if n != going.name})
    world.settle()
    assert world.created.count(extract) == 2


@pytest.mark.parametrize("kept_by", [{"extract": {"retain": True}}, {"suspend": True}])
def test_the_claim_of_features_stays_where_they_are_to_stay(kept_by: dict[str, Any]) -> None:
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract")
    world.edit(**kept_by).settle().finish("train")
    assert "kimi-features" in world.seen.claims
    world.edit(suspend=False, extract={"retain": False}).settle().finish("convert")
    assert "kimi-features" not in world.seen.claims


ADOPTED = {"checkpoint": "/data/another", "vocabularySize": None}


def test_an_object_that_adopts_a_draft_has_no_volume_made_or_asked_for_features_that_it_does_not_need() -> None:
    world = on_a_claim_of_the_operators(draft={"checkpoint": "/drafts/mine"})
    world.finish("inspect").finish("convert")
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)
    assert "kimi-features" not in world.seen.claims
    assert "features" not in json.dumps(world.applied_job("inspect")["spec"]["template"]["spec"]["volumes"])
    assert not world.jobs("clean")
    without = World().edit(draft={"checkpoint": "/drafts/mine"})
    without.seen = replace(without.seen, claims={"drafts": without.seen.claims["drafts"]})
    without.settle().finish("inspect").finish("convert")
    assert without.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED), (
        "a claim of the user's is not missed"
    )


def test_a_claim_of_former_features_goes_once_the_draft_that_is_adopted_instead_is_converted() -> None:
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract")
    world.edit(draft=ADOPTED).settle().finish("inspect")
    assert "kimi-features" in world.seen.claims, "the edit may be taken back"
    world.finish("convert")
    assert "kimi-features" not in world.seen.claims
    world.later(3600).settle()
    assert "kimi-features" not in world.seen.claims, "and is not made again for nothing"
    extract = next(name for name in world.created if "extract" in name)
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").finish("extract")
    assert world.created.count(extract) == 2
    assert "kimi-features" in world.seen.claims
    world.finish("train").finish("convert")
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)


def test_a_claim_that_an_older_version_made_for_an_adopted_draft_goes_too() -> None:
    world = World().edit(draft=ADOPTED, storage={"features": {"claim": None, "size": "1Ti"}})
    ours = Claim("kimi-features", 10**13, owned=False, used_by=())
    world.seen = replace(world.seen, claims={**world.seen.claims, ours.name: ours})
    world.settle().finish("inspect").finish("convert")
    assert "kimi-features" not in world.seen.claims


def test_features_of_former_specs_on_a_claim_of_the_users_are_removed_once_the_adopted_draft_is_converted() -> None:
    world = World().settle().finish("inspect").finish("extract")
    world.edit(draft=ADOPTED).settle().finish("inspect")
    assert not world.jobs("clean")
    world.finish("convert")
    assert not world.job("clean").finished
    world.finish("clean").later(3600).settle()
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)
    assert sum("clean" in name for name in world.created) == 1
    extract = next(name for name in world.created if "extract" in name)
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").settle()
    assert world.created.count(extract) == 2, "they are gone"


def test_an_edit_to_an_adopted_draft_that_is_taken_back_before_it_is_converted_loses_no_features() -> None:
    world = World().settle().finish("inspect").finish("extract")
    world.edit(draft=ADOPTED).settle().finish("inspect")
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").finish("extract")
    assert not world.jobs("clean")
    world.finish("train")
    assert world.job("clean")


@pytest.mark.parametrize("storage", [{}, {"features": {"claim": None, "size": "1Ti"}}])
def test_an_adopted_draft_leaves_features_that_are_to_be_retained(storage: dict[str, Any]) -> None:
    world = World().edit(extract={"retain": True}, storage=storage).settle().finish("inspect").finish("extract")
    claims = set(world.seen.claims)
    world.edit(draft=ADOPTED).settle().finish("inspect").finish("convert")
    assert set(world.seen.claims) == claims
    assert not world.jobs("clean")
    world.edit(extract={"retain": False}).settle()
    assert world.jobs("clean"), "they are remembered"
    assert claims - set(world.seen.claims) == ({"kimi-features"} if storage else set())


def test_an_object_that_never_extracted_anything_cleans_nothing_up() -> None:
    world = World().edit(draft=ADOPTED).settle().finish("inspect").finish("convert")
    assert not world.jobs("clean")
    assert "clean" not in {stage.name for stage in world.told.stages}


def test_a_claim_on_which_the_drafts_lie_too_is_emptied_of_features_and_not_deleted() -> None:
    storage = {"features": {"claim": None, "size": "1Ti"}, "drafts": {"claim": "kimi-features"}}
    world = World().edit(storage=storage)
    ours = Claim("kimi-features", 10**13, owned=False)
    world.seen = replace(world.seen, claims={**world.seen.claims, ours.name: ours})
    assert trained(world).job("clean")
    world.finish("clean")
    assert "kimi-features" in world.seen.claims


def test_of_former_drafts_the_last_ones_are_remembered() -> None:
    world = trained()
    for epochs in range(10, 16):
        world.edit(train={"epochs": epochs}).settle()
        for stage in ("extract", "train", "convert"):
            world.finish(stage)
    folders = [one.folder for one in world.told.former_artifacts]
    assert len(folders) == len({*folders, world.told.artifact and world.told.artifact.folder}) - 1 == 3


def test_a_training_does_not_wait_for_features_that_are_just_being_removed() -> None:
    world = trained()
    extract = world.job("extract").name
    assert world.job("clean")
    world.edit(train={"epochs": 9}).settle()
    assert not [job for job in world.jobs("clean") if not job.finished]
    assert world.created.count(extract) == 2


def test_nothing_is_extracted_where_a_removal_that_is_to_end_may_still_remove() -> None:
    """Its pod may be on a node that hears nobody, and take what is made now for what it was to remove: for a while that is borne."""
    world = trained()
    extract, clean = world.job("extract").name, world.job("clean")
    pod = Pod("clean-x", world.now, "Running", started_at=world.now, gone_by=world.now + timedelta(seconds=30))
    going = replace(clean, terminating=True, pods=(pod,))
    world.edit(train={"epochs": 9}).step()
    world.seen = replace(world.seen, jobs={**world.seen.jobs, going.name: going})
    world.settle()
    assert world.created.count(extract) == 1
    assert f"Job {clean.name}, which removes features, is being ended" in world.condition("FeaturesReady").message
    world.later(3600).settle()
    assert world.created.count(extract) == 2


def test_what_cannot_be_removed_hinders_nothing() -> None:
    world = trained().fail("clean", Reason.STORAGE_UNAVAILABLE, "read-only file system")
    assert world.reason("FeaturesReady")[0] == "True"
    assert "read-only" in world.condition("FeaturesReady").message
    world.ready(0).finish("probe", measured())
    assert world.serving == 0


@pytest.mark.parametrize("section", ["", "train", "serve"])
def test_a_service_account_that_the_chart_does_not_allow_is_refused_by_its_path(section: str) -> None:
    placement = {"placement": {"serviceAccountName": "admin"}}
    world = serving_draft().edit(**({section: placement} if section else placement))
    created, replicas = list(world.created), world.replicas
    world.settle()
    assert world.reason("Accepted") == ("False", Reason.INVALID_CONFIGURATION)
    path = f"{section}.placement" if section else "placement"
    assert f"{path}.serviceAccountName: 'admin' is not allowed" in world.condition("Accepted").message
    assert world.reason("Stalled")[0] == "True"
    assert (world.created, world.replicas, world.serving) == (created, replicas, 1)


def test_an_image_whose_version_cannot_be_read_is_told_and_not_tried_for_ever() -> None:
    world = World().edit(image="lmsysorg/sglang:latest").settle()
    assert world.reason("Stalled") == ("True", Reason.INVALID_CONFIGURATION)
    assert "set sglangVersion" in world.condition("Accepted").message
    assert world.created == []


def test_a_service_account_that_the_chart_allows_is_the_pods() -> None:
    world = World(settings=SETTINGS.model_copy(update={"allowed_service_accounts": ["trainer"]}))
    world.edit(train={"placement": {"serviceAccountName": "trainer"}})
    assert trained(world).reason("DraftTrained")[0] == "True"


# ---------------------------------------------------------------------------------------------------------- one node

MODES = {
    "one node": (("ReadWriteOnce",), True),
    "one node, or many that only read": (("ReadWriteOnce", "ReadOnlyMany"), True),
    "every node": (("ReadWriteOnce", "ReadWriteMany"), False),
    "many that only read": (("ReadOnlyMany",), False),
    "not known": ((), False),
}


@pytest.mark.parametrize("case", MODES)
def test_the_claims_as_they_are_say_whether_pods_must_be_on_one_node(case: str) -> None:
    modes, bound = MODES[case]
    world = World()
    world.seen = replace(world.seen, claims={**world.seen.claims, "drafts": Claim("drafts", 1, access_modes=modes)})
    serving_draft(world)
    kinds = ("Job", "Deployment")
    made = {m["metadata"]["name"]: m["spec"]["template"] for m in world.applied if m["kind"] in kinds}
    tied = {name for name, template in made.items() if "eagle3.dev/together" in template["metadata"]["labels"]}
    assert tied == {name for name, template in made.items() if "affinity" in template["spec"]}
    assert tied == (set(made) - {"kimi-r0"} if bound else set()), "r0 mounts no draft, and starts wherever it can"


def test_pods_that_train_together_are_held_together_by_a_volume_of_theirs() -> None:
    shared = {name: Claim(name, 1, access_modes=("ReadWriteMany",)) for name in ("features", "drafts")}
    alone = {"models": Claim("models", 1, access_modes=("ReadWriteOnce",))}
    for jobsets in (True, False):
        world = World().edit(train={"nodes": 2}, placement={"volumes": [MODELS]})
        world.seen = replace(world.seen, claims=shared | alone, jobsets=jobsets)
        world.settle().finish("inspect").finish("extract")
        assert "eagle3.dev/together" in json.dumps(world.applied_job("train"))


ONE_POD = ("ReadWriteOncePod",)


@pytest.mark.parametrize(
    ("root", "edit", "refused"),
    [
        ("drafts", {}, True),
        ("drafts", {"serve": None, "probe": None, "watch": None}, False),
        ("features", {}, False),
        ("features", {"extract": {"shards": 2}}, True),
    ],
)
def test_a_claim_of_one_pod_alone_is_refused_where_several_must_mount_it(
    root: str, edit: dict[str, Any], refused: bool
) -> None:
    world = World().edit(**edit)
    world.seen = replace(world.seen, claims={**world.seen.claims, root: Claim(root, 1, access_modes=ONE_POD)})
    world.settle()
    assert (world.reason("Accepted") == ("False", Reason.STORAGE_NOT_SHARED)) is refused
    if refused:
        assert f'storage.{root}: claim "{root}" is ReadWriteOncePod' in world.condition("Accepted").message
