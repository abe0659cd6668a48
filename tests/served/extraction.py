"""Extractions of the tiny target in the environment of SGLang, as a container runs them, and what they are compared with."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment
import torch
from image import recipe

from eagle3_api.jobs import DataConfig, ExtractConfig, ExtractResult, ObjectReference, Report
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Features, LastState, Sample
from eagle3_draft.inspect.target import target_digest
from tiny.flags import AUXILIARY_LAYERS, SERVE_ARGUMENTS

ROOT = Path(__file__).resolve().parents[2]

#: Between two ways of adding up the same numbers in fp32; the states themselves are about 1 to 100.
TOLERANCE = 1e-3


#: For a target that two ranks share: a core for each, and gloo, for the libraries of NCCL that torch is given here are stubs.
_CORES = sorted(os.sched_getaffinity(0))
OF_TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": f"{_CORES[0]}|{_CORES[-1]}", "SGLANG_NCCL_SO_PATH": "none"}


def python_path(*first: Path) -> str:
    """Where a container's Python finds our packages, and before them what a test injects."""
    return os.pathsep.join(map(str, (*first, ROOT / "crds", ROOT / "images" / "draft")))


def in_sglang(*command: str | Path, **variables: str) -> tuple[list[str], dict[str, str]]:
    """Words and environment of a Python command in the environment of SGLang."""
    image = recipe()
    found = {"PATH": f"{image.path[0]}:{os.environ['PATH']}", "PYTHONPATH": python_path(), **image.env, **variables}
    return [str(environment.ensure() / "bin" / "python3"), *map(str, command)], os.environ | found


@dataclass(frozen=True)
class Ending:
    """How a stage's container ended, and what it said."""

    code: int
    report: Report
    log: str

    @property
    def result(self) -> ExtractResult:
        assert self.report.ok, f"{self.report.reason}: {self.report.message}\n{self.log}"
        return ExtractResult.model_validate(self.report.result)


@dataclass
class Extraction:
    """One extraction.

    Attributes:
        folder: for all that it reads and writes.
        target: its folder.
        data: conversations.
    """

    folder: Path
    target: Path
    data: Path

    def config(self, **changes: Any) -> ExtractConfig:
        return ExtractConfig(
            **{
                "owner": ObjectReference(namespace="llm", name="tiny", uid="u"),
                "key": "e" * 16,
                "folder": str(self.folder / "features"),
                "target": str(self.target),
                "target_digest": target_digest(self.target),
                "data": DataConfig(conversations=str(self.data), max_length=256, holdout=0.1),
                "data_digest": Conversations.read(self.data).sha256,
                "layers": list(AUXILIARY_LAYERS),
                "dtype": "fp32",
                "sglang_version": "0.5.21",
                "arguments": list(SERVE_ARGUMENTS),
                **changes,
            }
        )

    def start(self, config: ExtractConfig, **variables: str) -> "subprocess.Popen[bytes]":
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "config.json"
        file.write_text(json.dumps({"config": config.to_json()}))
        contract = {"EAGLE3_CONFIG": str(file), "EAGLE3_TERMINATION_LOG": str(self.folder / "message")}
        command, env = in_sglang("-m", "eagle3_draft", "extract", **contract, **variables)
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def end(self, process: "subprocess.Popen[bytes]") -> Ending:
        code = process.wait(240)
        log = (self.folder / "log").read_text(errors="replace")
        report = Report.parse((self.folder / "message").read_text())
        assert report is not None, log
        return Ending(code, report, log)

    def run(self, config: ExtractConfig, **variables: str) -> Ending:
        return self.end(self.start(config, **variables))

    def features(self) -> Features:
        return Features.open(self.folder / "features")


def by_transformers(config: ExtractConfig) -> TransformersEngine:
    """The other engine, with the same dtype."""
    torch.set_num_threads(1)
    return TransformersEngine.load(Path(config.target), config.layers, arguments=["--dtype", "float32"])


def every(features: Features) -> Iterator[Sample]:
    """The conversations of both splits."""
    yield from features.train
    yield from features.held_out


def differences(ours: Features, theirs: Features) -> list[float]:
    """The largest difference of each auxiliary layer's states, and last of the last ones."""
    count = len(AUXILIARY_LAYERS)
    worst = [0.0] * (count + 1)
    for mine, other in zip(every(ours), every(theirs), strict=True):
        assert torch.equal(mine.input_ids, other.input_ids)
        assert torch.equal(mine.loss_mask, other.loss_mask)
        assert isinstance(mine.teaching, LastState)
        assert isinstance(other.teaching, LastState)
        states = [*zip(mine.hidden.chunk(count, -1), other.hidden.chunk(count, -1), strict=True)]
        for index, (a, b) in enumerate([*states, (mine.teaching.last, other.teaching.last)]):
            worst[index] = max(worst[index], float((a - b).abs().max()))
    return worst


def conversations(path: Path, said: Sequence[object]) -> Path:
    """A file of conversations, one a line, each its messages."""
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in said))
    return path
