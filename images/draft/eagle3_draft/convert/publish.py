"""From a converted draft to the published artifact: what is said of it, where it comes from, its manifest."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from math import prod
from pathlib import Path

import torch

from eagle3_api import times
from eagle3_api.artifacts import PROMPTS, PROVENANCE, REPORT, WEIGHTS
from eagle3_api.checkpoints import Finding, read_folder, report
from eagle3_api.jobs import ConvertConfig, ConvertResult
from eagle3_draft.convert.proof import Proof
from eagle3_draft.convert.provenance import read_origins, statement
from eagle3_draft.convert.source import Source
from eagle3_draft.files import file_digest, write_atomic
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.storage import artifacts

#: As many as the report has room for.
_WARNINGS = 4


@dataclass(frozen=True)
class Converted:
    """A draft that was written and proven.

    Attributes:
        source: the draft before.
        ids: its layers as the serving SGLang calls them.
        digests: sha256 of each of its files, by the name.
        findings: of all rules and of the proof.
        proof: what was found.
        started: when the conversion did.
    """

    source: Source
    ids: list[int]
    digests: Mapping[str, str]
    findings: list[Finding]
    proof: Proof
    started: datetime


def publish(config: ConvertConfig, made: Converted) -> ConvertResult:
    """Complete the artifact beside the draft and the prompts, and publish it."""
    folder, source, proof = Path(config.folder), made.source, made.proof
    result = _result(config, made)
    full = {
        "result": result.to_json(),
        "parity": asdict(proof.parity) if proof.parity is not None else None,
        "agreement": asdict(proof.agreement) if proof.agreement is not None else None,
        "proposals": None if proof.proposals is None else [asdict(step) for step in proof.proposals],
        "family": source.form.family,
        "checks": report.to_json(made.findings),
        "config": config.to_json(),
    }
    run = {
        "sglang": config.sglang_version,
        "torch": torch.__version__,
        "node": platform.node(),
        "started": times.text(made.started),
        "finished": times.now(),
    }
    said = statement(config, source.form.family, made.digests, run, source.training(), read_origins(config))
    write_atomic(folder / REPORT, json.dumps(full, indent=1).encode())
    write_atomic(folder / PROVENANCE, json.dumps(said, indent=1).encode())
    artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={"target": config.target_digest, **source.made_from},
        numbers=result.to_json(),
        provenance=run,
        digests=made.digests,
    )
    return result


def _result(config: ConvertConfig, made: Converted) -> ConvertResult:
    folder, proof, asked = Path(config.folder), made.proof, made.proof.agreement
    parameters = {name: t for name, t in read_folder(folder).tensors.items() if name not in ("d2t", "t2d")}
    return ConvertResult(
        digest=checkpoint_digest(folder, known=made.digests),
        parameters=sum(prod(tensor.shape) for tensor in parameters.values()),
        bytes=(folder / WEIGHTS).stat().st_size,
        layers=config.layers,
        capture_ids=made.ids,
        draft_vocabulary_size=parameters["lm_head.weight"].shape[0],
        prompts=len((folder / PROMPTS).read_bytes().splitlines()),
        prompts_digest=file_digest(folder / PROMPTS),
        expected_accept_lengths=made.source.expected_accept_lengths(proof),
        accuracy=asked.accuracy if asked is not None else None,
        equal_proposals=[round(step.equal, 4) for step in proof.proposals or () if step.positions] or None,
        chance=asked.chance if asked is not None else None,
        parity_error=proof.parity.error if proof.parity is not None else None,
        warnings=report.warnings(made.findings)[:_WARNINGS],
    )
