"""The whole: what there is of it is summed over its parts, and published when none is missing, which moves no byte."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from eagle3_api import times
from eagle3_api.artifacts import CHAT_TEMPLATE, PROMPTS, REPORT
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, ExtractResult
from eagle3_api.manifest import Manifest
from eagle3_draft.data import prompts
from eagle3_draft.errors import StageError
from eagle3_draft.extract import non_finite
from eagle3_draft.extract.inputs import Inputs
from eagle3_draft.extract.parts import Part, PartNumbers
from eagle3_draft.features import publish_store
from eagle3_draft.files import write_atomic
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.places import Place


def finished(folder: Path, at: Place, parts: Sequence[Part], key: str) -> dict[Part, Manifest]:
    """Those of the parts that are finished, in their order, and their manifests.

    There may be thousands, in a bucket that takes its time for each: they are asked for beside each other.
    """
    with ThreadPoolExecutor(artifacts.READ_TOGETHER, "part") as threads:
        found = threads.map(lambda part: at.finished(folder / part.name, key), parts)
        return {part: manifest for part, manifest in zip(parts, found, strict=True) if manifest is not None}


def publish(
    inputs: Inputs,
    folder: Path,
    at: Place,
    parts: Sequence[Part],
    found: Sequence[prompts.Prompt],
    *,
    check: Callable[[], None],
) -> ExtractResult:
    """Publish the whole if no part is missing; says what there is either way.

    Args:
        inputs: of the extraction.
        folder: of the artifact.
        at: where it lies.
        parts: all of them.
        found: the probe's prompts.
        check: called now and then while it is uploaded; what it raises gives that up.

    Raises:
        StageError: too many conversations are left out of the parts that there are, whichever pods and runs made these
            (NonFinite); there is nothing to learn from (NoUsableData).
    """
    config = inputs.config
    manifests = list(finished(folder, at, parts, config.key).values())
    result = _sum(inputs, manifests, len(parts))
    non_finite.require_few(result.dropped.get(non_finite.WHY, 0), inputs)
    if not result.whole:
        return result
    require_train(inputs, result.conversations - result.held_out, result.conversations, Counter(result.dropped))
    try:
        _write(inputs, folder, at, parts, found, result, manifests[0], check)
    except (FileNotFoundError, StageError) as error:
        # Another pod finished its last part at the same time, publishes the same, and cleans up
        if at.finished(folder, config.key) is None:
            if isinstance(error, StageError):
                raise
            _write(inputs, folder, at, parts, found, result, manifests[0], check)
    return result


def _write(
    inputs: Inputs,
    folder: Path,
    at: Place,
    parts: Sequence[Part],
    found: Sequence[prompts.Prompt],
    result: ExtractResult,
    first: Manifest,
    check: Callable[[], None],
) -> None:
    prompts.write(folder / PROMPTS, found)
    write_atomic(folder / CHAT_TEMPLATE, inputs.template.encode())
    write_atomic(folder / REPORT, result.model_dump_json(by_alias=True).encode())
    publish_store(
        folder,
        [part.name for part in parts],
        at,
        key=inputs.config.key,
        made_from=inputs.made_from(),
        numbers=result.model_dump(),
        provenance=first.provenance | {"finished": times.now()},
        attend=lambda _: check(),
    )


def require_train(inputs: Inputs, train: int, usable: int, dropped: Counter[str]) -> None:
    """Raises StageError where no conversation is left to learn from (NoUsableData)."""
    if train:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common(3))
    raise StageError(
        ExitCode.BAD_INPUT,
        Reason.NO_USABLE_DATA,
        f"{inputs.field}: only {usable} conversation(s) can be used, too few to learn from and to hold out. Left "
        f"out: {why or 'none'}",
    )


def _sum(inputs: Inputs, manifests: Sequence[Manifest], parts: int) -> ExtractResult:
    numbers = [PartNumbers.model_validate(manifest.numbers) for manifest in manifests]
    dropped = Counter(inputs.conversations.dropped)
    for part in numbers:
        dropped.update(part.dropped)
    seconds = sum(part.seconds for part in numbers)
    computed = sum(part.computed_tokens for part in numbers)
    answers = {
        "answers": sum(part.answers or 0 for part in numbers),
        "cut_answers": sum(part.cut_answers or 0 for part in numbers),
    }
    return ExtractResult(
        conversations=sum(part.conversations for part in numbers),
        held_out=sum(part.held_out for part in numbers),
        tokens=sum(part.tokens for part in numbers),
        supervised_tokens=sum(part.supervised_tokens for part in numbers),
        bytes=sum(file.size for manifest in manifests for file in manifest.files),
        dropped=dict(dropped),
        cut=sum(part.cut for part in numbers),
        lost_tokens=sum(part.lost_tokens for part in numbers),
        tokens_per_second=round(computed / seconds, 1) if seconds else 0.0,
        engine=manifests[0].provenance["engine"] if manifests else "",
        parts=len(manifests),
        whole=len(manifests) == parts,
        **(answers if inputs.config.data.regenerate is not None else {}),
    )
