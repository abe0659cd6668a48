"""An extraction as its container runs it, and the same states by transformers: what the tests of extraction on GPUs compare."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3_api.jobs import DataConfig, ExtractConfig, ObjectReference, Report
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.extract.engine import States
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Features, LastState, Sample
from eagle3_draft.inspect.target import target_digest

#: Of SGLang, for a machine that has not all of its kernels.
FLAGS = shlex.split(os.environ.get("EAGLE3_GPU_FLAGS", ""))

#: Chunks so small that conversations are cut.
CHUNKED = ("--chunked-prefill-size", "64")

Messages = Sequence[Mapping[str, str]]


def extract(
    target: Path,
    folder: Path,
    conversations: Sequence[Messages],
    *,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    **changes: Any,
) -> Features:
    """The features of a new folder, made in bf16 by the stage.

    Args:
        target: its folder.
        folder: for all that the stage reads and writes.
        conversations: messages of each.
        arguments: of SGLang, besides ``FLAGS``.
        variables: of the environment.
        changes: of the stage's configuration; ``data`` of that of its data.
    """
    from sglang.version import __version__

    folder.mkdir(exist_ok=True)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"messages": said}) + "\n" for said in conversations))
    of_data = DataConfig(conversations=str(data), max_length=1024, holdout=0.1, **changes.pop("data", {}))
    config = ExtractConfig(
        **{
            "owner": ObjectReference(namespace="gpu", name="gpu", uid="u"),
            "key": "e" * 16,
            "folder": str(folder / "features"),
            "target": str(target),
            "target_digest": target_digest(target),
            "data": of_data,
            "data_digest": Conversations.of(of_data).sha256,
            "dtype": "bf16",
            "sglang_version": __version__,
            "arguments": [*FLAGS, *arguments],
            **changes,
        }
    )
    (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
    said_path = folder / "message"
    given = {"EAGLE3_CONFIG": str(folder / "config.json"), "EAGLE3_TERMINATION_LOG": str(said_path)}
    command = [sys.executable, "-m", "eagle3_draft", "extract"]
    subprocess.run(command, env=os.environ | given | dict(variables or {}), check=False)
    report = Report.parse(said_path.read_text())
    assert report is not None
    assert report.ok, report.message
    print(f"{report.result}")
    return Features.open(Path(config.folder))


def every(features: Features) -> list[Sample]:
    """The conversations of both splits."""
    return [*features.train, *features.held_out]


def stored(samples: Iterable[Sample | States]) -> Tensor:
    """Their states, the last one's among them, and the normaliser of the vocabulary: (tokens, (layers + 1) x hidden + 1)."""
    return torch.cat([_states(sample) for sample in samples])


def computed(target: Path, samples: Sequence[Sample], layers: Sequence[int], dtype: str) -> Tensor:
    """The same by transformers, in a dtype as ``--dtype`` names it."""
    engine = TransformersEngine.load(target, layers, arguments=["--dtype", dtype])
    return stored(engine.states([sample.input_ids.tolist() for sample in samples]))


def _states(of: Sample | States) -> Tensor:
    assert isinstance(of.teaching, LastState)
    return torch.cat([of.hidden, of.teaching.last, of.teaching.log_normaliser[:, None]], -1).float().cpu()
