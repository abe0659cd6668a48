"""What holds whatever happens: random histories of edits, starts, probes, windows, full nodes and lost statuses."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eagle3_api.spec import seconds
from eagle3_operator.decide import times
from eagle3_operator.decide.revisions import Standing, known
from eagle3_operator.observation import Pod
from unit.decide.world import World, trained
from unit.samples import measured


class AnyHistory(RuleBasedStateMachine):
    """One object from its converted draft on."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        #: Revisions that were rejected by a measurement, with the bar of that time.
        self.rejected: dict[int, float] = {}
        self.draft_digest = "d" * 64
        self.retries = 0

    @initialize(
        room=st.integers(1, 3),
        surge=st.sampled_from(["IfFree", "Never"]),
        cooldown=st.sampled_from(["0s", "1h"]),
        history=st.sampled_from([1, 3]),
        drafts=st.sampled_from([0, 3]),
    )
    def convert(self, room: int, surge: str, cooldown: str, history: int, drafts: int) -> None:
        self.world = World(room=room).edit(
            autoApply="Always", serve={"surge": surge}, watch={"cooldown": cooldown}, revisionHistoryLimit=history
        )
        trained(self.world)
        for number in range(drafts + 1 if drafts else 0):
            self.world.later(700).settle().ready(number)
            self.world.finish("probe", measured(accept=2.71, speed=126.9) if number else measured())
            if 0 < number < drafts:
                self.the_speculation_is_edited(number)

    # ------------------------------------------------------------------------------------------------ histories

    @rule()
    def servers_get_ready(self) -> None:
        starting = [n for n, d in self.world.seen.deployments.items() if d.replicas and not d.ready_replicas]
        placed = [n for n in starting if all(p.unschedulable is None for p in self.world.seen.deployments[n].pods)]
        if placed:
            self.world.ready(*placed)

    def _probing(self) -> bool:
        return any(job.stage == "probe" and not job.finished for job in self.world.seen.jobs.values())

    @precondition(_probing)
    @rule(accept=st.floats(1.0, 4.0), speed=st.floats(20.0, 300.0))
    def a_probe_ends(self, accept: float, speed: float) -> None:
        number = self.world.job("probe").revision
        plain = next(r for r in self.world.told.revisions if r.number == number).draft is None
        load = self.world.obj.spec.probe.concurrency
        result = measured() if plain else measured(accept=accept, speed=speed)
        self.world.finish("probe", result.model_copy(update={"concurrency": load}))

    def _watched(self) -> bool:
        serving = [r for r in self.world.told.revisions if r.number == self.world.serving]
        return bool(serving) and serving[0].draft is not None

    @precondition(_watched)
    @rule(verify=st.floats(0.0, 3000.0), tokens=st.sampled_from([0.0, 50.0, 3000.0]))
    def a_window_passes(self, verify: float, tokens: float) -> None:
        self.world.window(tokens=tokens, requests=tokens / 30, verify=min(verify, tokens))

    @rule(seconds=st.sampled_from([1, 130, 601, 3601]))
    def time_passes(self, seconds: int) -> None:
        self.world.later(seconds).settle()

    @precondition(_watched)
    @rule()
    def nobody_asks_for_a_while(self) -> None:
        serving, before = self.world.serving, self._standings()
        for _ in range(11):
            self.world.window(tokens=0, requests=0, verify=0)
            if self.world.serving != serving:
                return
        assert serving is not None
        if before[serving] is Standing.REJECTED:
            assert self._standings()[serving] is Standing.REJECTED, "what was measured stays"

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
        if number == self.world.serving:
            return
        self.retries += 1
        self.world.annotations["eagle3.dev/retry"] = f"r{number}@{self.retries}"
        self.world.settle()

    @rule()
    def a_server_that_was_sent_away_hangs(self) -> None:
        self.world.hang_a_server().settle()

    @rule(steps=st.integers(1, 5))
    def the_speculation_is_edited(self, steps: int) -> None:
        self.world.edit(serve={"speculative": {"numSteps": steps, "numDraftTokens": steps + 1}}).settle()

    @rule(speedup=st.sampled_from([0.5, 1.0, 1.5]))
    def the_bar_is_moved(self, speedup: float) -> None:
        self.world.edit(probe={"minSpeedup": speedup})
        self.rejected.clear()
        self.world.settle()

    @rule(concurrency=st.sampled_from([1, 8]))
    def the_load_of_the_probe_is_edited(self, concurrency: int) -> None:
        self.world.edit(probe={"concurrency": concurrency}).settle()

    @rule()
    def a_candidate_crashes(self) -> None:
        for number, deployment in list(self.world.seen.deployments.items()):
            if deployment.replicas and not deployment.ready_replicas and number != self.world.serving:
                pod = Pod("crash", self.world.now, "Running", started_at=self.world.now, restarts=3, exit_code=1)
                self.world.pods(number, pod, log=("boom",))
                return

    # ------------------------------------------------------------------------------------------------ invariants

    def _standings(self) -> dict[int, Standing]:
        world = self.world
        return {r.number: r.standing for r in known(world.told.revisions, world.seen, world.obj.spec)}

    @invariant()
    def the_service_only_ever_moves_to_a_proven_revision(self) -> None:
        if self.world.serving is not None:
            serving = next(r for r in self.world.told.revisions if r.number == self.world.serving)
            assert serving.probe or serving.proof, "what serves was measured"

    @invariant()
    def a_rejected_revision_is_not_served_while_another_is_ready(self) -> None:
        serving, standings = self.world.serving, self._standings()
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
        for number, standing in self._standings().items():
            if standing is Standing.REJECTED and number != self.world.serving:
                assert self.world.replicas.get(number, 0) == 0

    @invariant()
    def at_most_one_candidate_runs_beside_what_serves(self) -> None:
        standings = self._standings()
        untried = [n for n, count in self.world.replicas.items() if count and standings.get(n) is Standing.UNTRIED]
        assert len(untried) <= 1

    @invariant()
    def what_serves_can_be_compared_with_its_baseline(self) -> None:
        known_keys = {r.key for r in self.world.told.revisions if r.number in self.world.seen.deployments}
        if self.world.serving is not None:
            serving = next(r for r in self.world.told.revisions if r.number == self.world.serving)
            assert serving.plain_key in known_keys

    @invariant()
    def a_settled_object_is_left_alone(self) -> None:
        if self.world.last is None:
            return
        self.world.settle()
        before = self.world.status
        decision = self.world.step()
        assert self.world.status == before
        assert not (decision.apply or decision.delete or decision.scale or decision.events)

    @invariant()
    def no_job_runs_twice_to_completion(self) -> None:
        made = [name for name in self.world.completed if "-inspect-" not in name]  # which has no artifact
        assert len(made) == len(set(made))


AnyHistory.TestCase.settings = hypothesis_settings(max_examples=30, stateful_step_count=20, deadline=None)
TestAnyHistory = AnyHistory.TestCase
