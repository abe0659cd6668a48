"""Revisions: what is known of each way of serving, and where it stands.

A revision's standing is computed anew from its stored measurements in every reconcile, which asks for it dozens of times, so
that a change of policy re-judges without measuring again. What is stored are observations only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, ProbeResult
from eagle3_api.spec import Eagle3DraftSpec, Serve
from eagle3_api.status import RevisionState, RevisionStatus, Window
from eagle3_operator.decision import Because
from eagle3_operator.judge.bar import Bar
from eagle3_operator.judge.probe import judge_probe
from eagle3_operator.judge.verdict import Outcome, Verdict
from eagle3_operator.judge.watch import judge_watch
from eagle3_operator.observation import Deployment, Observation

#: A probe that could not measure is tried so often.
PROBE_TRIES = 3

#: By which a draft is told that gains too little, as against one that is wrong.
_BELOW_THE_BAR = (Reason.SLOWER_THAN_BASELINE, Reason.LOW_ACCEPT_LENGTH)


class Standing(StrEnum):
    """Where a revision stands."""

    UNTRIED = "Untried"
    PROVEN = "Proven"
    REJECTED = "Rejected"
    STALLED = "Stalled"


@dataclass(frozen=True)
class Wanted:
    """What the object wants served, once its newest draft is converted."""

    plain_key: str
    draft_key: str
    artifact: str
    draft: ConvertResult

    def expected(self, spec: Eagle3DraftSpec) -> float | None:
        """The accept length expected from training when the server drafts as many steps as the object says.

        Of a server that adapts its steps it is the one that it reaches by a single step, the fewest that it drafts.
        """
        lengths = self.draft.expected_accept_lengths
        if not lengths or spec.serve is None:
            return None
        speculative = spec.serve.speculative
        steps = 1 if speculative.mode == "Auto" else speculative.num_steps
        return lengths[min(steps, len(lengths)) - 1]


@dataclass(frozen=True)
class Revision:
    """One revision: what the status remembers and the Deployment as it is now. As it does not change, it is judged once."""

    status: RevisionStatus
    deployment: Deployment | None
    spec: Eagle3DraftSpec

    @property
    def number(self) -> int:
        return self.status.number

    @property
    def name(self) -> str:
        """``r<n>``, for people."""
        return f"r{self.status.number}"

    @property
    def plain(self) -> bool:
        return self.status.draft is None

    @property
    def replicas(self) -> int:
        return self.deployment.replicas if self.deployment else 0

    @property
    def ready(self) -> int:
        return self.deployment.ready_replicas if self.deployment else 0

    @property
    def edited(self) -> bool:
        """Somebody has made something else of its Deployment: what is measured of it says nothing."""
        made, now = self.status.template, self.deployment
        if now is None or (made is not None and made.runs == now.template.runs):
            return False
        # What nobody wrote is new with the cluster's own version; but for what is gone
        return now.edited_by is not None or (made is not None and made.fields != now.template.fields)

    @property
    def serve(self) -> Serve:
        return self.spec.serve or Serve()

    @property
    def measurement(self) -> ProbeResult | None:
        """What is judged to prove it, and compared with as a baseline; None while it is to be measured, or measured again."""
        return self.status.probe

    @property
    def serves_by(self) -> ProbeResult | None:
        """What it serves by: its measurement, or its former one while it is to be measured again."""
        return self.measurement or self.status.proof

    @cached_property
    def probe_verdict(self) -> Verdict | None:
        """The judgement of the measurement by today's policy; None before there is one."""
        return self._judged(self.measurement)

    def _judged(self, probe: ProbeResult | None) -> Verdict | None:
        if probe is None:
            return None
        return judge_probe(probe, self.spec.probe, expected=self.status.expected_accept_length, name=self.name)

    @cached_property
    def _service_verdict(self) -> Verdict | None:
        """The same of what it serves by."""
        return self.probe_verdict if self.measurement is not None else self._judged(self.status.proof)

    @cached_property
    def watch_verdict(self) -> Verdict | None:
        """The judgement of the stored windows; None for a plain revision."""
        watch = self.spec.watched
        if self.plain or watch is None:
            return None
        status = self.status
        verdict = judge_watch(
            self.comparable,
            watch,
            self._bar,
            early=status.early_accept_length,
            problem=status.watch_problem,
        )
        if verdict.failed or status.watch_problem or not status.windows or self._bar.comparable(status.windows[-1]):
            return verdict
        newest = status.windows[-1]
        text = (
            f"{newest.running:.0f} requests together in {newest.start}/{newest.end}: the servers draft differently at that load than "
            f"when they were probed, at concurrency {' and '.join(map(str, self._bar.loads))}; only windows near that load are judged"
        )
        return Verdict(Outcome.INCONCLUSIVE, Reason.OTHER_LOAD, text)

    @cached_property
    def _bar(self) -> Bar:
        """Of its windows. Where its own measurement does not reach today's, each would fail: then only what costs time does."""
        policy = self.spec.probe
        if self._measured_below_the_bar:
            lower = {"min_speedup": min(policy.min_speedup, 1.0), "min_accept_length": 1.0}
            policy = policy.model_copy(update=lower)
        return Bar(policy, self.serves_by, self.status.adaptive)

    @property
    def comparable(self) -> list[Window]:
        """The windows that can be judged."""
        return [window for window in self.status.windows if self._bar.comparable(window)]

    @property
    def as_probed(self) -> list[Window]:
        """Those of them whose accept lengths can be compared with each other."""
        return [window for window in self.comparable if self._bar.as_probed(window)]

    @cached_property
    def dropped(self) -> bool:
        """The watch has failed it, and is to be obeyed."""
        verdict, watch = self.watch_verdict, self.spec.watched
        return verdict is not None and verdict.failed and watch is not None and watch.mode == "Enforce"

    @property
    def startable(self) -> bool:
        """It has not failed to start more often than the object allows."""
        return self.status.start_failures <= self.serve.start_retries

    def replaces(self, serving: int | None) -> bool:
        """Whether it can only start in the place of what serves, not beside it (``place``)."""
        others = serving is not None and serving != self.number
        return others and (self.status.displaces or self.serve.surge == "Never")

    @cached_property
    def standing(self) -> Standing:
        verdict = self.probe_verdict
        if verdict is not None and verdict.failed:
            return Standing.REJECTED
        if verdict is not None and verdict.passed:
            return Standing.REJECTED if self.dropped else Standing.PROVEN
        if not self.startable or self.status.probe_errors >= PROBE_TRIES:
            return Standing.STALLED
        return Standing.UNTRIED

    @cached_property
    def may_serve(self) -> bool:
        """It is proven; or it was, and is only to be measured again.

        It has not become worse by that: it serves on, and must not be missing when a bad draft is to be left.
        """
        verdict = self._service_verdict
        return verdict is not None and verdict.passed and not self.dropped

    @property
    def below_the_bar(self) -> bool:
        """What it was measured as is not enough by today's policy, and that is all: it is not wrong, nor has it become worse."""
        return self._measured_below_the_bar and not self.dropped

    @property
    def _measured_below_the_bar(self) -> bool:
        verdict = self._service_verdict
        return verdict is not None and verdict.failed and verdict.reason in _BELOW_THE_BAR

    def state(self, *, serving: bool, tried: bool) -> RevisionState:
        """Where it stands, in one word for people.

        Args:
            serving: the public Service selects it.
            tried: it is the candidate.
        """
        standing = self.standing
        if standing is Standing.REJECTED:
            return RevisionState.REJECTED
        if standing is Standing.STALLED or not self.startable:
            return RevisionState.STALLED
        if serving:
            return RevisionState.SERVING
        if self.may_serve and not tried:
            return RevisionState.PROVEN if self.replicas else RevisionState.RETIRED
        if self.ready:
            return RevisionState.PROBING
        return RevisionState.STARTING if self.replicas else RevisionState.WAITING

    def judgement(self) -> Because:
        """Why it stands where it does, in words for the user."""
        if self.dropped and self.watch_verdict is not None:
            return Because(self.watch_verdict.reason, self.watch_verdict.message)
        if self.probe_verdict is not None and (self.probe_verdict.failed or self.startable):
            return Because(self.probe_verdict.reason, self.probe_verdict.message)
        if not self.startable:
            return Because(self.status.reason or Reason.START_FAILED, self.status.start_problem)
        return Because(Reason.PROBE_ERROR, self.status.probe_problem)


