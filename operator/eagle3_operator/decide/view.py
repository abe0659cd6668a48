"""What the parts of a decision look at, and what they want done."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from eagle3_api.jobs import ProbeConfig, TrainConfig
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import StageStatus
from eagle3_operator.decide import refusals
from eagle3_operator.decide.stages import Link
from eagle3_operator.decision import Because, Delete, Manifest, Own, Suspend
from eagle3_operator.manifests import group, jobs, names
from eagle3_operator.manifests.sizing import stage_pods
from eagle3_operator.observation import Job, Observation, Pod
from eagle3_operator.settings import Settings


@dataclass(frozen=True)
class Step:
    """What became of one stage, and what to do about its Job."""

    status: StageStatus
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Delete, ...] = ()
    suspend: tuple[Suspend, ...] = ()
    #: What keeps its Job from being started or resumed.
    waits_for: Because | None = None


@dataclass
class Actions:
    """What the parts of a decision want done, collected, and what they wait for."""

    apply: list[Manifest] = field(default_factory=list)
    delete: list[Delete] = field(default_factory=list)
    suspend: list[Suspend] = field(default_factory=list)
    own: list[Own] = field(default_factory=list)
    waits: list[Because] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.apply += step.apply
        self.delete += step.delete
        self.suspend += step.suspend
        self.waits += [step.waits_for] if step.waits_for is not None else []


@dataclass(frozen=True)
class View:
    """What the parts of a decision look at: the object, its children, the settings and the time."""

    obj: Eagle3Draft
    seen: Observation
    settings: Settings
    now: datetime

    def job(self, link: Link) -> Job | None:
        return self.seen.jobs.get(names.job_name(self.obj.metadata.name, link.stage, link.key))

    def refused(self, *children: tuple[str, str]) -> Because | None:
        """What to say of the first of these children, by kind and name, to which something could not be done."""
        found = (refusal for child in children if (refusal := self.seen.refusal(*child)) is not None)
        return next((refusals.told(refusal, self.obj.metadata.namespace) for refusal in found), None)

    def refused_of(self, made: Iterable[Manifest]) -> Because | None:
        """The same of what is to be made."""
        return self.refused(*((one["kind"], one["metadata"]["name"]) for one in made))

    def holds_place(self, pod: Pod) -> bool:
        """Whether a pod is still to be waited for, until its GPUs are free: not long after it should have ended, on a lost node."""
        overdue = (self.now - pod.gone_by).total_seconds() if pod.gone_by is not None else 0.0
        return overdue < self.settings.surge_patience_seconds

    def manifests(self, link: Link) -> tuple[Manifest, ...]:
        """The Job of a stage, or the JobSet that runs it, after what must be there before it."""
        one_node = self.seen.one_node_claims
        if isinstance(link.config, TrainConfig) and stage_pods(self.obj.spec, link.stage) > 1:
            return group.launched(self.obj, self.settings, link.config, jobsets=self.seen.jobsets, one_node=one_node)
        revision = link.config.revision if isinstance(link.config, ProbeConfig) else None
        return (jobs.job(self.obj, self.settings, config=link.config, revision=revision, one_node=one_node),)
