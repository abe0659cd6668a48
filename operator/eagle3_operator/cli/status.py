"""Where an object stands: its conditions, stages, revisions, and the accept length of its traffic over time."""

import argparse
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime

from pydantic import ValidationError

from eagle3_api import GROUP, PLURAL
from eagle3_api.conditions import Reason, Type
from eagle3_api.jobs import LoadResult, ProbeResult
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import ArtifactStatus, Eagle3DraftStatus, RevisionStatus, StageStatus, Window
from eagle3_api.times import duration, parse
from eagle3_operator.cli.columns import grid
from eagle3_operator.cli.files import first_fault
from eagle3_operator.cli.usage import UsageError

#: Conditions whose False is good news or nothing to speak of.
_ABNORMAL = frozenset({Type.STALLED, Type.RECONCILING})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("name", help="name of the Eagle3Draft")
    parser.add_argument("-n", "--namespace", help="namespace (default: that of the kubeconfig's context)")


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    namespace = ["--namespace", given.namespace] if given.namespace else []
    try:
        # Whose plugin this is: it knows the cluster, the namespace and the user.
        command = ["kubectl", "get", f"{PLURAL}.{GROUP}", given.name, "--output", "json", *namespace]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise UsageError("there is no kubectl on the PATH") from None
    except subprocess.CalledProcessError as error:
        raise UsageError(_last_line(error.stderr)) from None
    try:
        text = status_text(Eagle3Draft.model_validate_json(found), datetime.now(UTC))
    except ValidationError as error:
        path, said, _ = first_fault(error)
        raise UsageError(
            f"this version of the plugin cannot read {given.name}, which another one's operator wrote: {'.'.join(path)}: {said}"
        ) from None
    sys.stdout.write(text + "\n")
    return 0


def _last_line(said: str) -> str:
    """What kubectl says in the end; before that it may log each of its tries."""
    return next((line for line in reversed(said.strip().splitlines()) if line), "kubectl failed without a word")


def status_text(obj: Eagle3Draft, now: datetime) -> str:
    """All of it, as paragraphs; those that have nothing to say are left out.

    Args:
        obj: as it is in the cluster.
        now: an aware time, for what is under way.
    """
    status = Eagle3DraftStatus.model_validate(obj.status)
    if not status.conditions:
        return f"{obj.metadata.name}: the operator has not looked at it yet"
    paragraphs = [
        _headline(obj, status),
        _conditions(status),
        _stages(status.stages, now, {condition.message for condition in status.conditions}),
        _published(status.artifact),
        _revisions(status.revisions),
        _loads(status.revisions),
        *(_traffic(revision) for revision in status.revisions if revision.number == status.serving_revision),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _headline(obj: Eagle3Draft, status: Eagle3DraftStatus) -> str:
    whole = next((said for said in status.conditions if said.type is Type.READY), status.conditions[0])
    behind = obj.metadata.generation - status.observed_generation
    late = f"\nthe operator has not looked at the last {behind} change(s) of the object yet" if behind > 0 else ""
    return f"{obj.metadata.name}  {status.phase}  Ready={whole.status} {whole.reason}\n{whole.message}{late}"


def _conditions(status: Eagle3DraftStatus) -> str:
    """Those that are not as they should be, but for what only waits for its turn.

    What one says as another before it, as Ready mostly does, is told once.
    """
    rows, told = [], {condition.message for condition in status.conditions if condition.type is Type.READY}
    for condition in status.conditions:
        as_it_should_be = condition.status == ("False" if condition.type in _ABNORMAL else "True")
        if condition.type is Type.READY or (as_it_should_be and condition.reason is not Reason.REFUSED):
            continue
        if condition.status == "Unknown" and condition.reason == Reason.PENDING:
            continue
        said = "as above" if condition.message and condition.message in told else condition.message
        rows.append((condition.type, condition.status, condition.reason, said))
        told.add(condition.message)
    return grid(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows) if rows else ""


def _stages(stages: Iterable[StageStatus], now: datetime, told: Collection[str]) -> str:
    rows = [(stage.name, stage.state, _took(stage, now), _said(stage, told), stage.artifact or "") for stage in stages]
    return grid(("STAGE", "STATE", "TOOK", "PROGRESS", "ARTIFACT"), rows) if rows else ""


def _published(artifact: ArtifactStatus | None) -> str:
    """Where else the draft is, by its digest."""
    places = (artifact.published, artifact.stored) if artifact is not None else ()
    return grid(("PUBLISHED",), [(place,) for place in places if place]) if any(places) else ""


def _took(stage: StageStatus, now: datetime) -> str:
    """How long it took, or has taken so far."""
    if stage.started_at is None:
        return ""
    end = parse(stage.finished_at) if stage.finished_at is not None else now
    seconds = int((end - parse(stage.started_at)).total_seconds())
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds % 60:02}s"


