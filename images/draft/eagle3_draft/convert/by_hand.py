"""``eagle3-draft check``, ``convert`` and ``export``: by hand, without a cluster."""

import argparse
import sys
from pathlib import Path

from eagle3_api.artifacts import CONFIG
from eagle3_api.checkpoints import (
    Finding,
    Form,
    Served,
    UnreadableError,
    check,
    command,
    read_folder,
    read_form,
    report,
    resolve_layers,
)
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ExitCode, ObjectReference
from eagle3_draft.convert import prompts
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.export import write_speculators
from eagle3_draft.convert.proof import prove_adopted
from eagle3_draft.convert.values import Values, judge
from eagle3_draft.errors import StageError
from eagle3_draft.extract.stage import load_engine
from eagle3_draft.inspect.target import TargetFacts, target_facts
from eagle3_draft.model.target import Target
from eagle3_draft.tensors import pieces


def look_at_values(form: Form) -> list[Finding]:
    """What the weights' values show; read once, some megabytes at a time."""
    seen = {}
    for name, stored in form.tensors.items():
        values = Values.of(name, stored.shape)
        for piece in pieces(stored):
            values.add(piece)
        seen[name] = (values, len(stored.shape))
    return list(judge(seen))


def convert(given: argparse.Namespace) -> int:
    """Convert a draft for a target; returns the exit code."""
    out: Path = given.out
    if given.target is None:
        sys.stderr.write("convert writes a draft for a target: name its folder with --target\n")
        return ExitCode.BAD_CONFIGURATION
    try:
        _refuse_to_overwrite(out)
        form = read_form(read_folder(given.folder))
        facts = target_facts(given.target)
        served = Served(
            given.sglang_version, facts.of_draft, given.layers, given.context_length or facts.context_length
        )
        findings = check(form, served)
        layers = resolve_layers(form, served)
        if report.refusal(findings) is None and layers is not None:
            ids = facts.capture_ids(layers, served.version)
            out.mkdir(parents=True, exist_ok=True)
            findings += emit(form, served, ids, given.target, facts.dtype, out).findings
            if given.ask:
                findings += _ask(form, list(layers), facts, given, out)
    except (UnreadableError, StageError) as error:
        sys.stderr.write(f"{error}\n")
        return error.code if isinstance(error, StageError) else ExitCode.BAD_INPUT
    sys.stdout.write(f"{given.folder}: {form.family}\n\n{report.table(findings)}\n")
    if report.refusal(findings) is not None:
        (out / CONFIG).unlink(missing_ok=True)  # nobody shall serve it
    else:
        sys.stdout.write(f"\nwritten to {out}: --speculative-algorithm EAGLE3 --speculative-draft-model-path {out}\n")
    return report.exit_code(findings)


def _refuse_to_overwrite(out: Path) -> None:
    """The draft itself may lie there, or its target, or a draft that serves."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        what = f"{out} is there and not empty, and nothing is written over: name a new folder"
        raise StageError(ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, what)


def _ask(form: Form, layers: list[int], facts: TargetFacts, given: argparse.Namespace, out: Path) -> list[Finding]:
    """What the converted draft and its target agree on, over built-in questions, as a cluster's conversion finds out."""
    config = ConvertConfig(
        owner=ObjectReference(namespace="", name="", uid=""),
        key="",
        folder=str(out),
        checkpoint=str(given.folder),
        target=str(given.target),
        target_digest=facts.digest,
        layers=layers,
        sglang_version=str(given.sglang_version),
        context_length=given.context_length or facts.context_length,
    )
    prompts.put(config, out)
    return prove_adopted(config, form, facts, load_engine).findings


def export(given: argparse.Namespace) -> int:
    """Write a draft in the layout of others; returns the exit code."""
    out: Path = given.out
    verifier = given.verifier or given.target
    if verifier is None:
        sys.stderr.write(
            "export names the target that the draft is for: --verifier ORG/NAME, its folder with --target, or both\n"
        )
        return ExitCode.BAD_CONFIGURATION
    try:
        _refuse_to_overwrite(out)
        form = read_form(read_folder(given.folder))
        served = command.served_by(given)
        findings = check(form, served)
        layers = resolve_layers(form, served)
        if report.refusal(findings) is None and layers is not None:
            architectures = [served.target.architecture] if served.target is not None else []
            named = {"name_or_path": str(verifier), "architectures": architectures}
            target = Target(given.target) if given.target is not None else None
            write_speculators(form, layers, out, verifier=named, target=target, steps=given.steps)
    except (UnreadableError, StageError) as error:
        sys.stderr.write(f"{error}\n")
        return error.code if isinstance(error, StageError) else ExitCode.BAD_INPUT
    if report.refusal(findings) is not None:
        sys.stdout.write(f"{given.folder}: {form.family}\n\n{report.table(findings)}\n")
        return report.exit_code(findings)
    sys.stdout.write(
        f"written to {out}, in the layout of {given.to}: vllm serve TARGET --speculative-config "
        f'\'{{"model": "{out}", "method": "eagle3", "num_speculative_tokens": {given.steps}}}\'\n'
    )
    return report.exit_code(findings)
