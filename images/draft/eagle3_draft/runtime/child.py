"""The child: runs a stage, and turns however it ends into an exit code and a report.

The result file is the only thing that the supervisor believes. An engine may kill this process, or hang while it ends.
"""

import errno
import importlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, JobConfig, JobEnvelope, Report, StageName
from eagle3_draft.errors import StageError
from eagle3_draft.files import FULL, write_atomic
from eagle3_draft.runtime.termination import interrupted

#: What a network file system says when its server is away, and a network when its other end is.
_MOMENTARY = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EREMOTEIO,
    }
)


class Outcome(Model):
    """The result file."""

    code: ExitCode
    report: Report


def run(stage: StageName, config: Path, result: Path) -> ExitCode:
    """Run a stage and write its outcome; returns the exit code."""
    key = ""
    try:
        configuration = load_config(stage, config)
        key = configuration.key
        found = importlib.import_module(f"eagle3_draft.{stage}").run(configuration)
        report = Report(stage=stage, key=key, ok=True, result=found.to_json())
        report.dump()  # raises if it is too long for a termination message
        outcome = Outcome(code=ExitCode.DONE, report=report)
    except BaseException as error:  # whatever it is, the operator must hear of it
        outcome = failure(stage, key, error)
        if not isinstance(error, StageError | KeyboardInterrupt):
            traceback.print_exc()
    write_atomic(result, outcome.model_dump_json(by_alias=True).encode())
    return outcome.code


def load_config(stage: StageName, path: Path) -> JobConfig:
    """The configuration in a file, which must be that of the stage.

    Raises:
        StageError: there is none, or it is broken, or another stage's (InvalidConfiguration).
    """
    try:
        config = JobEnvelope.model_validate_json(path.read_bytes()).config
    except OSError as error:
        raise _bad_config(f"the configuration {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise _bad_config(f"the configuration {path} is invalid: {where}: {first['msg']}") from None
    if config.stage != stage:
        raise _bad_config(f"the configuration {path} is that of {config.stage}, not of {stage}")
    return config


def failure(stage: StageName, key: str, error: BaseException) -> Outcome:
    """The outcome of a stage that raised."""
    told = _as_stage_error(error)
    report = Report(stage=stage, key=key, ok=False, reason=told.reason, message=told.message, retry=told.retry)
    return Outcome(code=told.code, report=report)


def _bad_config(message: str) -> StageError:
    return StageError(ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, message)


def _as_stage_error(error: BaseException) -> StageError:
    """What an error means for the Job, from the first of its causes that says."""
    for cause in _causes(error):
        if isinstance(cause, StageError):
            return cause
        if isinstance(cause, KeyboardInterrupt):
            return interrupted()
        if isinstance(cause, OSError) and cause.errno in FULL:
            return StageError(
                ExitCode.DOES_NOT_FIT,
                Reason.STORAGE_TOO_SMALL,
                f"the volume is full: {cause}. Free space on it, or use a larger claim",
            )
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StageError(
                ExitCode.BAD_INPUT,
                Reason.STORAGE_UNAVAILABLE,
                f"{cause}. This pod's user needs access to the volume: see placement.runAsUser and placement.fsGroup",
            )
        if is_out_of_memory(cause):
            return StageError(
                ExitCode.DOES_NOT_FIT,
                Reason.OUT_OF_MEMORY,
                f"out of memory: {_first_line(cause)} ({_place(cause)}). Give the pod more memory or more GPUs, or lower "
                "data.maxLength",
            )
        if is_momentary(cause):
            return StageError(
                ExitCode.ENGINE_CRASHED,
                Reason.JOB_FAILED,
                f"{type(cause).__name__}: {_first_line(cause)} ({_place(cause)}). A volume, a network or a GPU failed; the next "
                "try continues from what was finished",
            )
    return StageError(
        ExitCode.INTERNAL_ERROR, Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error} ({_place(error)})"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it, as far as it was not suppressed."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a host or a device had no more memory."""
    # Torch's by name and by text: this process may have no torch
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(base.__name__ == "OutOfMemoryError" for base in type(error).__mro__)
        or "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def is_momentary(error: BaseException) -> bool:
    """Whether it says nothing about what the stage was given: it may not come again, and not on another node."""
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in _MOMENTARY
    # Torch's by name, as above: an error of CUDA in general
    return any(base.__name__ == "AcceleratorError" for base in type(error).__mro__)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "no frame"
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}"
