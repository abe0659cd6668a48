"""The stages before serving."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    CleanConfig,
    ExtractConfig,
    Progress,
    Report,
    StageName,
    TrainConfig,
)
from eagle3_operator.decide.stages import Attempts, after_inspection, clean
from eagle3_operator.observation import Claim, Pod
from unit.decide.world import World, serving_draft, stamp, trained
from unit.samples import EXTRACTED, FACTS, KIMI, TRAINED, converted


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


def test_a_training_is_told_the_served_context_which_is_nothing_that_it_is_known_by() -> None:
    """Where the target says none the draft's positions are its, and conversion raises them where more is served."""
    links = [after_inspection(World().obj, FACTS.model_copy(update={"context_length": n}), Attempts()) for n in (1, 2)]
    trains = [link for chain in links for link in chain if isinstance(link.config, TrainConfig)]
    assert [link.config.context_length for link in trains if isinstance(link.config, TrainConfig)] == [1, 2]
    assert trains[0].key == trains[1].key


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


def test_an_image_whose_version_cannot_be_read_is_told_and_not_tried_for_ever() -> None:
    world = World().edit(image="lmsysorg/sglang:latest").settle()
    assert world.reason("Stalled") == ("True", Reason.INVALID_CONFIGURATION)
    assert "set sglangVersion" in world.condition("Accepted").message
    assert world.created == []
