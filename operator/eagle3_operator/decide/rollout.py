"""The roll-out: which revision is tried next, which one serves, and how many pods each has.

Three questions, answered anew at every reconcile from what is known:

- *candidate*: the one revision that still has to prove itself. The plain revision first, because it is the baseline of
  every other and what every rollback can fall back to.
- *goal*: the best proven revision. The public Service moves to it once it is ready. A rollback is nothing else: the
  serving revision is no longer proven, so another one is the goal.
- *replicas*: of each revision. Where the GPUs do not suffice for two, the candidate displaces the serving one.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta

from eagle3_api.conditions import Reason
from eagle3_api.jobs import Facts
from eagle3_api.spec import Serve, Watch, seconds
from eagle3_api.status import Eagle3DraftStatus, RevisionStatus
from eagle3_operator.decide import capacity, retirement, starts, times
from eagle3_operator.decide.approval import Approvals
from eagle3_operator.decide.capacity import Claimant
from eagle3_operator.decide.chain import Actions, View
from eagle3_operator.decide.diagnosis import held_up, without_place
from eagle3_operator.decide.preference import best
from eagle3_operator.decide.probing import fits, measure
from eagle3_operator.decide.revisions import Revision, Standing, Wanted, known
from eagle3_operator.decide.room import Room
from eagle3_operator.decision import Delete, Event, Scale
from eagle3_operator.judge.watch import early_accept_length, kept
from eagle3_operator.manifests import names, servers
from eagle3_operator.manifests.flags import start_budget
from eagle3_operator.observation import Pod


@dataclass(frozen=True)
class Outcome:
    """What the roll-out came to."""

    revisions: list[Revision]
    serving: Revision | None
    candidate: Revision | None
    #: What the candidate is doing, for its condition.
    reason: Reason | None
    message: str
    #: Key of the training that the servers are scaled to zero for.
    room_for: str | None
    #: When the watch last moved the Service back.
    rolled_back: str | None
    events: list[Event]
    requeue_after: float | None


@dataclass
class Rollout:
    """One object's roll-out during one reconcile. ``run`` is the whole of it, in order."""

    view: View
    facts: Facts
    wanted: Wanted | None
    before: Eagle3DraftStatus
    actions: Actions
    room: Room
    revisions: dict[int, Revision] = field(default_factory=dict)
    candidate: int | None = None
    serving: int | None = None
    reason: Reason | None = None
    message: str = ""
    events: list[Event] = field(default_factory=list)
    scale: list[Scale] = field(default_factory=list)
    wake: list[float] = field(default_factory=list)
    #: When the watch last moved the Service back.
    rolled_back: str | None = None

    @property
    def serve(self) -> Serve:
        return self.view.obj.spec.serve or Serve()

    @property
    def watch(self) -> Watch:
        return self.view.obj.spec.watched or Watch()

    @property
    def name(self) -> str:
        return self.view.obj.metadata.name

    def run(self) -> Outcome:
        self.rolled_back = self.before.handled.rollback
        self.revisions = {r.number: r for r in known(self.before.revisions, self.view.seen, self.view.obj.spec)}
        public = self.view.seen.services.get(self.name)
        self.serving = public.selected_revision if public and public.owned else None
        if self.serving not in self.revisions:
            self.serving = None
        self._take_metrics()
        self._take_starts()
        self.candidate = self._choose_candidate()
        self._cover()
        blocked = self._blocked()
        if self.candidate is not None and not blocked:
            self._drive(self.revisions[self.candidate])
            blocked = self._blocked()  # it may just have turned out that it must displace what serves
        goal = self._goal()
        self._set_replicas(goal, blocked=blocked)
        if goal is not None:
            self._promote(goal)
        self._retire(goal)
        return Outcome(
            revisions=[self._described(r) for _, r in sorted(self.revisions.items())],
            serving=self.revisions.get(self.serving) if self.serving is not None else None,
            candidate=self.revisions.get(self.candidate) if self.candidate is not None else None,
            reason=self.reason,
            message=self.message,
            room_for=self.room.training if self._makes_room else None,
            rolled_back=self.rolled_back,
            events=self.events,
            requeue_after=min(self.wake, default=None),
        )

    def _update(self, number: int, **changes: object) -> Revision:
        revision = self.revisions[number]
        self.revisions[number] = replace(revision, status=revision.status.model_copy(update=changes))
        return self.revisions[number]

    # ---------------------------------------------------------------------------------------- what was observed

    def _take_metrics(self) -> None:
        metrics = self.view.seen.metrics
        if metrics is None or metrics.revision not in self.revisions:
            return
        status = self._update(metrics.revision, watch_problem=metrics.problem).status
        if metrics.reading is not None:
            self._update(metrics.revision, reading=metrics.reading)
        if metrics.window is not None:
            windows = [*status.windows, metrics.window]
            revision = self._update(metrics.revision, windows=windows, watched_at=metrics.window.end)
            self._update(metrics.revision, windows=kept(windows, revision.comparable, self.watch))
            if status.early_accept_length is None:
                early = early_accept_length(revision.comparable, self.watch)
                self._update(metrics.revision, early_accept_length=early)

    def _take_starts(self) -> None:
        budget = start_budget(self.view.obj.spec, self.facts)
        for number, revision in list(self.revisions.items()):
            changes = starts.counted(revision, serving=self.serving, budget=budget, now=self.view.now)
            rested = starts.rest_left(self._update(number, **changes), serving=self.serving, now=self.view.now)
            if rested is not None:
                self.wake.append(rested)

    # ------------------------------------------------------------------------------------------- the candidate

    def _latest(self, key: str) -> Revision | None:
        matching = [r for r in self.revisions.values() if r.status.key == key]
        return max(matching, key=lambda r: r.number, default=None)

    def _choose_candidate(self) -> int | None:
        if self.wanted is None:
            return None
        plain = self._latest(self.wanted.plain_key) or self._new(self.wanted.plain_key, None)
        if plain.standing is Standing.PROVEN and not fits(plain, self.view, self.wanted):
            plain = self._update(plain.number, probe=None, proof=plain.status.probe, probe_errors=0)
        if plain.standing is not Standing.PROVEN:
            return plain.number if plain.standing is Standing.UNTRIED else None
        draft = self._latest(self.wanted.draft_key) or self._new(self.wanted.draft_key, plain)
        return draft.number if draft.standing is Standing.UNTRIED else None

    def _new(self, key: str, plain: Revision | None) -> Revision:
        """A revision of the next number; with ``plain`` the one that serves the wanted draft."""
        if self.wanted is None:
            raise ValueError("nothing is wanted")
        drafted = {
            "draft": self.wanted.draft.digest,
            "artifact": self.wanted.artifact,
            "expected_accept_length": self.wanted.expected(self.view.obj.spec),
            "displaces": plain.status.displaces if plain else False,
            "covered": plain.status.covered if plain else False,
            "adaptive": self.serve.speculative.mode == "Auto",
        }
        status = RevisionStatus(
            number=max(self.revisions, default=-1) + 1,
            key=key,
            plain_key=self.wanted.plain_key,
            target=self.facts.target_digest,
        ).model_copy(update=drafted if plain is not None else {})
        self.revisions[status.number] = Revision(status, None, self.view.obj.spec)
        return self.revisions[status.number]

    def _drive(self, candidate: Revision) -> None:
        """Start the candidate's server and, once it is ready, measure it."""
        kind = "without speculation" if candidate.plain else "with the new draft"
        deployment = candidate.deployment
        self.wake.append(self.view.settings.poll_seconds)
        if deployment is None or deployment.ready_replicas == 0:
            self.reason, self.message = Reason.SERVER_STARTING, f"{candidate.name} is starting, {kind}"
            if deployment is not None:
                self._starting_trouble(candidate)
            return
        self.reason = Reason.MEASURING_BASELINE if candidate.plain else Reason.PROBING
        self.message = f"{candidate.name} is being measured, {kind}, before it gets traffic"
        if self.wanted is None:
            return
        plain = None if candidate.plain else self._latest(self.wanted.plain_key)
        status, step = measure(candidate, plain, self.view, self.wanted, self.facts, serving=self.serving)
        self.actions.add(step)
        if step.status.reason not in (None, Reason.PENDING):
            self.reason, self.message = step.status.reason, step.status.message
        self.revisions[candidate.number] = replace(candidate, status=status)
        standing = self.revisions[candidate.number].standing
        if standing is not Standing.UNTRIED:
            self.wake.append(0.5)

    def _starting_trouble(self, candidate: Revision) -> None:
        deployment = candidate.deployment
        if deployment is None:
            return
        if trouble := held_up(deployment.without_former_pods.pods):
            self.reason, self.message = trouble
        elif candidate.status.start_failures:
            self.message += f"; it failed {candidate.status.start_failures} times: {candidate.status.start_problem}"
        if waiting := without_place(deployment.pods):
            self._find_place(candidate, waiting)

    def _find_place(self, candidate: Revision, waiting: Pod) -> None:
        """What is only kept warm goes first; if that does not help, the candidate is to displace what serves."""
        since = waiting.unschedulable_since or waiting.created_at
        patient = (self.view.now - since).total_seconds() < self.view.settings.surge_patience_seconds
        held = self._end_bakes()
        if self.serving is not None and not held and not patient and not candidate.status.displaces:
            self._update(candidate.number, displaces=True)
            self.wake.append(0.5)

    def _end_bakes(self) -> bool:
        """What is only kept warm gives way to a candidate that finds no GPU. Whether any of it still holds one."""
        others = [r for n, r in self.revisions.items() if n not in (self.serving, self.candidate)]
        for revision in others:
            self._update(revision.number, bakes_until=None)
        pods = (pod for revision in others if revision.deployment is not None for pod in revision.deployment.pods)
        return any(revision.replicas for revision in others) or any(map(self.view.holds_place, pods))

    # ------------------------------------------------------------------------------------------ room, approval

    @property
    def _makes_room(self) -> bool:
        return self.room.training is not None and self.wanted is None

    def _cover(self) -> None:
        """Where servers made room, the new draft's revisions come up in their place, and need no other approval.

        That covers the first try only, not what an edit or an hour makes of it later.
        """
        if self.room.training is not None and self.candidate is not None and self.serving not in (None, self.candidate):
            self._update(self.candidate, covered=True, displaces=True)
        for number, revision in list(self.revisions.items()):
            if revision.status.covered and number != self.candidate:
                self._update(number, covered=False)

    def _blocked(self) -> bool:
        """Whether the candidate has to wait for a person: an outage, once the object has been Ready."""
        if self.candidate is None:
            return False
        candidate, spec = self.revisions[self.candidate], self.view.obj.spec
        if spec.suspend and (candidate.replicas == 0 or candidate.displaces(self.serving)):
            self.reason, self.message = Reason.SUSPENDED, "spec.suspend is true: nothing new is started"
            return True
        outage = candidate.displaces(self.serving)
        approvals = Approvals(self.view.obj, self.before.ready_once)
        if not approvals.needed(outage=outage) or candidate.status.covered or self._approved(candidate, approvals):
            return False
        cost = (
            f"{candidate.name} finds no GPU beside r{self.serving}, so it would replace it: the Service has no pod while it "
            f"starts and is probed (a start may take up to {start_budget(spec, self.facts) / 60:.0f} min)"
            if outage
            else f"autoApply is Never: {candidate.name} is not started by itself"
        )
        self.reason = Reason.AWAITING_APPROVAL
        self.message = f"{cost}. {approvals.command(candidate.name, candidate.status.key)}"
        return True

    def _approved(self, candidate: Revision, approvals: Approvals) -> bool:
        """One approval covers a new way of serving: its plain revision and the one with the draft."""
        return any(
            approvals.given(r.name, r.status.key)
            for r in self.revisions.values()
            if r.status.plain_key == candidate.status.plain_key
        )

    # ------------------------------------------------------------------------------------------- goal, replicas

    def _best(self, without: int | None = None) -> Revision | None:
        return best(
            self.revisions.values(), wanted=self.wanted, facts=self.facts, serving=self.serving, without=without
        )

    def _goal(self) -> Revision | None:
        """The best proven revision; while a candidate is undecided, what serves and is proven stays."""
        current = self.revisions.get(self.serving) if self.serving is not None else None
        undecided = self.candidate is not None and self.revisions[self.candidate].standing is Standing.UNTRIED
        kept = current is not None and current.standing is Standing.PROVEN and current.deployment is not None
        if undecided and kept:
            return current
        goal = self._best()
        return current if current is not None and self._rests(current, goal) else goal

    def _rests(self, current: Revision, goal: Revision | None) -> bool:
        """Whether the watch, which would move the Service back from here, has done so too recently."""
        back = current.dropped and current.ready > 0 and (goal is None or goal.number < current.number)
        left = seconds(self.watch.cooldown) - times.age(self.rolled_back, self.view.now)
        if not back or self.rolled_back is None or left <= 0:
            return False
        self.wake.append(left + 1)
        return True

    def _set_replicas(self, goal: Revision | None, *, blocked: bool) -> None:
        if self._makes_room:
            want = dict.fromkeys(self.revisions, 0)
            for number in want:
                self._update(number, bakes_until=None)
        else:
            candidate = self.revisions[self.candidate] if self.candidate is not None and not blocked else None
            # What is fallen back to while it is measured again gets the pods of a goal, not the one of a candidate
            tried = candidate is not None and candidate.standing is Standing.UNTRIED and candidate is not goal
            want = capacity.replicas(
                self.revisions,
                count=self.serve.replicas,
                serving=self.serving,
                baking=self._baking(),
                goal=Claimant(goal, self._takes_over(goal)) if goal is not None else None,
                candidate=Claimant(candidate, candidate.displaces(self.serving))
                if candidate is not None and tried
                else None,
            )
        for number, count in want.items():
            if count > 0 and self.revisions[number].replicas == 0:
                self._update(number, started_at=times.text(self.view.now))
            apply, scale = capacity.bring(self.revisions[number], count, self.view, self.facts)
            self.actions.apply += apply
            self.scale += scale

    def _baking(self) -> list[int]:
        """The former revisions that are still kept warm."""
        warm = []
        for number, revision in list(self.revisions.items()):
            until = revision.status.bakes_until
            left = (times.parse(until) - self.view.now).total_seconds() if until else 0.0
            if left > 0 and revision.standing is not Standing.REJECTED:
                warm.append(number)
                self.wake.append(left + 1)
            elif until:
                self._update(number, bakes_until=None)
        return warm

    def _takes_over(self, goal: Revision) -> bool:
        """A rollback never waits: where its goal finds no GPU, the serving revision goes first.

        But for GPUs that are about to be free: taking away what serves would only leave the Service without a pod.
        """
        if goal.number == self.serving or goal.ready > 0:
            return False
        waits = goal.deployment is not None and without_place(goal.deployment.pods) is not None
        if waits and not self._pods_are_going():
            goal = self._update(goal.number, displaces=True)
        return goal.status.displaces or self.serve.surge == "Never"

    def _pods_are_going(self) -> bool:
        """Whether pods that do not serve end, and are to be waited for."""
        others = (r.deployment for n, r in self.revisions.items() if n != self.serving and r.deployment is not None)
        return any(pod.terminating and self.view.holds_place(pod) for deployment in others for pod in deployment.pods)

    # ----------------------------------------------------------------------------------- promotion, retirement

    def _promote(self, goal: Revision) -> None:
        """Move the public Service, one patch, once the goal is ready."""
        if goal.number == self.serving:
            return
        former = self.revisions.get(self.serving) if self.serving is not None else None
        enough = max(1, self.serve.replicas) if former is not None and former.ready else 1
        if goal.ready < enough and self.serve.replicas > 0:
            rolling_back = former is not None and self.candidate is None
            if rolling_back and self.reason is None:
                self.reason, self.message = Reason.SERVER_STARTING, f"{goal.name} is starting, to take over"
            self.wake.append(self.view.settings.poll_seconds)
            return
        self.actions.apply.append(servers.public_service(self.view.obj, revision=goal.number))
        self._update(goal.number, promoted_at=times.text(self.view.now), bakes_until=None)
        if former is not None:
            self._leave(former, goal)
        else:
            self.events.append(Event("Normal", "Promoted", f"Service {self.name} serves {goal.name}"))
        self.serving = goal.number
        self.wake.append(0.5)

    def _leave(self, former: Revision, goal: Revision) -> None:
        bad = former.standing is Standing.REJECTED
        warm = not bad and former.replicas > 0 and seconds(self.serve.bake_time) > 0
        until = self.view.now + timedelta(seconds=seconds(self.serve.bake_time))
        self._update(former.number, bakes_until=times.text(until) if warm else None)
        if former.dropped:
            self.rolled_back = times.text(self.view.now)
        if bad:
            reason, message = former.judgement()
            text = f"Service {self.name} moved back from {former.name} to {goal.name}: {reason}: {message}"
            self.events.append(Event("Warning", "RolledBack", text))
        else:
            text = f"Service {self.name} moved from {former.name} to {goal.name}"
            self.events.append(Event("Normal", "Promoted", text))

    def _retire(self, goal: Revision | None) -> None:
        """Delete what nobody can need: beyond revisionHistoryLimit, never what serves, is wanted, or is fallen back to.

        Nor a baseline of these: measuring it again may take an outage.
        """
        preferred = (r.number for r in (goal, self._best(without=self.serving)) if r is not None)
        needed = {n for n in (self.serving, self.candidate, *preferred) if n is not None}
        baselines = {self.revisions[n].status.plain_key for n in needed}
        over = retirement.retired(
            self.revisions,
            needed=needed,
            wanted=baselines | ({self.wanted.plain_key, self.wanted.draft_key} if self.wanted else set()),
            keep=self.view.obj.spec.revision_history_limit,
        )
        for number in over:
            name = names.revision_name(self.name, number)
            if number in self.view.seen.deployments:
                self.actions.delete.append(Delete("Deployment", name))
                self.scale = [scale for scale in self.scale if scale.name != name]
            if name in self.view.seen.services:
                self.actions.delete.append(Delete("Service", name))
            del self.revisions[number]
        self.actions.delete += retirement.probes(self.view.seen.jobs.values(), self.revisions, self.candidate)

    def _described(self, revision: Revision) -> Revision:
        """The revision with its state and its reason, for people."""
        if revision.standing is not Standing.UNTRIED:
            reason, message = revision.judgement()
        elif revision.number == self.candidate:
            reason, message = self.reason or Reason.PENDING, self.message
        elif self.wanted is None:
            reason, message = Reason.PENDING, "waits until target, data and draft are known again"
        else:
            reason, message = Reason.PENDING, "the object asks for another revision by now"
        state = revision.state(serving=revision.number == self.serving)
        changes = {"state": state, "reason": reason, "message": message}
        return replace(revision, status=revision.status.model_copy(update=changes))
