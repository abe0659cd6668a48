"""An adopted draft checkpoint: refused here if its configuration or its headers already show that it cannot serve."""

import hashlib
import json
from pathlib import Path
from typing import Any

from eagle3_api.artifacts import CONFIG
from eagle3_api.checkpoint_rules import Finding, Target, Tensor, check_config, check_tensors
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.artifacts import file_digest
from eagle3_draft.inspect.headers import HeaderError, read_header
from eagle3_draft.stage import StageError

#: A person mends one thing at a time; the rest is counted.
_SHOWN = 3


def check_checkpoint(folder: Path, target: Target) -> int:
    """Apply the rules of SGLang's loader to a checkpoint's configuration and headers.

    Args:
        folder: holds config.json and safetensors files.
        target: what it is to serve, and how.

    Returns:
        The size of its vocabulary.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable), or is refused with the first finding's reason.
    """
    config = _config(folder)
    _refuse(folder, check_config(config, target))
    tensors: dict[str, Tensor] = {}
    try:
        for path in _weights(folder):
            tensors |= read_header(path).tensors
    except (HeaderError, OSError) as error:
        raise _unreadable(str(error)) from None
    _refuse(folder, check_tensors(config, tensors, target))
    return int(config["draft_vocab_size"])


def checkpoint_digest(folder: Path) -> str:
    """sha256 over names and contents of a checkpoint's configuration and weights.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable).
    """
    try:
        lines = [f"{path.name} {file_digest(path)}" for path in (folder / CONFIG, *_weights(folder))]
    except OSError as error:
        raise _unreadable(f"{error.filename} cannot be read: {error.strerror}") from None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _weights(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise _unreadable(f"{folder} holds no weights in *.safetensors; other formats are not read")
    return found


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise _unreadable(f"{path} cannot be read: {error.strerror}; is its volume in placement.volumes?") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise _unreadable(f"{path} is no JSON object")
    return config


def _refuse(folder: Path, findings: list[Finding]) -> None:
    if not findings:
        return
    messages = [finding.message for finding in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        messages.append(f"and {len(findings) - _SHOWN} more")
    raise StageError(ExitCode.REFUSED, findings[0].reason, f"draft.checkpoint: {folder}: {'; '.join(messages)}")


def _unreadable(message: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, f"draft.checkpoint: {message}")
