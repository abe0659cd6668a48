"""The stage Convert: a draft is read and checked, written, asked, and published."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from eagle3_api.checkpoints import Served
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ConvertResult, ExitCode
from eagle3_api.sglang import Version
from eagle3_draft.convert import prompts
from eagle3_draft.convert.answers import Load
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.publish import Converted, publish
from eagle3_draft.convert.source import source_of
from eagle3_draft.errors import StageError
from eagle3_draft.extract.stage import load_engine
from eagle3_draft.inspect.checkpoint import refuse
from eagle3_draft.inspect.target import target_facts
from eagle3_draft.storage import artifacts


def run(config: ConvertConfig, *, load: Load | None = load_engine) -> ConvertResult:
    """Convert a draft, check it, ask it and publish it.

    Args:
        config: of the stage.
        load: makes what runs the target, which an adopted draft is asked about. None publishes an adopted draft unasked.

    Raises:
        StageError: the draft is refused (the reasons of ``checkpoints.rules``, FeatureMismatch, LayerConvention, NonFinite,
            ParityMismatch, LowAcceptLength), or something cannot be read or run.
    """
    folder, target = Path(config.folder), Path(config.target)
    if (manifest := artifacts.finished(folder, config.key)) is not None:
        return artifacts.numbers(folder, manifest, ConvertResult)
    started = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    facts = target_facts(target, config.arguments)
    if facts.digest != config.target_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {config.target} has changed since it was inspected and must be inspected again",
        )
    version = Version.parse(config.sglang_version)
    ids = facts.capture_ids(config.layers, version)
    served = Served(version, facts.of_draft, tuple(config.layers), config.context_length)
    source = source_of(config, ids)
    findings = source.check(served)
    with beside(source.check_unchanged):
        emitted = emit(source.form, served, ids, target, facts.dtype, folder)
    prompts.put(config, folder)
    proof = source.prove(facts, load)
    refuse(proof.findings, f"the draft in {source.form.path} is refused")
    findings += [*emitted.findings, *proof.findings]
    return publish(config, Converted(source, ids, emitted.digests, findings, proof, started))


@contextmanager
def beside(check: Callable[[], object]) -> Iterator[None]:
    """Run a check beside what is done meanwhile. What it finds comes before what went wrong there, for it may be the cause."""
    with ThreadPoolExecutor(1, "beside") as thread:
        found = thread.submit(check)
        try:
            yield
        finally:
            found.result()
