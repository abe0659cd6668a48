"""Children that the API server lets nobody make: what is said of them, what goes on without, and what never goes for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.conditions import Reason, Type
from eagle3_api.status import Condition, Eagle3DraftStatus
from eagle3_operator.decide.refusals import as_before, shortened, told
from eagle3_operator.observation import Refusal
from unit.decide.world import QUOTA, World, serving_draft, serving_plain, trained
from unit.samples import measured, merged


def having_told(refusal: Refusal) -> Eagle3DraftStatus:
    """The status in which a refusal is told."""
    condition = Condition(
        type=Type.RECONCILING,
        status="True",
        reason=Reason.REFUSED,
        message=told(refusal, "llm")[1],
        observed_generation=1,
        last_transition_time="2026-11-30T14:12:00Z",
    )
    return Eagle3DraftStatus(conditions=[condition])


def reasons(world: World) -> list[str]:
    return [event.reason for event in world.events]


def test_a_refused_job_is_told_with_the_quotas_words_and_what_to_do() -> None:
    world = World(refuses=("Job/kimi-extract-.*",)).settle().finish("inspect")
    for kind in ("Ready", "FeaturesReady", "Reconciling"):
        said = world.condition(kind)
        assert said.reason is Reason.REFUSED
        assert f"could not be created: {QUOTA}. Free some of that quota" in said.message
    assert world.condition("FeaturesReady").status == "Unknown", "it has not failed: it is tried again by itself"
    assert (world.condition("Reconciling").status, world.condition("Stalled").status) == ("True", "False")
    assert world.told.phase == "Extracting"
    assert reasons(world).count("Refused") == 1
    assert "ExtractStarted" not in reasons(world)

    world.refuses = ()
    world.settle()
    assert world.reason() == ("False", Reason.EXTRACTING)
    assert reasons(world)[-1] == "ExtractStarted"


def test_a_retry_whose_former_job_cannot_be_deleted_is_still_to_come() -> None:
    world = World().settle().finish("inspect").fail("extract", Reason.NON_FINITE, "the states are not finite")
    world.refuses = ("Job/kimi-extract-.*",)
    world.annotations["eagle3.dev/retry"] = "extract@mended"
    world.settle()
    assert world.reason("FeaturesReady") == ("False", Reason.NON_FINITE)
    assert "could not be deleted" in world.condition("Reconciling").message
    world.refuses = ()
    world.settle().finish("inspect")
    assert world.reason("FeaturesReady") == ("Unknown", Reason.EXTRACTING)


def test_an_object_that_is_refused_for_hours_is_not_written_again_and_again() -> None:
    world = World(refuses=("Job/.*",)).settle()
    before = world.status
    world.later(3600).step()
    assert world.status == before
    world = trained(World(refuses=("Deployment/.*",)))
    before = world.status
    world.later(3600).step()
    assert world.status == before


@pytest.mark.parametrize("length", [*range(655, 672), 2000])
def test_a_long_refusal_that_took_another_time_is_no_news_wherever_it_is_cut(length: int) -> None:
    def refused(time: str) -> Refusal:
        words = f"admission webhook took {time} and says: no" + "o" * (length - len("took 9ms")) + " at last"
        return Refusal("Job", "kimi-extract", "created", shortened(words))

    assert as_before((refused("12.3ms"),), having_told(refused("9ms"))) == (refused("9ms"),)


def test_three_long_refusals_fit_in_one_condition() -> None:
    said = [
        told(Refusal("Deployment", "k" * 40 + f"-r{i}", "applied", shortened("denied " * 500)), "n" * 63)[1]
        for i in range(3)
    ]
    assert len(" ".join(said)) < 4000


def test_a_claim_that_is_refused_is_told_and_nothing_is_started_without_it() -> None:
    storage = {"features": {"claim": None, "size": "1Ti"}, "drafts": {"claim": "drafts"}}
    world = World(refuses=("PersistentVolumeClaim/.*",)).edit(storage=storage).settle()
    assert world.reason("Accepted") == ("Unknown", Reason.REFUSED)
    assert "PersistentVolumeClaim kimi-features could not be applied" in world.condition("Ready").message
    assert world.created == []


def test_a_server_that_is_refused_takes_nothing_from_what_serves() -> None:
    world = serving_draft(World().edit(autoApply="Always"))
    world.refuses = (r"Deployment/kimi-r[23]",)
    world.edit(serve={"surge": "Never", "speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    assert world.replicas[1] == 1
    assert world.serving == 1
    assert world.reason("RevisionProven") == ("Unknown", Reason.REFUSED)
    assert "Deployment kimi-r2 could not be applied" in world.condition("Ready").message
    world.refuses = ()
    world.settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}


def test_a_refused_scaling_takes_nothing_from_what_serves() -> None:
    world = serving_plain(World(room=1).edit(autoApply="Always", serve={"surge": "Never"}))
    assert world.replicas == {0: 0, 1: 1}, "the draft's revision takes the place of the plain one"
    world.ready(1).finish("probe", measured(accept=1.0, speed=20.0))
    world.ready(0)
    before = dict(world.replicas)
    world.refuses = ("Deployment/kimi-r1",)
    world.edit(probe={"minSpeedup": 0.1, "minAcceptLength": 1.0}).settle()
    assert world.replicas == before
    assert world.serving == 0


def test_a_move_of_the_service_that_is_refused_is_not_taken_for_one() -> None:
    world = serving_plain().ready(1)
    world.refuses = ("Service/kimi",)
    world.finish("probe", measured(accept=2.71, speed=126.9))
    assert (world.serving, world.told.serving_revision) == (0, 0)
    assert world.reason() == ("False", Reason.REFUSED)
    assert "Service kimi could not be applied" in world.condition("Ready").message
    promoted = reasons(world).count("Promoted")
    world.refuses = ()
    world.settle()
    assert (world.serving, world.told.serving_revision) == (1, 1)
    assert reasons(world).count("Promoted") == promoted + 1
    assert "RolledBack" not in reasons(world)


def test_the_first_service_that_is_refused_is_what_ready_speaks_of() -> None:
    world = trained(World(refuses=("Service/kimi",))).ready(0)
    world.finish("probe", measured()).ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.reason() == ("False", Reason.REFUSED)
    assert world.serving is None


def test_what_nobody_waits_for_stops_nothing_when_it_is_refused() -> None:
    refuses = ("Job/kimi-publish-.*", "PodDisruptionBudget/.*")
    world = World(refuses=refuses)
    world.spec = merged(world.spec, {"publish": {"oci": {"reference": "registry.example/drafts/kimi"}}})
    serving_draft(world)
    assert world.serving == 1
    assert world.reason("ServerAvailable") == ("True", Reason.AVAILABLE)
    assert world.reason("DraftPublished") == ("Unknown", Reason.REFUSED)
    said = world.condition("Reconciling").message
    assert "Job kimi-publish-" in said
    assert "PodDisruptionBudget kimi-servers could not be applied" in said


@pytest.mark.parametrize(
    ("refuses", "broken", "ready", "stalled", "reconciling"),
    [
        (("PodDisruptionBudget/.*",), False, "True", "False", "False"),
        (("PodDisruptionBudget/.*", "Job/kimi-publish-.*"), False, "False", "False", "True"),
        (("PodDisruptionBudget/.*",), True, "False", "True", "False"),
    ],
    ids=["ready but for its budget", "not ready", "stalled"],
)
def test_who_waits_for_an_object_waits_neither_for_its_budget_nor_for_one_that_is_stalled(
    refuses: tuple[str, ...], broken: bool, ready: str, stalled: str, reconciling: str
) -> None:
    """As kstatus has it, of ``Reconciling`` and ``Stalled`` at most one is True. What is refused is told in any case."""
    world = World(refuses=refuses)
    world.spec = merged(world.spec, {"publish": {"oci": {"reference": "registry.example/drafts/kimi"}}})
    serving_draft(world)
    if "Job/kimi-publish-.*" not in refuses:
        world.finish("publish")
    if broken:
        world.edit(data={"conversations": "/data/others.jsonl"}).settle()
        world.fail("inspect", Reason.DATA_UNREADABLE, "it has no conversation")
    assert [world.condition(kind).status for kind in ("Ready", "Stalled", "Reconciling")] == [
        ready,
        stalled,
        reconciling,
    ]
    assert world.condition("Reconciling").reason is Reason.REFUSED
    assert "PodDisruptionBudget kimi-servers could not be applied" in world.condition("Reconciling").message


def test_a_probe_that_is_refused_in_the_place_of_what_serves_gives_the_place_back() -> None:
    world = serving_draft(World(room=1).edit(autoApply="Always", serve={"surge": "Never"}))
    world.refuses = ("Job/kimi-probe-.*",)
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().ready(2)
    assert world.reason() == ("False", Reason.REFUSED)
    assert world.replicas[1] == 0
    world.later(130).settle()
    assert world.replicas[1] == 1
    assert "its probe could not be started in place of r1" in world.condition("RevisionProven").message


def test_a_job_whose_pods_nobody_lets_be_made_is_told_after_two_minutes() -> None:
    world = World().settle()
    world._put_job(replace(world.job("inspect"), pods=()))
    assert world.settle().reason() == ("False", Reason.INSPECTING)
    assert world.last is not None
    assert world.last.requeue_after == 120
    world.later(121).settle()
    assert world.reason("Accepted") == ("Unknown", Reason.UNSCHEDULABLE)
    assert f"kubectl describe job {world.job('inspect').name}" in world.condition("Ready").message


def test_each_refusal_is_an_event_of_its_own_and_no_news_when_another_is_gone() -> None:
    world = World()
    world.spec = merged(world.spec, {"publish": {"oci": {"reference": "registry.example/drafts/kimi"}}})
    world.refuses = ("Job/kimi-publish-.*", "PodDisruptionBudget/.*")
    serving_draft(world)
    said = [event.message.split(" could not")[0] for event in world.events if event.reason == "Refused"]
    assert len(said) == 2
    assert said[0].startswith(("Job kimi-publish-", "PodDisruptionBudget kimi-servers"))
    world.refuses = ("Job/kimi-publish-.*",)
    world.later(3600).settle()
    assert "PodDisruptionBudget" not in world.condition("Reconciling").message
    assert reasons(world).count("Refused") == 2


PORTS = 'failed calling webhook "a.example": failed to call webhook: Post "https://a.b.svc:443/?timeout=10s": '
DENIED = 'admission webhook "a" denied the request: '
UUID = "0f2b5c4e-8d61-4f0a-9a53-{:012}"


@pytest.mark.parametrize(
    "words",
    [
        PORTS + "dial tcp: lookup a.b.svc on 10.96.0.10:53: read udp 10.244.1.5:{}->10.96.0.10:53: i/o timeout",
        PORTS + "read tcp [fd00::1]:{}->[fd00::2]:443: read: connection reset by peer",
        "x509: certificate has expired: current time 2026-11-30T14:12:0{}Z is after 2026-11-30T14:00:00Z",
        DENIED + "no (Status Code: 400, Request ID: {}abc)",
        DENIED + '{{"requestId":"{}", "why": "no"}}',
        DENIED + f"no, {UUID}",
        DENIED + "no GPUs at 2026-11-30T14:12:33.00{}Z...",
        DENIED + "no GPUs before Tue, 01 Dec 2026 08:00:0{} GMT",
        DENIED + "(2026-11-30 14:12:0{}.113 +0000 UTC m=+103.5) no",
        DENIED + "asked at 20261130T14120{}Z, no",
        DENIED + "no, t=176451234{}.113",
        DENIED + "no, asked at 176451234{}",
        DENIED + "no (ts: 176451234{}113)",
        DENIED + '{{"timestamp":176451234{}113, "why": "no"}}',
        DENIED + 'no, startTime="176451234{}"',
        DENIED + "no (evaluated in {}.5ms, queued for 1m0{}s)",
    ],
)
def test_a_refusal_that_differs_in_a_time_or_an_id_is_neither_written_nor_told_again(words: str) -> None:
    world = World(refuses=("Job/.*",), refusal=words.format(1, 1)).settle()
    assert words.format(1, 1).rstrip(".") in world.condition("Ready").message, "it is told in its own words"
    before, told = world.status, reasons(world)
    world.refusal = words.format(2, 2)
    world.later(3600).step()
    assert (world.status, reasons(world)) == (before, told)


@pytest.mark.parametrize(
    ("once", "again"),
    [
        ("exceeded quota: few, requested: cpu=500m, used: cpu=200m", "exceeded quota: few, requested: cpu=500m, used: cpu=700m"),
        (f'claim "pvc-{UUID.format(1)}" is not allowed', f'claim "pvc-{UUID.format(2)}" is not allowed'),
        ("image 10.0.0.1:5000/a is not allowed", "image 10.0.0.1:5001/a is not allowed"),
        (DENIED + "no GPUs at 14:12:00", DENIED + "no CPUs at 14:12:00"),
    ],
)  # fmt: skip
def test_a_refusal_that_differs_in_anything_else_is_news(once: str, again: str) -> None:
    world = World(refuses=("Job/.*",), refusal=once).settle()
    world.refusal = again
    world.settle()
    assert again in world.condition("Ready").message
    assert reasons(world).count("Refused") == 2


LARGE = st.integers(16 * 10**8, 2 * 10**9 - 1)


@given(st.sampled_from(["requests.memory", "limits.memory", "requests.storage", "count/jobs.batch"]), LARGE, LARGE)
def test_the_bytes_of_a_quota_are_no_time_however_large_they_are(resource: str, once: int, again: int) -> None:
    words = f"exceeded quota: few, requested: {resource}=2Gi, used: {resource}={{}}, limited: {resource}=1717986918"
    before, now = (Refusal("Job", "kimi-train-0", "created", words.format(used)) for used in (once, again))
    assert as_before((now,), having_told(before)) == (now,)


def test_what_serves_and_may_not_be_scaled_says_so_and_what_still_serves() -> None:
    world = serving_draft(World(refusal=DENIED + "at most one server a team"))
    world.refuses = ("Deployment/kimi-r1",)
    world.edit(serve={"replicas": 3}).settle()
    for kind in ("ServerAvailable", "Ready"):
        assert world.reason(kind) == ("False", Reason.REFUSED)
        said = world.condition(kind).message
        assert said.startswith("r1: 1 of 3 pods ready; Deployment kimi-r1 could not be scaled: ")
        assert "at most one server a team" in said
    assert (world.serving, world.replicas[1]) == (1, 1)
    world.refuses = ()
    world.settle().ready(1)
    assert world.reason("ServerAvailable") == ("True", Reason.AVAILABLE)


def test_what_serves_and_whose_further_pods_a_quota_refuses_says_so() -> None:
    world = serving_draft()
    (first,) = world.seen.deployments[1].pods
    world.edit(serve={"replicas": 3}).settle()
    words = f'pods "kimi-r1-x" is forbidden: {QUOTA}'
    world._put(
        replace(world.seen.deployments[1], pods=(first,), ready_replicas=1, refused=words, refused_since=world.now)
    )
    world.step()
    assert world.reason("ServerAvailable") == ("False", Reason.UNSCHEDULABLE)
    said = world.condition("ServerAvailable").message
    assert said.startswith("r1: 1 of 3 pods ready; a pod of kimi-r1 cannot be made: ")
    assert QUOTA in said


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ('jobs.batch "a" is forbidden: exceeded quota: few', "kubectl describe quota -n llm"),
        ('admission webhook "policy.example" denied the request: no GPUs', "ask whoever set that rule"),
        ("ValidatingAdmissionPolicy 'no-gpus' with binding 'all' denied request: no GPUs", "ask whoever set that rule"),
        ('failed calling webhook "policy.example": connection refused', "Repair that webhook"),
        ('User "system:serviceaccount:a:b" cannot create resource "jobs"', "upgrade the chart"),
        ('Job.batch "a" is invalid: spec.template.spec.containers[0]', "Correct the field"),
    ],
)
def test_each_kind_of_refusal_comes_with_its_advice(words: str, advice: str) -> None:
    reason, message, _ = told(Refusal("Job", "kimi-train-0", "created", words), "llm")
    assert reason is Reason.REFUSED
    assert message.startswith(f"Job kimi-train-0 could not be created: {words}. ")
    assert advice in message
    assert message.endswith("The operator tries it again by itself.")
