"""The files of a target's tokenizer: whether they are there, their digest, the special tokens and the chat template."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest

#: By which a template asks what day it is: a function that transformers give it.
ASKS_FOR_TODAY = "strftime_now"

#: What it is told here. A server tells each day another, but what is stored must come out the same for a run that goes on with it
#: tomorrow, and for every pod that shares the work.
TODAY = date(2026, 6, 15)

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
_SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "tokenization_*.py",
)


def digest_lines(target: Path) -> list[str]:
    """Name and sha256 of each file that decides how conversations become tokens, in order of their names.

    Raises:
        StageError: no vocabulary is among them (TargetUnreadable).
    """
    if not any(path.is_file() for pattern in _VOCABULARIES for path in target.glob(pattern)):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {target} has no tokenizer ({', '.join(_VOCABULARIES)})",
        )
    found = {path for pattern in (*_VOCABULARIES, *_SETTINGS) for path in target.glob(pattern) if path.is_file()}
    return [f"{path.relative_to(target)} {file_digest(path)}" for path in sorted(found)]


def tokenizer_digest(target: Path) -> str:
    """sha256 over names and contents of the tokenizer's files."""
    return hashlib.sha256("\n".join(digest_lines(target)).encode()).hexdigest()


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
    found = own_template(target)
    if found is None:
        raise _missing(
            f"target.model: {target} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
            "name one in data.chatTemplate. It must be the one that requests are served with"
        )
    return found


def own_template(target: Path) -> str | None:
    """The tokenizer's chat template, Jinja, if it has one."""
    return own_templates(target).get("default")


def own_templates(target: Path) -> dict[str, str]:
    """The tokenizer's chat templates, Jinja, by their names: beside the default one it may have one for requests with tools."""
    file = target / "chat_template.jinja"
    if file.is_file():
        others = sorted(target.glob("additional_chat_templates/*.jinja"))
        return {"default": file.read_text(encoding="utf-8")} | {
            one.stem: one.read_text(encoding="utf-8") for one in others
        }
    found = _settings(target, "tokenizer_config.json").get("chat_template")
    listed = found if isinstance(found, list) else [{"name": "default", "template": found}]
    named = {one.get("name"): one.get("template") for one in listed if isinstance(one, dict)}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that a tokenizer keeps apart from text.

    Attributes:
        texts: of each by its id.
        framing: ids of those that begin, end or pad a text.
    """

    texts: dict[int, str]
    framing: frozenset[int]


def special_tokens(target: Path) -> SpecialTokens:
    """The special tokens that the tokenizer's files name, without loading it: that may need code of the target's."""
    named = {_text(_settings(target, file).get(f"{what}_token")) for file in _NAMING for what in _FRAMING}
    added = list(_added_tokens(target))
    framing = frozenset(number for number, text, _ in added if text in named)
    return SpecialTokens({number: text for number, text, special in added if special or number in framing}, framing)


def named_tokens(target: Path) -> dict[str, str]:
    """The tokens that a chat template may call by name, such as ``bos_token``, as far as the tokenizer's files have them."""
    given = {name: token for file in reversed(_NAMING) for name, token in _settings(target, file).items()}
    texts = {name: _text(token) for name, token in given.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


#: The files that say which token begins, ends or pads a text.
_NAMING = ("tokenizer_config.json", "special_tokens_map.json")
_FRAMING = ("bos", "eos", "pad")


def _added_tokens(target: Path) -> Iterator[tuple[int, str, bool]]:
    """Of the tokens beside the vocabulary: id, text, and whether they are special."""
    for token in _settings(target, "tokenizer.json").get("added_tokens") or ():
        yield token["id"], token["content"], bool(token.get("special"))
    for number, token in (_settings(target, "tokenizer_config.json").get("added_tokens_decoder") or {}).items():
        yield int(number), token["content"], bool(token.get("special"))


def _text(token: Any) -> Any:
    """Of a named token: it stands there itself, or in an object."""
    return token.get("content") if isinstance(token, dict) else token


def _settings(target: Path, file: str) -> dict[str, Any]:
    try:
        settings = json.loads((target / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def template_digest(template: str) -> str:
    """sha256 of a chat template."""
    return hashlib.sha256(template.encode()).hexdigest()


def template_day(template: str) -> str | None:
    """What day it is by a chat template that asks, in ISO 8601."""
    return TODAY.isoformat() if ASKS_FOR_TODAY in template else None


def _missing(message: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, message)