def known(before: Iterable[RevisionStatus], seen: Observation, spec: Eagle3DraftSpec) -> list[Revision]:
    """All revisions, by number: those the status remembers, and those whose Deployment was made before a status was lost."""
    remembered = {status.number: status for status in before}
    for number, deployment in seen.deployments.items():
        if number not in remembered and deployment.owned and not deployment.terminating:
            remembered[number] = _from_record(deployment)
    there = {n: d for n, d in seen.deployments.items() if not d.terminating}
    return [Revision(status, there.get(number), spec) for number, status in sorted(remembered.items())]


def record(status: RevisionStatus) -> dict[str, str]:
    """What the Deployment says of its revision, so that ``known`` can rebuild the status from it."""
    made = {
        "plainKey": status.plain_key,
        "target": status.target,
        "draft": status.draft,
        "artifact": status.artifact,
        "model": status.model,
    }
    if status.expected_accept_length is not None:
        made["expected"] = repr(status.expected_accept_length)
    if status.adaptive:
        made["adaptive"] = "true"
    return {name: value for name, value in made.items() if value is not None}


def _from_record(deployment: Deployment) -> RevisionStatus:
    said = deployment.record
    return RevisionStatus(
        number=deployment.revision,
        key=deployment.key,
        plain_key=said.get("plainKey", deployment.key),
        target=said.get("target", ""),
        draft=said.get("draft"),
        artifact=said.get("artifact"),
        model=said.get("model"),
        expected_accept_length=float(said["expected"]) if "expected" in said else None,
        adaptive=said.get("adaptive") == "true",
    )
