"""From the best weights to the published artifact: the measures, the report, what conversion and probing need."""

import json
import platform
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from eagle3_api import times
from eagle3_api.artifacts import CHAT_TEMPLATE, CONFIG, HELD_OUT, PROMPTS, REPORT, REPORT_PAGE, VOCABULARY
from eagle3_api.jobs import TrainConfig, TrainResult
from eagle3_draft.data.inputs import inherited
from eagle3_draft.data.tokenizer_files import special_tokens
from eagle3_draft.features import Features
from eagle3_draft.files import write_atomic
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.places import place_of
from eagle3_draft.train import held_out
from eagle3_draft.train.best import BestWeights
from eagle3_draft.train.checkpoints import TrainingState
from eagle3_draft.train.report import page
from eagle3_draft.train.vocabulary import USAGE_FILE, Usage, Vocabulary, coverage


def publish(config: TrainConfig, state: TrainingState) -> TrainResult:
    """Complete the artifact beside the weights, and publish it.

    Args:
        config: of the stage.
        state: at the training's end.
    """
    folder = Path(config.folder)
    at = place_of(config.object_store, Path(config.features))
    features = Features.open(Path(config.features), at)
    result = _result(config, state, features)
    report = _report(config, state, result)
    write_atomic(folder / REPORT, json.dumps(report, indent=1).encode())
    write_atomic(folder / REPORT_PAGE, page(report).encode())
    for file in features.manifest.files:
        if file.path in (PROMPTS, CHAT_TEMPLATE):
            write_atomic(folder / file.path, at.content(Path(config.features), file))
    held_out.save(
        folder / HELD_OUT,
        features.held_out,
        features.header.torch_dtype,
        BestWeights(folder).proposals(result.best_step),
    )
    artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={"features": config.features_key, "target": config.target_digest}
        | ({"initFrom": config.init_digest} if config.init_digest else {})
        | inherited(features.manifest.made_from),
        numbers=result.to_json() | {"layers": config.layers},
        provenance={
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "processes": str(dist.get_world_size()),
            "node": socket.gethostname(),
            "started": state.started,
            "finished": times.now(),
        }
        | inherited(features.manifest.provenance),
    )
    return result


def _result(config: TrainConfig, state: TrainingState, features: Features) -> TrainResult:
    best = state.evaluations[state.best]
    vocabulary = Vocabulary.load(Path(config.folder) / VOCABULARY)
    special = [token for token in special_tokens(Path(config.target)).texts if token < vocabulary.target_size]
    return TrainResult(
        steps=state.step,
        tokens=state.tokens,
        loss=best["loss"],
        accuracy=best["accuracy"],
        prefix_survival=best["prefix_survival"],
        expected_accept_lengths=best["accept_length"],
        held_out=len(features.held_out),
        vocabulary_size=len(vocabulary.ids),
        vocabulary_coverage=coverage(vocabulary, Usage.load(Path(config.folder) / USAGE_FILE)),
        special_tokens=len(special),
        special_tokens_inside=int(vocabulary.members[special].sum()),
        tokens_per_second=state.tokens / state.seconds if state.step else 0.0,
        waiting=state.waited / state.seconds if state.step else 0.0,
        measuring_seconds=state.measured,
        busy=state.busy,
        peak_memory_bytes=state.peak_bytes,
        best_step=best["step"],
        resumed=state.resumed,
        passed_over=len(state.passed_over),
    )


def _report(config: TrainConfig, state: TrainingState, result: TrainResult) -> dict[str, Any]:
    folder = Path(config.folder)
    return {
        "result": result.to_json(),
        "bestEpoch": state.evaluations[state.best]["epoch"],
        "training": state.curve,
        "heldOut": state.evaluations,
        "passedOver": state.passed_over,
        "draft": json.loads((folder / CONFIG).read_bytes()),
        "config": config.to_json(),
    }
