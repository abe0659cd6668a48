"""What an object makes of a stage: where its pods run, how many, in which image, with how many GPUs.

What does not depend on the object stands in ``traits``.
"""

from eagle3_api.jobs import StageName
from eagle3_api.spec import Eagle3DraftSpec, Hook, Placement, seconds
from eagle3_operator.manifests import hook
from eagle3_operator.traits import TRAITS


def is_large(spec: Eagle3DraftSpec, stage: StageName) -> bool:
    """Whether a stage's pods fill the node they run on.

    The placement's cpu, memory and shared memory speak of them and of the servers; the others are small, and must find a
    place beside a server that has taken the node's memory.
    """
    return stage in (StageName.EXTRACT, StageName.TRAIN) or runs_target(spec, stage)


def runs_target(spec: Eagle3DraftSpec, stage: StageName) -> bool:
    """Whether a stage's pods run the target: extraction, and the conversion of a draft that brings no features."""
    return stage is StageName.EXTRACT or (stage is StageName.CONVERT and spec.draft.checkpoint is not None)


def stage_placement(spec: Eagle3DraftSpec, stage: StageName) -> Placement:
    """Where and with what a stage's pods run: the object's placement under the stage's own."""
    own = spec.train.placement if stage is StageName.TRAIN else None
    if runs_target(spec, stage):
        own = spec.extract.placement
    placement = (own or Placement()).over(spec.placement)
    if stage is StageName.HOOK and (wanted := wanted_hook(spec)) is not None:
        placement = hook.placed(wanted, placement)
    if is_large(spec, stage):
        return placement
    return placement.model_copy(update={"cpu": None, "memory": None, "shm_size": None})


def stall_timeout(spec: Eagle3DraftSpec, stage: StageName) -> float | None:
    """Seconds that a stage's pods may be silent, where they tell of their progress."""
    if runs_target(spec, stage):
        return seconds(spec.extract.stall_timeout)
    return seconds(spec.train.stall_timeout) if stage is StageName.TRAIN else None


def stage_gpus(spec: Eagle3DraftSpec, stage: StageName) -> int:
    """GPUs of a stage's pod."""
    if runs_target(spec, stage):
        return spec.extract.gpus
    return spec.train.gpus if stage is StageName.TRAIN else 0


def stage_image(spec: Eagle3DraftSpec, stage: StageName) -> str:
    """The image of a stage that needs more than ours."""
    theirs = {StageName.TRAIN: spec.train.trainer, StageName.HOOK: wanted_hook(spec)}.get(stage)
    return theirs.image if theirs is not None else spec.image


def wanted_hook(spec: Eagle3DraftSpec) -> Hook | None:
    """The command that follows a push, if there is one."""
    return spec.publish.hook if spec.publish is not None else None


def stage_pods(spec: Eagle3DraftSpec, stage: StageName) -> int:
    """Pods of a stage that share its work."""
    return {StageName.EXTRACT: spec.extract.shards, StageName.TRAIN: spec.train.nodes}.get(stage, 1)


def stage_queue(spec: Eagle3DraftSpec, stage: StageName) -> str | None:
    """The queue that a stage's Job waits in for quota: the small ones take next to nothing and wait for nobody."""
    return spec.queue_name if is_large(spec, stage) else None


def stage_grace(spec: Eagle3DraftSpec, stage: StageName) -> int:
    """Seconds that a stage's pod has between SIGTERM and SIGKILL."""
    return stage_placement(spec, stage).termination_grace_period_seconds or TRAITS[stage].grace
