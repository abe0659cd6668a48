"""From the configuration to the published artifact: what runs once, around the ranks."""

import json
import os
import platform
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from eagle3_api.artifacts import CONFIG, HELD_OUT, PROMPTS, REPORT, VOCABULARY
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig, TrainResult
from eagle3_draft import artifacts
from eagle3_draft.child import Outcome
from eagle3_draft.data.inputs import inherited
from eagle3_draft.features import Features, Sample
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.target import Target
from eagle3_draft.stage import StageError
from eagle3_draft.train import vocabulary
from eagle3_draft.train.checkpoints import TrainingState
from eagle3_draft.train.checks import check_devices, check_features
from eagle3_draft.train.evaluate import Evaluation
from eagle3_draft.train.worker import outcome_file, work

#: The ranks get this much less than the pod's grace to write a checkpoint before they are killed.
MARGIN_SECONDS = 5

#: Bounds of the held-out sample that the artifact keeps: conversations, and tokens of each.
SAMPLE_CONVERSATIONS, SAMPLE_TOKENS = 64, 256


def run(config: TrainConfig) -> TrainResult:
    """Train a draft and publish it.

    Raises:
        StageError: InvalidConfiguration, FeatureMismatch, NoUsableData, NonFinite, Interrupted (resumable),
            CheckpointUnreadable, or what a rank that failed said.
    """
    folder, scratch = Path(config.folder), Path(config.scratch)
    if (manifest := artifacts.finished(folder, config.key)) is not None:
        return TrainResult.model_validate(manifest.numbers)
    started = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    features = Features.open(Path(config.features))
    target = Target(Path(config.target))
    check_devices(config)
    check_features(features, target, config)
    coverage = _prepare(config, features, target)
    state = _launch(config)
    result = _publish(config, features, state, coverage, started)
    artifacts.remove_working_files(scratch)
    with suppress(OSError):  # where it is not empty
        scratch.rmdir()
    return result


def _prepare(config: TrainConfig, features: Features, target: Target) -> float:
    """Write the draft's vocabulary and sizes where the ranks read them; returns the vocabulary's coverage."""
    counts = vocabulary.count_supervised(features.train, features.header.vocabulary_size)
    if not counts.any():
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.NO_USABLE_DATA,
            "no token of the train conversations is the assistant's, so there is nothing to learn: the chat template marks "
            "none, or the conversations hold no answer",
        )
    chosen = vocabulary.choose(counts, config.vocabulary_size, target.framing_tokens())
    try:
        draft = draft_config(
            target.config,
            layers=config.layers,
            draft_vocabulary_size=len(chosen.ids),
            depth=config.depth,
            newer=config.variant == "EAGLE-3.1",
        )
    except KeyError as error:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNSUPPORTED,
            f"{config.target}/config.json says no {error.args[0]}, from which the draft's sizes follow",
        ) from None
    chosen.save(Path(config.folder) / VOCABULARY)
    artifacts.write_atomic(Path(config.folder) / CONFIG, json.dumps(draft.to_json(), indent=1).encode())
    return vocabulary.coverage(chosen, counts)


def _launch(config: TrainConfig) -> TrainingState:
    """Run one process per GPU to the end; returns what rank 0 reached."""
    folder = Path(config.folder)
    for rank in range(config.processes):
        outcome_file(folder, rank).unlink(missing_ok=True)
    # All ranks are in this pod: the collectives need no name that a resolver would have to know
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, config.grace_seconds - MARGIN_SECONDS))
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=config.processes,
        run_id=config.key,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    try:
        states: dict[int, TrainingState] = elastic_launch(launch, work)(config)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise _said_by(folder, rank, f"exit code {failure.exitcode}") from None
    except SignalException:
        raise _said_by_any(config) from None
    return states[0]


def _said_by(folder: Path, rank: int, otherwise: str) -> StageError:
    """The failure that a rank left in its outcome file."""
    try:
        outcome = Outcome.model_validate_json(outcome_file(folder, rank).read_bytes())
    except FileNotFoundError:
        return StageError(
            ExitCode.ENGINE_CRASHED,
            Reason.JOB_FAILED,
            f"rank {rank} of the training died ({otherwise}) and said nothing; a lack of memory looks like this. The next "
            "try goes on from the last checkpoint",
        )
    return StageError(outcome.code, outcome.report.reason or Reason.INTERNAL_ERROR, outcome.report.message)


def _said_by_any(config: TrainConfig) -> StageError:
    """What the ranks said after the pod was told to end."""
    for rank in range(config.processes):
        said = _said_by(Path(config.folder), rank, "")
        if said.code == ExitCode.INTERRUPTED:
            return said
    return StageError(
        ExitCode.INTERRUPTED, Reason.INTERRUPTED, "interrupted; the next try goes on from the last checkpoint"
    )


def _publish(
    config: TrainConfig, features: Features, state: TrainingState, coverage: float, started: datetime
) -> TrainResult:
    """Complete the artifact beside the weights and publish it."""
    folder = Path(config.folder)
    best = Evaluation(**state.evaluations[state.best])
    sizes = json.loads((folder / CONFIG).read_bytes())
    result = TrainResult(
        steps=state.step,
        tokens=state.tokens,
        loss=best.loss,
        accuracy=best.accuracy,
        expected_accept_lengths=best.accept_length,
        held_out=len(features.held_out),
        vocabulary_size=sizes["draftVocabularySize"],
        vocabulary_coverage=coverage,
        tokens_per_second=state.tokens / state.seconds,
        resumed=state.resumed,
    )
    report = {
        "result": result.to_json(),
        "bestEpoch": state.best + 1,
        "training": state.curve,
        "heldOut": state.evaluations,
        "config": config.to_json(),
    }
    artifacts.write_atomic(folder / REPORT, json.dumps(report, indent=1).encode())
    shutil.copyfile(artifacts.verified(Path(config.features), PROMPTS), folder / PROMPTS)
    save_sample(folder / HELD_OUT, list(islice(features.held_out, SAMPLE_CONVERSATIONS)))
    artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={"features": config.features_key, "target": config.target_digest}
        | inherited(features.manifest.made_from),
        numbers=result.to_json() | {"layers": config.layers},
        provenance={
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "processes": str(config.processes),
            "node": platform.node(),
            "started": started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    return result


def save_sample(path: Path, samples: list[Sample]) -> None:
    """Keep the beginnings of a few held-out conversations, laid out as in a shard of the feature store."""
    cut = [
        Sample(*(part[:SAMPLE_TOKENS] for part in (one.input_ids, one.loss_mask, one.hidden, one.last)))
        for one in samples
    ]
    offsets = torch.zeros(len(cut) + 1, dtype=torch.int64)
    offsets[1:] = torch.tensor([len(one) for one in cut]).cumsum(0)
    save_file(
        {
            "input_ids": torch.cat([one.input_ids for one in cut]),
            "loss_mask": torch.cat([one.loss_mask for one in cut]),
            "hidden": torch.cat([one.hidden for one in cut]),
            "last": torch.cat([one.last for one in cut]),
            "offsets": offsets,
        },
        path,
    )
