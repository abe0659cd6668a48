"""What may happen to any object, and what then holds: rules that every search through histories has."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eagle3_api.conditions import Reason
from eagle3_api.jobs import LoadResult
from unit.decide.world import World
from unit.samples import measured


class Happenings(RuleBasedStateMachine):
    """One object in a world of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.retries = 0

    # -------------------------------------------------------------------------------------------------- the cluster

    @rule()
    def servers_get_ready(self) -> None:
        deployments = self.world.seen.deployments
        starting = [n for n, d in deployments.items() if d.replicas and not d.ready_replicas]
        placed = [n for n in starting if all(p.unschedulable is None for p in deployments[n].pods)]
        if placed:
            self.world.ready(*placed)

    @rule()
    def a_server_that_was_sent_away_hangs(self) -> None:
        self.world.hang_a_server().settle()

    def probing(self) -> bool:
        return any(job.stage == "probe" and not job.finished for job in self.world.seen.jobs.values())

    @precondition(probing)
    @rule(accept=st.floats(1.0, 4.0), speed=st.floats(20.0, 300.0))
    def a_probe_ends(self, accept: float, speed: float) -> None:
        number = self.world.job("probe").revision
        plain = next(r for r in self.world.told.revisions if r.number == number).draft is None
        result = measured() if plain else measured(accept=accept, speed=speed)
        asked = self.world.obj.spec.probe
        further = [LoadResult(concurrency=load, tokens_per_second=speed) for load in asked.further_loads]
        self.world.finish("probe", result.model_copy(update={"concurrency": asked.concurrency, "loads": further}))

    @rule(seconds=st.sampled_from([1, 130, 601, 3601]))
    def time_passes(self, seconds: int) -> None:
        self.world.later(seconds).settle()

    # --------------------------------------------------------------------------------------------------- the people

    @rule(steps=st.integers(1, 5))
    def the_speculation_is_edited(self, steps: int) -> None:
        self.world.edit(serve={"speculative": {"numSteps": steps, "numDraftTokens": steps + 1}}).settle()

    def asks(self) -> bool:
        return self.world.reason()[1] is Reason.AWAITING_APPROVAL

    @precondition(asks)
    @rule()
    def a_person_approves(self) -> None:
        self.world.approve().settle()

    def retry(self, what: str) -> None:
        self.retries += 1
        self.world.annotations["eagle3.dev/retry"] = f"{what}@{self.retries}"
        self.world.settle()

    # --------------------------------------------------------------------------------------------------- invariants

    @invariant()
    def a_settled_object_is_left_alone(self) -> None:
        if self.world.last is None:
            return
        self.world.settle()
        before = self.world.status
        decision = self.world.step()
        assert self.world.status == before
        assert not [made for made in decision.apply if not self.world.is_refused(made)]
        assert not decision.events
        assert not (decision.delete or decision.scale or decision.suspend) or self.world.refuses
