"""An adopted draft checkpoint: refused here if its configuration or its headers already show that it cannot serve.

Whatever conversion can mend is no reason to refuse: both look through the same readers, by the same rules.
"""

import hashlib
from pathlib import Path

from eagle3_api.checkpoints import (
    Finding,
    Form,
    Served,
    UnreadableError,
    check,
    checkpoint_files,
    read_folder,
    read_form,
    report,
)
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.artifacts import file_digest
from eagle3_draft.stage import StageError


def read_checkpoint(folder: Path) -> Form:
    """The draft in a folder, of whatever family.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable).
    """
    try:
        return read_form(read_folder(folder))
    except UnreadableError as error:
        raise _unreadable(str(error)) from None


def check_checkpoint(form: Form, served: Served) -> list[Finding]:
    """Apply the rules to a draft.

    Returns:
        What was found, none of it a reason to refuse.

    Raises:
        StageError: it is refused with the first finding's reason.
    """
    findings = check(form, served)
    refuse(findings, f"draft.checkpoint: {form.path}")
    return findings


def refuse(findings: list[Finding], where: str) -> None:
    """Refuse the draft if a rule does.

    Raises:
        StageError: with the first finding's reason, and all of them in words.
    """
    if (found := report.refusal(findings)) is not None:
        reason, message = found
        raise StageError(ExitCode.REFUSED, reason, f"{where}: {message}")


def checkpoint_digest(folder: Path) -> str:
    """sha256 over names and contents of a checkpoint's configuration and weights.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable).
    """
    try:
        lines = [f"{path.name} {file_digest(path)}" for path in checkpoint_files(folder)]
    except UnreadableError as error:
        raise _unreadable(str(error)) from None
    except OSError as error:
        raise _unreadable(f"{error.filename} cannot be read: {error.strerror}") from None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _unreadable(message: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, f"draft.checkpoint: {message}")
