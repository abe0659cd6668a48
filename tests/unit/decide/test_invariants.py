"""What holds whatever happens: random histories of edits, starts, probes, windows, full nodes and lost statuses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.spec import seconds
from eagle3_api.status import RevisionStatus, Template
from eagle3_operator.decide.revisions import Standing, known
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.decision import Decision
from eagle3_operator.observation import Pod
from unit.decide.happenings import Happenings
from unit.decide.world import World, trained
from unit.samples import FACTS, measured

pytestmark = pytest.mark.stages  # a search through histories takes seconds


@dataclass
class Guarded(World):
    """A world in which no single reconcile may do what nobody may ever do."""

    def step(self) -> Decision:
        before, count = self.fleet(self.told.revisions), self.obj.spec.serve.replicas if self.obj.spec.serve else 0
        former, ready_once = self.serving, self.told.ready_once
        pods = {number: (d.replicas, d.ready_replicas) for number, d in self.seen.deployments.items()}
        twin = self.decided()
        decision = super().step()
        assert decision == twin, "the same look makes the same decision"
        after = self.fleet(decision.status.revisions)
        if self.serving != former and self.serving is not None:
            assert after.may_serve(after[self.serving]), "the Service moves to what is proven"
            answered = pods[former][1] if former in pods else 0
            rescue = before.to_be_left or former is None or not after.may_serve(after[former])
            assert rescue or pods[self.serving][1] >= min(count, answered), "and to as many pods as answered before"
        elif former is not None and former in pods and former in self.replicas:
            taken = self.replicas[former] < min(pods[former][0], count)
            asked = any(r.covered for r in decision.status.revisions) or self.spec["autoApply"] == "Always"
            rescue = not after.may_serve(after[former])
            assert not taken or asked or not ready_once or rescue, "nobody was asked for the pods of what serves"
        return decision

    def fleet(self, revisions: Sequence[RevisionStatus]) -> Fleet:
        """The revisions as a status has them."""
        spec = self.obj.spec
        found = {r.number: r for r in known(revisions, self.seen, spec)}
        return Fleet(found, self.serving, None, spec, self.told.resolved or FACTS)

    def standings(self) -> dict[int, Standing]:
        return {number: revision.standing for number, revision in self.fleet(self.told.revisions).revisions.items()}


class AnyHistory(Happenings):
    """One object from its converted draft on."""

    world: Guarded

    @initialize(
        room=st.integers(1, 3),
        surge=st.sampled_from(["IfFree", "Never"]),
        cooldown=st.sampled_from(["0s", "1h"]),
        history=st.sampled_from([1, 3]),
        drafts=st.sampled_from([0, 3]),
        policy=st.sampled_from(["Always", "WhenNoOutage", "Never"]),
        replicas=st.integers(1, 2),
        lost=st.booleans(),
    )
    def convert(
        self, room: int, surge: str, cooldown: str, history: int, drafts: int, policy: str, replicas: int, lost: bool
    ) -> None:
        self.world = Guarded(room=room)
        self.world.edit(
            autoApply="Always",
            serve={"surge": surge, "replicas": replicas, "startTimeout": "20m"},
            watch={"cooldown": cooldown},
            revisionHistoryLimit=history,
        )
        trained(self.world)
        for number in range(drafts + 1 if drafts else 0):
            self.world.later(700).settle().ready(number)
            self.world.loses_next_move = lost and number == drafts
            self.world.finish("probe", measured(accept=2.71, speed=126.9) if number else measured())
            if 0 < number < drafts:
                self.the_speculation_is_edited(number)
        self.world.edit(autoApply=policy).settle()

    # ------------------------------------------------------------------------------------------------ histories

    def _watched(self) -> bool:
        serving = [r for r in self.world.told.revisions if r.number == self.world.serving]
        return bool(serving) and serving[0].draft is not None

    @precondition(_watched)
    @rule(verify=st.floats(0.0, 3000.0), tokens=st.sampled_from([0.0, 50.0, 3000.0]))
    def a_window_passes(self, verify: float, tokens: float) -> None:
        self.world.window(tokens=tokens, requests=tokens / 30, verify=min(verify, tokens))

    @precondition(_watched)
    @rule()
    def nobody_asks_for_a_while(self) -> None:
        serving, before = self.world.serving, self.world.standings()
        for _ in range(11):
            self.world.window(tokens=0, requests=0, verify=0)
            if self.world.serving != serving:
                return
        assert serving is not None
        if before[serving] is Standing.REJECTED:
            assert self.world.standings()[serving] is Standing.REJECTED, "what was measured stays"

    @rule(length=st.sampled_from([1024, 2048]))
    def the_data_is_looked_at_again(self, length: int) -> None:
        self.world.edit(data={"maxLength": length}).settle()

    @rule()
    def an_edit_of_the_data_is_taken_back(self) -> None:
        self.world.edit(data={"maxLength": None}).settle()
        if any(not job.finished for job in self.world.jobs("inspect")):
            self.world.finish("inspect")

    @rule(number=st.integers(0, 5))
    def a_person_retries_a_revision(self, number: int) -> None:
        self.retry(f"r{number}")

    @rule()
    def status_write_lost_after_act(self) -> None:
        self.world.loses_next_move = True

    @rule(kind=st.sampled_from(["nothing", "Deployment", "Service", "Job", "PodDisruptionBudget", "(Deployment|Job)"]))
    def the_api_server_refuses_a_kind_from_now_on(self, kind: str) -> None:
        self.world.refuses = (f"{kind}/.*",)
        self.world.settle()

    @rule(speedup=st.sampled_from([0.5, 1.0, 1.5]))
    def the_bar_is_moved(self, speedup: float) -> None:
        self.world.edit(probe={"minSpeedup": speedup}).settle()

    @rule(concurrency=st.sampled_from([1, 8]), loads=st.sampled_from([[], [8], [8, 32]]))
    def the_loads_of_the_probe_are_edited(self, concurrency: int, loads: list[int]) -> None:
        self.world.edit(probe={"concurrency": concurrency, "loads": loads}).settle()

    @rule(number=st.integers(0, 3))
    def a_deployment_is_deleted(self, number: int) -> None:
        self.world._delete("Deployment", f"kimi-r{number}")
        self.world.settle()

    @rule(number=st.integers(0, 3), image=st.sampled_from(["another", "a third"]))
    def a_server_is_edited(self, number: int, image: str) -> None:
        if (made := self.world.seen.deployments.get(number)) is not None:
            made = replace(made, edited_by="a policy", edited=("spec.containers[server].image",))
            self.world._put(replace(made, template=Template(runs=image)))
            self.world.settle()

    @rule(ready=st.integers(0, 1))
    def a_pod_of_what_serves_crashes(self, ready: int) -> None:
        deployment = self.world.seen.deployments.get(-1 if self.world.serving is None else self.world.serving)
        if deployment is None or deployment.replicas == 0:
            return
        now = self.world.now
        good = [
            Pod(f"{deployment.name}-{i}", now, "Running", ready=True, ready_since=now, started_at=now)
            for i in range(ready)
        ]
        bad = Pod("crash", now, "Running", started_at=now, restarts=9, exit_code=1)
        self.world.pods(deployment.revision, *good, bad)

    @rule()
    def a_candidate_crashes(self) -> None:
        for number, deployment in list(self.world.seen.deployments.items()):
            if deployment.replicas and not deployment.ready_replicas and number != self.world.serving:
                pod = Pod("crash", self.world.now, "Running", started_at=self.world.now, restarts=3, exit_code=1)
                self.world.pods(number, pod, log=("boom",))
                return

    # --------------------------------------------------------------------------------------------------- the end

    def teardown(self) -> None:
        """Whatever came before: once all goes well, the newest revision is proven, or it is said that it is not, and why."""
        if self.world.last is None:
            return
        self.world.refuses = ()
        for made in list(self.world.seen.deployments.values()):
            self.world._put(replace(made, edited_by=None, edited=(), template=Template()))
        self.world.end_lost_pods().settle()
        moving = (Reason.ROLLING_OUT, Reason.SERVER_STARTING)
        for turn in range(40):
            moves = self.world.reason()[1] in moving  # what is proven may still have to get its pods
            if self.world.condition("RevisionProven").status != "Unknown" and not moves and turn > 3:
                break
            self._all_goes_well()
            self.world.later(130 if turn % 2 else 1500).settle()
        assert self.world.condition("RevisionProven").status != "Unknown", self.world.condition("Ready")
        assert self.world.serving is not None or self.world.condition("Stalled").status == "True"
        told = self.world.condition("Ready")
        assert told.reason not in moving, told

    def _all_goes_well(self) -> None:
        world = self.world
        world.seen = replace(world.seen, jobs={n: j for n, j in world.seen.jobs.items() if not j.failed})
        for stage in ("inspect", "extract", "train", "convert"):
            if any(job.stage == stage and not job.finished for job in world.seen.jobs.values()):
                world.finish(stage)
        if self.asks():
            self.a_person_approves()
        for number, deployment in list(world.seen.deployments.items()):
            pods = [
                replace(
                    pod,
                    phase="Running",
                    ready=True,
                    ready_since=pod.ready_since or world.now,
                    started_at=world.now,
                    restarts=0,
                )
                for pod in deployment.pods
                if pod.unschedulable is None and not pod.terminating
            ]
            if number in world.seen.deployments and pods:
                world.pods(number, *pods)
        if self.probing():
            self.a_probe_ends(accept=2.71, speed=126.9)

    # ------------------------------------------------------------------------------------------------ invariants

    @invariant()
    def a_rejected_revision_is_not_served_while_another_is_ready(self) -> None:
        serving, standings = self.world.serving, self.world.standings()
        if serving is None or standings.get(serving) is not Standing.REJECTED or self._rests():
            return
        ready = [n for n, d in self.world.seen.deployments.items() if d.ready_replicas and n != serving]
        assert not [n for n in ready if standings.get(n) is Standing.PROVEN]

    def _rests(self) -> bool:
        watch, rollback = self.world.obj.spec.watched, self.world.told.handled.rollback
        return (
            watch is not None and rollback is not None and times.age(rollback, self.world.now) < seconds(watch.cooldown)
        )

    @invariant()
    def a_rejected_revision_has_no_pods_unless_it_still_serves(self) -> None:
        if any("Deployment" in kinds for kinds in self.world.refuses):
            return  # it may not be scaled
        for number, standing in self.world.standings().items():
            if standing is Standing.REJECTED and number != self.world.serving:
                assert self.world.replicas.get(number, 0) == 0

    @invariant()
    def what_is_edited_is_not_measured(self) -> None:
        if any("Job" in kinds for kinds in self.world.refuses):
            return  # it may not be ended
        edited = {number for number, made in self.world.seen.deployments.items() if made.edited_by is not None}
        probes = [job for job in self.world.seen.jobs.values() if job.stage == "probe" and not job.finished]
        assert not [job.name for job in probes if job.revision in edited]

    @invariant()
    def at_most_one_candidate_runs_beside_what_serves(self) -> None:
        fleet = self.world.fleet(self.world.told.revisions)
        running = [
            fleet[number] for number, count in self.world.replicas.items() if count and number in fleet.revisions
        ]
        assert len([r for r in running if r.standing is Standing.UNTRIED and not r.may_serve]) <= 1

    @invariant()
    def what_serves_can_be_compared_with_its_baseline(self) -> None:
        if self.world.serving is not None:
            serving = next(r for r in self.world.told.revisions if r.number == self.world.serving)
            assert serving.plain_key in {r.key for r in self.world.told.revisions}

    @invariant()
    def what_serves_is_watched_from_its_promotion_on(self) -> None:
        if self.world.serving is not None and self.world.last is not None:
            self.world.settle()
            serving = next(r for r in self.world.told.revisions if r.number == self.world.serving)
            assert serving.promoted_at is not None

    @invariant()
    def no_job_runs_twice_to_completion(self) -> None:
        made = [name for name in self.world.completed if "-inspect-" not in name]  # which has no artifact
        assert len(made) == len(set(made))


AnyHistory.TestCase.settings = hypothesis_settings(max_examples=10, stateful_step_count=20, deadline=None)
TestAnyHistory = AnyHistory.TestCase