def _said(stage: StageStatus, told: Collection[str]) -> str:
    if stage.reason is not None:
        return stage.reason if stage.message in told else f"{stage.reason}: {stage.message}"
    if stage.progress is None or stage.finished_at is not None:
        return ""
    left = stage.progress.seconds_left
    parts = (f"{stage.progress.done:.0%}", stage.progress.message, f"{duration(left)} left" if left is not None else "")
    return ", ".join(filter(None, parts))


def _revisions(revisions: Iterable[RevisionStatus]) -> str:
    rows = [(f"r{r.number}", r.state, f"{r.draft[:8]}…" if r.draft else "none", *_measured(r)) for r in revisions]
    columns = ("ACCEPT", "EXPECTED", "BREAK-EVEN", "TOK/S", "SPEEDUP", "TTFT", "ITL", "DIFFERENT")
    return grid(("REVISION", "STATE", "DRAFT", *columns), rows) if rows else ""


def _measured(revision: RevisionStatus) -> Iterator[str]:
    probe: ProbeResult | None = revision.probe
    if probe is None:
        yield from [""] * 8
        return
    yield _number(probe.accept_length)
    yield _number(revision.expected_accept_length)
    yield _number(probe.break_even)
    yield f"{probe.tokens_per_second:.1f}"
    yield _speedup(probe)
    yield f"{probe.first_token_seconds * 1000:.0f}ms"
    yield f"{probe.inter_token_seconds * 1000:.1f}ms"
    yield f"{probe.different} of {probe.compared}"


def _loads(revisions: Iterable[RevisionStatus]) -> str:
    """Each load, of what was measured at several."""
    measured = [
        (f"r{r.number}", at) for r in revisions if r.probe is not None and r.probe.loads for at in r.probe.at_loads
    ]
    rows = [
        (
            str(at.concurrency),
            name,
            *map(_number, (at.accept_length, at.break_even)),
            f"{at.tokens_per_second:.1f}",
            _speedup(at),
        )
        for name, at in measured
    ]
    return grid(("LOAD", "REVISION", "ACCEPT", "BREAK-EVEN", "TOK/S", "SPEEDUP"), rows) if rows else ""


def _speedup(measured: LoadResult) -> str:
    return "" if measured.speedup is None else f"{measured.speedup:.2f}x"


def _traffic(revision: RevisionStatus) -> str:
    """Windows with traffic; how many had none, and until when, in a line."""
    rows = [_window(window) for window in revision.windows if window.tokens > 0]
    idle = [window for window in revision.windows if window.tokens == 0]
    if not revision.windows:
        return ""
    told = [f"r{revision.number} under traffic"]
    told += [grid(("FROM", "UNTIL", "TOKENS", "REQUESTS", "RUNNING", "ACCEPT"), rows)] if rows else []
    told += [f"none in {len(idle)} of the last {len(revision.windows)} windows, until {idle[-1].end}"] if idle else []
    return "\n".join(told)


def _window(window: Window) -> tuple[str, ...]:
    counts = (f"{window.tokens:.0f}", f"{window.requests:.0f}", f"{window.running:.1f}")
    return (window.start, window.end, *counts, _number(window.accept_length))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
