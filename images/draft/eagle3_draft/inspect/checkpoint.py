"""An adopted draft checkpoint: refused here if its configuration or its headers already show that it cannot serve.

Whatever conversion can mend is no reason to refuse: both look through the same readers, by the same rules.
"""

import hashlib
from collections.abc import Mapping
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
from eagle3_api.checkpoints.rope import sglangs_alone, turned_alike
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest


def read_checkpoint(folder: Path, field: str = "draft.checkpoint") -> Form:
    """The draft in a folder, of whatever family.

    Args:
        folder: of the checkpoint.
        field: of the object, which names it.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable).
    """
    try:
        return read_form(read_folder(folder))
    except UnreadableError as error:
        raise _unreadable(field, str(error)) from None


def check_checkpoint(form: Form, served: Served, field: str = "draft.checkpoint") -> list[Finding]:
    """Apply the rules to a draft, which this field of the object names.

    Returns:
        What was found, none of it a reason to refuse.

    Raises:
        StageError: it is refused with the first finding's reason.
    """
    findings = check(form, served)
    refuse(findings, f"{field}: {form.path}")
    return findings


def check_trainable(form: Form, field: str, longest: int, said: str) -> None:
    """Refuse what can be served as it is, and cannot be trained further.

    Args:
        form: of a draft that passed the rules.
        field: of the object, which names it.
        longest: tokens of the longest conversation that it may be trained on.
        said: so, in words: whether it was set or found.

    Raises:
        StageError: UnsupportedDraft.
    """
    why, known = sglangs_alone(form.rope), turned_alike(form.rope, form.max_position_embeddings)
    if why is not None:
        told = f"{why}. Adopt it as it is (draft.checkpoint), or train without {field}"
    elif known is not None and known < longest:
        told = (
            f"its rotary embedding is of type longrope, of which SGLang turns texts of up to {known:,} tokens "
            f"in one way, and longer ones by what is served beside them: there is nothing to train them to. {said}. Set "
            f"data.maxLength to {known} at most"
        )
    else:
        return
    raise StageError(ExitCode.REFUSED, Reason.UNSUPPORTED_DRAFT, f"{field}: {form.path}: {told}")


def refuse(findings: list[Finding], where: str) -> None:
    """Refuse the draft if a rule does.

    Raises:
        StageError: with the first finding's reason, and all of them in words.
    """
    if (found := report.refusal(findings)) is not None:
        reason, message = found
        raise StageError(ExitCode.REFUSED, reason, f"{where}: {message}")


def checkpoint_digest(folder: Path, field: str = "draft.checkpoint", known: Mapping[str, str] | None = None) -> str:
    """sha256 over names and contents of a checkpoint's configuration and weights.

    Args:
        folder: of the checkpoint.
        field: of the object, which names it.
        known: sha256 of files that need not be read for it, by name.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable).
    """
    try:
        lines = [
            f"{path.name} {(known or {}).get(path.name) or file_digest(path)}" for path in checkpoint_files(folder)
        ]
    except UnreadableError as error:
        raise _unreadable(field, str(error)) from None
    except OSError as error:
        raise _unreadable(field, f"{error.filename} cannot be read: {error.strerror}") from None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _unreadable(field: str, message: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, f"{field}: {message}")
