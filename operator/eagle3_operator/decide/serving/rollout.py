"""The roll-out: which revision is tried next, which one serves, and how many pods each has.

Answered anew at every reconcile from what is known, in the steps of ``_STEPS``:

- the *candidate* (``trying``) is the one revision that still has to prove itself;
- the *goal* is the best revision that may serve (``fleet``). The public Service moves to it once it is ready. A rescue (a
  rollback is one) is nothing else: what serves may not any more, so another one is the goal;
- the *mover* is the candidate or the goal of a roll-out: what is to come and is not yet there. A person may be asked before;
  a rescue never waits;
- *pods* (``capacity``): where the GPUs do not suffice for two revisions, what comes takes the place of what serves, a pod of
  it for each of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from eagle3_api import times
from eagle3_api.conditions import EventReason, Reason
from eagle3_api.jobs import Facts
from eagle3_api.spec import Serve, Watch, seconds
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.decide.approval import Approvals
from eagle3_operator.decide.pipeline.room import Room
from eagle3_operator.decide.revisions import Revision, Standing, Wanted, known
from eagle3_operator.decide.serving import asking, capacity, edits, place, retirement, starts
from eagle3_operator.decide.serving.capacity import Claimant
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.decide.serving.promotion import moved
from eagle3_operator.decide.serving.trying import choose, driven, hindered, started
from eagle3_operator.decide.serving.watching import heard
from eagle3_operator.decide.view import Actions, View
from eagle3_operator.decision import Because, Delete, Event, Mend, Scale
from eagle3_operator.manifests import names, servers
from eagle3_operator.manifests.flags import start_budget

#: Seconds after which something that this reconcile has changed is looked at again.
_SOON = 0.5


@dataclass(frozen=True)
class RolloutResult:
    """What the roll-out came to."""

    revisions: list[Revision]
    serving: Revision | None
    candidate: Revision | None
    #: What is to serve: what serves, or what takes over from that.
    goal: Revision | None
    #: What the candidate, or the goal of a roll-out, is doing, for its condition.
    said: Because | None
    #: Key of the training that the servers are scaled to zero for.
    room_for: str | None
    #: When the watch last moved the Service back.
    rolled_back: str | None
    #: The approval that was used up last.
    approved: str | None
    events: list[Event]
    requeue_after: float | None
    #: That what serves is not what was proven, because somebody has edited its servers.
    edited: str
    #: What serves or is tried stays edited until a person has done something.
    edit_stays: bool


@dataclass
class Rollout:
    """One object's roll-out during one reconcile. ``run`` is the whole of it."""

    view: View
    facts: Facts
    wanted: Wanted | None
    before: Eagle3DraftStatus
    actions: Actions
    room: Room
    #: Target and data are being looked at: what is wanted is not known meanwhile.
    inspecting: bool = False
    fleet: Fleet = field(init=False)
    candidate: int | None = None
    goal: int | None = None
    #: The candidate has to wait for a person.
    blocked: bool = False
    #: How many pods each revision is to have.
    pods: dict[int, int] = field(default_factory=dict)
    said: Because | None = None
    events: list[Event] = field(default_factory=list)
    mend: list[Mend] = field(default_factory=list)
    scale: list[Scale] = field(default_factory=list)
    #: What is said of an edit of what serves.
    edited: str = ""
    edit_stays: bool = False
    wake: list[float] = field(default_factory=list)
    #: When the watch last moved the Service back.
    rolled_back: str | None = None
    #: The approval that was used up last.
    approved: str | None = None

    def __post_init__(self) -> None:
        obj, seen = self.view.obj, self.view.seen
        revisions = {r.number: r for r in known(self.before.revisions, seen, obj.spec)}
        serving = self._selected if self._selected in revisions else None
        self.fleet = Fleet(revisions, serving, self.wanted, obj.spec, self.facts)
        self.rolled_back, self.approved = self.before.handled.rollback, self.before.handled.approve

    @property
    def serve(self) -> Serve:
        return self.view.obj.spec.serve or Serve()

    @property
    def watch(self) -> Watch:
        return self.view.obj.spec.watched or Watch()

    @property
    def name(self) -> str:
        return self.view.obj.metadata.name

    @property
    def _selected(self) -> int | None:
        """The revision that the public Service selected when it was looked at."""
        public = self.view.seen.services.get(self.name)
        return public.selected_revision if public and public.owned else None

    @property
    def budget(self) -> float:
        """Seconds that a server may take to become ready."""
        return start_budget(self.view.obj.spec, self.facts)

    def run(self) -> RolloutResult:
        """One reconcile's part of the roll-out."""
        for step in _STEPS:
            step(self)
        return RolloutResult(
            revisions=[self._described(r) for _, r in sorted(self.fleet.revisions.items())],
            serving=self.fleet.current,
            candidate=self.fleet.of(self.candidate),
            goal=self.fleet.of(self.goal),
            said=self.said,
            room_for=self.room.training if self._makes_room else None,
            rolled_back=self.rolled_back,
            approved=self.approved,
            events=self.events,
            requeue_after=min(self.wake, default=None),
            edited=self.edited,
            edit_stays=self.edit_stays,
        )

    def _change(self, number: int, **changes: object) -> Revision:
        self.fleet = self.fleet.changed(number, **changes)
        return self.fleet[number]

    # ---------------------------------------------------------------------------------------------------- the steps

    def take_stock(self) -> None:
        """What the watch heard, and which starts have failed since."""
        self.fleet = heard(self.fleet, self.view.seen.metrics, self.watch)
        occupant, now, best = self.fleet.occupant, self.view.now, self.fleet.best()
        begun = self.fleet.to_be_left and best is not None and best.replicas > 0
        for number, revision in self.fleet.revisions.items():
            changes = starts.counted(revision, serving=occupant, rescue_begun=begun, budget=self.budget, now=now)
            revision = self._change(number, **changes)
            if (left := starts.rest_left(revision, serving=occupant, now=now)) is not None:
                self.wake.append(max(left, _SOON))
            if revision.status.unready_since is not None:
                self.wake.append(self.view.settings.poll_seconds)

    def follow_service(self) -> None:
        """Make up for a move of the Service that the status does not know: its write was lost, or somebody edited the selector.

        Without it what serves would not be watched, and never be left.
        """
        goal, former = self.fleet.current, self.fleet.of(self.before.serving_revision)
        if goal is not None and goal.number != self.before.serving_revision:
            self._note_move(self.fleet.served_by(former.number if former is not None else None), goal)

    def try_candidate(self) -> None:
        """Start the candidate's server and, once it is ready, measure it. What that decides gives the next one its turn."""
        while True:
            self.fleet, self.candidate = choose(self.fleet, self.view)
            if self.candidate is None:
                return
            self._cover(self.candidate)
            if self.wanted is None or self._waits(self.candidate):
                return
            self.wake.append(self.view.settings.poll_seconds)
            self.fleet, self.said = driven(self.fleet, self.candidate, self.view, self.wanted, self.actions)
            if self.fleet[self.candidate].standing is Standing.UNTRIED:
                return
            self.said = None  # it is decided, and what is said of it stands in its judgement

    def choose_goal(self) -> None:
        """The best revision that may serve; while a candidate is undecided, what serves, unless a better one is ready anyway."""
        current, goal = self.fleet.current, self.fleet.best()
        if self.candidate is not None and current is not None and not self.fleet.to_be_left:
            ready = goal is not None and goal.ready >= capacity.enough(current, self.serve.replicas)
            goal = goal if ready and not self.fleet.may_serve(current) else current
        if current is not None and self._rests(current, goal):
            goal = current
        self.goal = goal.number if goal is not None else None
        if goal is not None and self.fleet.to_be_left and goal.number != self.fleet.serving:
            self.fleet = place.rescued(self.fleet, self.view, goal)
        tried = self.candidate not in (None, self.goal)
        if goal is not None and tried and place.rescue_under_way(self.fleet, goal, self.serve.replicas):
            self.said = self._told_of_rescue(goal, f"; r{self.candidate} is tried after that")

    def ask(self) -> None:
        """What is to come and costs what serves its pods waits for a person; a rescue never does."""
        mover = self.fleet.of(self.candidate)
        if mover is None and self.goal not in (None, self.fleet.serving) and not self.fleet.to_be_left:
            mover = self.fleet.of(self.goal)
        for number, revision in self.fleet.revisions.items():
            if mover is None or number != mover.number:
                # What is tried may be wanted as before after the look: a word for it is not used up by that
                covered = revision.status.covered and self.inspecting and number != self.fleet.serving
                if revision.status.covered and not covered and self._approves(revision):
                    self.approved = self._approvals.word
                self._change(number, covered=covered, displaces=self._goes_on_displacing(revision))
        if mover is None:
            return
        self._cover(mover.number)
        if mover.number == self.goal:
            self._tell_of_goal(mover)
        if not self._waits(mover.number):
            return
        self.blocked = mover.number == self.candidate
        if not self.blocked:
            self.goal = self.fleet.serving

    def bring_pods(self) -> None:
        """The pods that each revision is to have, and the Deployments that are missing for them."""
        self.pods = self._wanted_pods()
        # What gets more pods comes first: should that be refused, nothing has gone for it
        for number, count in sorted(self.pods.items(), key=lambda pods: self.fleet[pods[0]].replicas - pods[1]):
            revision = self.fleet[number]
            if self._refused(revision):
                continue
            self._change(number, replicas=count)
            gone = revision.deployment is None
            if gone and number in self.view.seen.deployments:  # its name is free again once it has ended
                self.wake.append(self.view.settings.poll_seconds)
                continue
            if gone and not (count and self.fleet.can_run(revision)):
                continue
            if count > revision.replicas and (gone or number != self.fleet.serving or not revision.replicas):
                self._change(number, started_at=times.text(self.view.now))
            if gone:
                self._change(number, model=self.facts.target_folder(self.view.obj.spec.target.model), template=None)
            apply, scale = capacity.bring(self.fleet[number], count, self.view, self.facts)
            self.actions.apply += apply
            self.scale += scale

    def mend_servers(self) -> None:
        """Take back what others have changed of the servers, or tell why not."""
        told = {condition.message for condition in self.before.conditions}
        for number, revision in self.fleet.revisions.items():
            deployment = revision.deployment
            if deployment is None or not deployment.owned:
                continue
            if not revision.edited:
                self._change(number, template=deployment.template)
            if not revision.edited or self._refused(revision):
                continue
            serves = number == self.fleet.serving
            can_be_made, mended = self.fleet.can_be_made(revision), revision.status.mended
            reaction = edits.reaction(deployment, mended, serves=serves, can_be_made=can_be_made, view=self.view)
            if reaction.mends:
                manifest = capacity.made(revision, deployment.replicas, self.view, self.facts)
                self.mend.append(Mend(manifest))
                self._change(number, mended=edits.noted(mended, deployment, self.view), template=None)
            elif reaction.deletes:
                self.actions.delete.append(Delete("Deployment", deployment.name))
                self.scale = [scale for scale in self.scale if scale.name != deployment.name]
            if reaction.again is not None:
                self.wake.append(reaction.again)
            if serves:
                self.edited = reaction.message
            elif number in (self.candidate, self.goal):
                self.said = Because(Reason.SERVER_EDITED, reaction.message)
            matters = serves or number in (self.candidate, self.goal)
            self.edit_stays |= matters and reaction.stays
            if reaction.mends or reaction.deletes or (matters and reaction.message not in told):
                self.events.append(Event("Warning", EventReason.SERVER_EDITED, reaction.message))

    def promote(self) -> None:
        """Move the public Service, one patch, once the goal has enough ready pods."""
        goal, former, count = self.fleet.of(self.goal), self.fleet.current, self.serve.replicas
        if goal is None or goal.number == self.fleet.serving:
            return
        if goal.ready < capacity.enough(former, count) and count > 0 and not self._makes_do(goal, former):
            self.wake.append(self.view.settings.poll_seconds)
            return
        if goal.edited and not self.fleet.to_be_left:
            return  # and is told of as that; a rescue takes what there is
        if not self._written(goal):
            self.wake.append(_SOON)
            return
        if refused := self.view.refused(("Service", self.name)):
            self.said = refused
            return
        self.actions.apply.append(servers.public_service(self.view.obj, revision=goal.number))
        self._note_move(self.fleet, goal)

    def guard(self) -> None:
        """Have the budget of disruptions follow the Service, whoever has changed it or taken it away."""
        budget, name = self.view.seen.budget, names.budget_name(self.name)
        if self.fleet.serving is None:
            if budget is not None and budget.owned:
                self.actions.delete.append(Delete("PodDisruptionBudget", name))
            return
        wanted = servers.disruption_budget(self.view.obj, revision=self.fleet.serving)
        # What the API server, or a policy, adds to it is theirs: a difference there would be mended at each look, for ever
        if budget is None or not wanted["spec"].items() <= budget.spec.items():
            self.actions.apply.append(wanted)

    def retire(self) -> None:
        """Delete what nobody can need, beyond revisionHistoryLimit; what served just now not before its Service has moved."""
        others = (self.candidate, self.goal, self._selected)
        needed = self.fleet.needed(*map(self.fleet.of, others))
        keep = self.view.obj.spec.revision_history_limit
        over = retirement.retired(self.fleet.revisions, needed=needed, keep=keep)
        for number in over:
            name = names.revision_name(self.name, number)
            if number in self.view.seen.deployments:
                self.actions.delete.append(Delete("Deployment", name))
                self.scale = [scale for scale in self.scale if scale.name != name]
                self.mend = [mend for mend in self.mend if mend.name != name]
            if name in self.view.seen.services:
                self.actions.delete.append(Delete("Service", name))
        self.fleet = self.fleet.without(over)
        # A probe whose server goes, or is edited, is no try: it is made anew once the server is back as it was
        candidate = self.fleet.of(self.candidate)
        as_made = candidate is not None and not candidate.edited
        tried = self.candidate if as_made and self.candidate is not None and self.pods.get(self.candidate) else None
        probes = retirement.probes(self.view.seen.jobs.values(), self.fleet.revisions, tried)
        self.actions.delete += [probe for probe in probes if probe not in self.actions.delete]

    # ------------------------------------------------------------------------------------------------ room, approval

    @property
    def _makes_room(self) -> bool:
        return self.room.training is not None and self.wanted is None

    def _cover(self, mover: int) -> None:
        """Note a person's word: for this revision, or for the training in whose room it comes up as the first.

        It covers one try, of a plain revision and of the draft after it, not what an edit or an hour makes of it later.
        """
        revision, serving = self.fleet[mover], self.fleet.serving
        if self.room.training is not None and mover == self.candidate and serving not in (None, mover):
            self._change(mover, covered=True, displaces=True)
        elif self._approves(revision):
            self._change(mover, covered=True)

    def _approves(self, revision: Revision) -> bool:
        return self._approvals.given(revision.name, revision.status.key)

    @property
    def _approvals(self) -> Approvals:
        return Approvals(self.view.obj, self.before.ready_once, self.approved)

    def _waits(self, mover: int) -> bool:
        """Whether it may not start, or go on, for now."""
        proven = mover != self.candidate
        waiting = asking.waits(self.fleet[mover], self.fleet, self.view, self._approvals, self.facts, proven=proven)
        if waiting is not None:
            self.said = waiting
        return waiting is not None

    def _goes_on_displacing(self, revision: Revision) -> bool:
        """Whether what is not tried now still takes the place of what serves: a rescue's goal; and what failed so, to stay away."""
        rescue = self.fleet.to_be_left and revision.number == self.goal
        return revision.status.displaces and (rescue or not revision.startable)

    # ---------------------------------------------------------------------------------------------------- the goal

    def _rests(self, current: Revision, goal: Revision | None) -> bool:
        """Whether the watch, which would move the Service back from here, has done so too recently."""
        back = current.dropped and current.ready > 0 and (goal is None or goal.number < current.number)
        left = seconds(self.watch.cooldown) - times.age(self.rolled_back, self.view.now)
        if not back or self.rolled_back is None or left <= 0:
            return False
        self.wake.append(left + 1)
        return True

    def _told_of_rescue(self, goal: Revision, then: str = "") -> Because:
        """What to say of a rescue's goal: that it starts, or what keeps it from that and is not about to end by itself."""
        starting = Because(Reason.SERVER_STARTING, f"{goal.name} is starting and will take over{then}")
        if place.is_given_way(self.fleet, self.view, goal):
            return starting
        return hindered(goal, self.view) or starting

    def _tell_of_goal(self, goal: Revision) -> None:
        count = self.serve.replicas
        if goal.ready >= capacity.enough(self.fleet.current, count):
            return
        pods = f": {goal.ready} of {count} pods are ready" if count > 1 else ""
        said = f"{goal.name} is starting and will take over{pods}"
        self.fleet, self.said = started(self.fleet, goal.number, self.view, said)

    # ---------------------------------------------------------------------------------------------------- the pods

    def _wanted_pods(self) -> dict[int, int]:
        warm = {} if self._makes_room else place.warm(self.fleet, self.view)
        self.wake += [left + 1 for left in warm.values()]
        for number, revision in self.fleet.revisions.items():
            if revision.status.bakes_until is not None and number not in warm:
                self._change(number, bakes_until=None)
        if self._makes_room:
            return dict.fromkeys(self.fleet.revisions, 0)
        goal, candidate, count = self.fleet.of(self.goal), self.fleet.of(self.candidate), self.serve.replicas
        # Nothing goes for what cannot be made
        goal = None if goal is None or self._refused(goal) else goal
        candidate = None if candidate is None or self._refused(candidate) else candidate
        # What is fallen back to while it is measured again gets the pods of a goal, not the one of a candidate
        held = self.blocked or self.candidate == self.goal or place.rescue_under_way(self.fleet, goal, count)
        return capacity.replicas(
            self.fleet.revisions,
            count=count,
            serving=self.fleet.serving,
            baking={number: self.fleet[number].replicas for number in warm},
            goal=Claimant(goal, place.takes_place(self.fleet, goal, count)) if goal is not None else None,
            candidate=Claimant(candidate, self.fleet.replaces(candidate))
            if candidate is not None and not held
            else None,
        )

    def _refused(self, revision: Revision) -> bool:
        """Whether its Deployment cannot be made or scaled."""
        return self.view.seen.refusal("Deployment", names.revision_name(self.name, revision.number)) is not None

    # ------------------------------------------------------------------------------------------------ the promotion

    def _written(self, goal: Revision) -> bool:
        """Whether the status has what proved the goal: a move is made good after a lost write, a measurement is not."""
        return any((r.number, r.probe) == (goal.number, goal.measurement) for r in self.before.revisions)

    def _note_move(self, fleet: Fleet, goal: Revision) -> None:
        """What follows from a move of the Service to the goal, from what serves in this fleet."""
        if fleet.current is not None and fleet.current.dropped:
            self.rolled_back = times.text(self.view.now)
        self.fleet, event = moved(fleet, goal, self.view)
        self.events.append(event)
        self.wake.append(_SOON)

    def _makes_do(self, goal: Revision, former: Revision | None) -> bool:
        """Whether the Service moves to a goal that has fewer ready pods than it should: in a rescue, when these had their time.

        In a roll-out the goal has failed to start then, and what serves goes on.
        """
        if self.fleet.to_be_left and former is not None and self.said is None:
            self.said = self._told_of_rescue(goal)
        if goal.ready == 0:
            return False
        failure = starts.incomplete(goal, wanted=self.serve.replicas, budget=self.budget, now=self.view.now)
        if failure is None or self.fleet.to_be_left:
            return failure is not None
        self._change(goal.number, **failure.changes, failed_at=times.text(self.view.now))
        self.wake.append(_SOON)
        return False

    # -------------------------------------------------------------------------------------------------- for people

    def _described(self, revision: Revision) -> Revision:
        """The revision with its state and its reason, for people."""
        serving, tried = revision.number == self.fleet.serving, revision.number == self.candidate
        if revision.standing is not Standing.UNTRIED:
            why = revision.judgement()
        elif tried:
            why = self.said or Because(Reason.PENDING, "")
        elif revision.may_serve:
            why = Because(
                Reason.PROVEN,
                "still proven by its earlier measurement; a newer revision with the same settings is measured in its place",
            )
        elif self.wanted is None:
            why = Because(Reason.PENDING, "waits until the target, the data and the draft are known again")
        else:
            why = Because(Reason.PENDING, "superseded: the spec now asks for another revision")
        state = revision.state(serving=serving, tried=tried)
        changes = {"state": state, "reason": why.reason, "message": why.message}
        return replace(revision, status=revision.status.model_copy(update=changes))


#: One reconcile, in order. Each step may rely on those before it.
_STEPS: tuple[Callable[[Rollout], None], ...] = (
    Rollout.take_stock,
    Rollout.follow_service,
    Rollout.try_candidate,
    Rollout.choose_goal,
    Rollout.ask,
    Rollout.bring_pods,
    Rollout.mend_servers,
    Rollout.promote,
    Rollout.guard,
    Rollout.retire,
)
