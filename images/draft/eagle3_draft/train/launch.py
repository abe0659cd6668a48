"""What runs once, around the ranks: the checks, what the training begins with, the elastic launcher."""

import os
from contextlib import suppress
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig, TrainResult
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features
from eagle3_draft.model.target import Target
from eagle3_draft.runtime import pod
from eagle3_draft.storage import artifacts, places
from eagle3_draft.storage.places import place_of
from eagle3_draft.train import endings, foreign
from eagle3_draft.train.begin import prepare
from eagle3_draft.train.checks import check_devices, check_features
from eagle3_draft.train.telemetry import check_libraries

#: The ranks get this much less than the pod's grace to write a checkpoint before they are killed.
MARGIN_SECONDS = 5

#: Pods on several nodes wait so long for each other. It is long, because the operator says what holds up a pod that does not
#: come (no node, no image) and ends a Job that does nothing for another reason.
MEETING_SECONDS = 24 * 3600


def run(config: TrainConfig) -> TrainResult:
    """Train a draft and publish it.

    Raises:
        StageError: InvalidConfiguration, FeatureMismatch, NoUsableData, NonFinite, Interrupted (resumable),
            CheckpointUnreadable, or what a rank that failed said.
    """
    folder, scratch = Path(config.folder), Path(config.scratch)
    if (manifest := artifacts.finished(folder, config.key)) is not None:
        artifacts.remove_working_files(folder)  # it may have been killed as soon as it was published
        _clean(config)
        return artifacts.numbers(folder, manifest, TrainResult)
    check_libraries(config)
    folder.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    features = Features.open(Path(config.features), place_of(config.object_store, Path(config.features)))
    target = Target(Path(config.target))
    check_devices(config)
    check_features(features, target, config)
    if config.trainer is not None:
        config = foreign.train(config, config.trainer)
    index = pod.index()
    if index == 0:  # the others read what it writes once they have met it
        prepare(config, features, target)
    result = _launch(config, index)
    if index == 0:
        _clean(config)
    return result


def _clean(config: TrainConfig) -> None:
    """Remove this training's own working files, its checkpoints among them, and what others left."""
    scratch = Path(config.scratch)
    with suppress(OSError):  # where it went with the artifact's working files, or is not empty
        artifacts.remove_working_files(scratch)
        scratch.rmdir()
    remove_abandoned(config)


def remove_abandoned(config: TrainConfig) -> None:
    """Remove what this object's trainings under other keys left unfinished: the spec has changed since, and a draft is trained.

    Their checkpoints lie beside this training's scratch, the weights of their best drafts beside its artifact. A finished one stays.
    """
    for own in dict.fromkeys((Path(config.folder), Path(config.scratch))):
        places.remove_abandoned(own, StageName.TRAIN, places.Volume())


def _launch(config: TrainConfig, index: int) -> TrainResult:
    """Run this pod's processes, one per GPU, to the end, together with those of the other pods; rank 0 publishes."""
    if index == 0:
        endings.forget(config)
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, config.grace_seconds - MARGIN_SECONDS))
    try:
        results: dict[int, TrainResult] = elastic_launch(_meeting(config, index), _work)(config)
    except ChildFailedError as error:
        first, failure = error.get_first_failure()
        here = range(index * config.processes, (index + 1) * config.processes)
        raise endings.of_failure(config, here, first, failure.exitcode) from None
    except SignalException:
        raise endings.of_interruption(config) from None
    except (RendezvousError, DistError) as error:
        raise StageError(
            ExitCode.ENGINE_CRASHED,
            Reason.JOB_FAILED,
            f"pod {index} did not meet the {len(config.hosts)} pods of this training at {config.hosts[:1]}: {error}. The next "
            "try waits for them once more",
        ) from error
    return next(iter(results.values()))


def _work(config: TrainConfig) -> TrainResult:
    """One rank. What it needs takes a second to import, and the launcher needs none of it."""
    from eagle3_draft.train.worker import work

    return work(config)


def _meeting(config: TrainConfig, index: int) -> LaunchConfig:
    """How the ranks of all pods find each other: in the first pod, which waits for as many as there are to be.

    No pod is replaced within a running training: all end when one does, and the Job starts them anew.
    """
    if not config.hosts:
        # All ranks are in this pod: the collectives need no name that a resolver would have to know
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    waiting = {"join_timeout": MEETING_SECONDS, "read_timeout": MEETING_SECONDS, "is_host": str(index == 0)}
    return LaunchConfig(
        min_nodes=max(1, len(config.hosts)),
        max_nodes=max(1, len(config.hosts)),
        nproc_per_node=config.processes,
        run_id=config.key,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{config.hosts[0]}:{config.meeting_port}" if config.hosts else "127.0.0.1:0",
        rdzv_configs=waiting if config.hosts else {},
        # Ranks follow the order of these names: the first pod has rank 0
        local_addr=config.hosts[index] if config.hosts else "127.0.0.1",
        max_restarts=0,
    )
