"""The files of a target's tokenizer: whether they are there, their digest, and the chat template among them."""

import hashlib
import json
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.artifacts import file_digest
from eagle3_draft.stage import StageError

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
_SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "tokenization_*.py",
)


def tokenizer_files(target: Path) -> list[Path]:
    """The files that decide how text becomes tokens, in order of their names.

    Raises:
        StageError: no vocabulary is among them (TargetUnreadable).
    """
    if not any(path.is_file() for pattern in _VOCABULARIES for path in target.glob(pattern)):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {target} holds no tokenizer ({', '.join(_VOCABULARIES)})",
        )
    found = {path for pattern in (*_VOCABULARIES, *_SETTINGS) for path in target.glob(pattern) if path.is_file()}
    return sorted(found)


def tokenizer_digest(target: Path) -> str:
    """sha256 over names and contents of the tokenizer's files."""
    lines = [f"{path.name} {file_digest(path)}" for path in tokenizer_files(target)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def chat_template(target: Path, override: Path | None) -> str:
    """The Jinja text that renders conversations: the object's own, or else the tokenizer's, as transformers finds it.

    Args:
        target: the target's folder.
        override: ``data.chatTemplate``.

    Raises:
        StageError: there is none, or it cannot be read (TemplateMissing).
    """
    if override is not None:
        try:
            return override.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _missing(f"data.chatTemplate: {override} cannot be read: {error}") from None
    file = target / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        settings = json.loads((target / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    if isinstance(found, list):  # several by name
        found = next(
            (one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None
        )
    if not isinstance(found, str):
        raise _missing(
            f"target.model: {target} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
            "name one in data.chatTemplate. It must be the one that requests are served with"
        )
    return found


def template_digest(template: str) -> str:
    """sha256 of a chat template."""
    return hashlib.sha256(template.encode()).hexdigest()


def _missing(message: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, message)
