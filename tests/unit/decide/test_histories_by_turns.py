"""What holds whatever happens on a node that serves and trains by turns: no outage that nobody approved, and no wedge."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from eagle3_api.conditions import Reason
from eagle3_api.jobs import StageName
from eagle3_api.status import StageState
from eagle3_operator.decide.revisions import Standing, known
from eagle3_operator.decision import Decision, Manifest
from unit.decide.happenings import Happenings
from unit.decide.world import World, serving_draft
from unit.samples import converted

pytestmark = pytest.mark.stages  # a search through histories takes seconds


@dataclass
class Node(World):
    """A world that notes when the serving revision loses its pods, and with whose word."""

    #: Of each loss that had to be approved: the annotation, and the status that the decision wrote.
    losses: list[tuple[str, Decision]] = field(default_factory=list)
    #: A proven draft has had traffic.
    has_served: bool = False

    def step(self) -> Decision:
        serving, had = self.serving, self.replicas
        before = {r.number: r for r in known(self.told.revisions, self.seen, self.obj.spec)}
        served = before.get(serving) if serving is not None else None
        proven = served is not None and served.standing is Standing.PROVEN
        decision = super().step()
        lost = serving is not None and had.get(serving, 0) > 0 and self.replicas.get(serving, 0) == 0
        if lost and proven and self.has_served:
            self.losses.append((self.annotations.get("eagle3.dev/approve", ""), decision))
        self.has_served |= proven and served is not None and not served.plain and served.ready > 0
        return decision

    def _apply_job(self, manifest: Manifest) -> None:
        super()._apply_job(manifest)
        if manifest["metadata"]["labels"]["eagle3.dev/stage"] in ("extract", "train"):
            pods = [pod for deployment in self.seen.deployments.values() for pod in deployment.pods]
            overdue = [pod for pod in pods if pod.gone_by and (self.now - pod.gone_by).total_seconds() >= 120]
            assert pods == overdue, "servers still hold the GPUs"


class AnyTraining(Happenings):
    """One object from its first proven draft on."""

    world: Node
    drafts = 0

    @initialize(
        policy=st.sampled_from(["WhenNoOutage", "Never"]),
        surge=st.sampled_from(["IfFree", "Never"]),
        published=st.booleans(),
        claim_is_ours=st.booleans(),
    )
    def serve(self, policy: str, surge: str, published: bool, claim_is_ours: bool) -> None:
        self.world = Node(room=1 if surge == "Never" else 2)
        self.world.edit(
            autoApply=policy, serve={"whileTraining": "ScaleToZero", "surge": surge}, revisionHistoryLimit=1
        )
        if claim_is_ours:
            self.world.edit(storage={"features": {"claim": None, "size": "1Ti"}})
        if published:
            self.world.edit(publish={"oci": {"reference": "registry.example.com/llm/kimi"}})
        serving_draft(self.world).later(700).settle()

    # ------------------------------------------------------------------------------------------------ histories

    @rule(epochs=st.integers(1, 4))
    def the_training_is_edited(self, epochs: int) -> None:
        self.world.edit(train={"epochs": epochs}).settle()

    @rule(length=st.sampled_from([1024, None]))
    def the_data_is_edited(self, length: int | None) -> None:
        self.world.edit(data={"maxLength": length}).settle()

    @rule(checkpoint=st.sampled_from(["/data/another", None]))
    def a_draft_is_adopted_or_trained_again(self, checkpoint: str | None) -> None:
        self.world.edit(draft={"checkpoint": checkpoint, "vocabularySize": None if checkpoint else 32000}).settle()

    @rule(what=st.sampled_from(["inspect", "extract", "train", "convert", "clean", "publish", "the draft before"]))
    def a_person_retries(self, what: str) -> None:
        rejected = [r.number for r in self.world.told.revisions if r.number != self.world.serving]
        self.retry(f"r{max(rejected, default=0)}" if what == "the draft before" else what)

    @rule(suspended=st.booleans())
    def it_is_suspended_or_resumed(self, suspended: bool) -> None:
        self.world.edit(suspend=suspended).settle()

    @rule()
    def the_annotation_is_removed(self) -> None:
        self.world.annotations.pop("eagle3.dev/approve", None)
        self.world.settle()

    def _working(self) -> str | None:
        stages = ("inspect", "extract", "train", "convert", "clean", "publish")
        jobs = [job for job in self.world.seen.jobs.values() if job.stage in stages]
        return next((job.stage for job in jobs if not job.finished and not job.suspended), None)

    @precondition(lambda self: self._working() is not None)
    @rule(well=st.booleans())
    def a_stage_ends(self, well: bool) -> None:
        stage = self._working()
        assert stage is not None
        self.drafts += 1
        if not well and stage != "inspect":
            self.world.fail(stage, Reason.NON_FINITE, "the loss is nan.")
        elif stage == "convert":
            self.world.finish(stage, converted(f"{self.drafts:064x}"))
        else:
            self.world.finish(stage)

    @rule()
    def finished_jobs_are_cleared_away(self) -> None:
        left = {name: job for name, job in self.world.seen.jobs.items() if not job.finished}
        self.world.seen = replace(self.world.seen, jobs=left)
        self.world.settle()

    # ------------------------------------------------------------------------------------------------ invariants

    @invariant()
    def no_proven_revision_loses_its_pods_without_a_word_for_it(self) -> None:
        for word, decision in self.world.losses:
            what, _, key = word.partition("@")
            status = decision.status
            if what in ("train", "convert"):
                covered = any(revision.covered for revision in status.revisions)
                assert (status.room_for or "").startswith(key) or covered, (word, status.room_for)
            else:
                assert any(f"r{r.number}" == what and r.key.startswith(key) for r in status.revisions), word
        self.world.losses.clear()

    @invariant()
    def the_servers_are_there_unless_something_takes_their_place(self) -> None:
        world = self.world
        if world.serving is None or world.last is None or world.told.room_for is not None:
            return
        others = [n for n, count in world.replicas.items() if count and n != world.serving]
        assert others or world.replicas[world.serving] == 1

    @invariant()
    def room_is_held_only_while_something_is_under_way(self) -> None:
        world = self.world
        if world.told.room_for is not None:
            beside = ("probe", "clean", "publish")
            unfinished = [job for job in world.seen.jobs.values() if not job.finished and job.stage not in beside]
            assert unfinished or world.reason()[1] is Reason.MAKING_ROOM
            assert not any(world.replicas.values())

    @invariant()
    def what_serves_can_be_compared_with_its_baseline(self) -> None:
        revisions = {r.number: r for r in self.world.told.revisions}
        if self.world.serving is not None:
            serving = revisions[self.world.serving]
            assert any(
                r.key == serving.plain_key and r.number in self.world.seen.deployments for r in revisions.values()
            )

    @invariant()
    def a_claim_of_ours_is_there_only_while_features_are_made_or_read(self) -> None:
        states = {stage.name: stage.state for stage in self.world.told.stages}
        last = StageName.CONVERT if self.world.obj.spec.draft.checkpoint else StageName.TRAIN
        finished = all(states.get(name) is StageState.SUCCEEDED for name in (StageName.INSPECT, last))
        under_way = any(not job.finished for job in self.world.seen.jobs.values())
        if finished and not under_way and not self.world.spec.get("suspend"):
            assert "kimi-features" not in self.world.seen.claims


AnyTraining.TestCase.settings = hypothesis_settings(max_examples=20, stateful_step_count=20, deadline=None)
TestAnyTraining = AnyTraining.TestCase
