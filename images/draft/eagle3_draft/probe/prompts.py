"""The held-out prompts that travel with a converted draft."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from eagle3_api.artifacts import PROMPTS
from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError


class _Line(Model):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = Field(default_factory=list)
    input_ids: list[int] = Field(min_length=1)
    day: str | None = None


@dataclass(frozen=True)
class Prompt:
    """One prompt: a conversation up to the user's last turn."""

    #: Line in the file, from 0: what two probes of the same prompts compare by.
    index: int
    messages: list[dict[str, Any]]
    #: As rendered for training, with the assistant's turn opened.
    input_ids: list[int]
    #: That the request offers.
    tools: list[dict[str, Any]] = field(default_factory=list)
    #: That is said in them, where the chat template says what day it is.
    day: str | None = None


def load(folder: Path, digest: str) -> list[Prompt]:
    """The prompts of a draft.

    Args:
        folder: of the converted draft.
        digest: sha256 that the file must have.

    Raises:
        StageError: the file is missing, broken, empty or another than was published (CorruptArtifact).
    """
    path = folder / PROMPTS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _corrupt(path, error.strerror or str(error)) from None
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise _corrupt(path, f"its digest is {found[:12]}…, not {digest[:12]}…: the file was changed")
    try:
        lines = [_Line.model_validate_json(line) for line in data.splitlines() if line.strip()]
    except ValidationError as error:
        raise _corrupt(path, str(error.errors(include_url=False, include_input=False)[0]["msg"])) from None
    if not lines:
        raise _corrupt(path, "it holds no prompt")
    return [Prompt(index, line.messages, line.input_ids, line.tools, line.day) for index, line in enumerate(lines)]


def select(prompts: list[Prompt], *, count: int, room: int | None) -> list[Prompt]:
    """The first prompts that the server can answer in full.

    Args:
        prompts: all of them.
        count: how many to take.
        room: longest prompt that the server takes, in tokens; None when it does not say.

    Raises:
        StageError: none fits (ProbeError).
    """
    fitting = [prompt for prompt in prompts if room is None or len(prompt.input_ids) <= room]
    if not fitting:
        shortest = min(len(prompt.input_ids) for prompt in prompts)
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.PROBE_ERROR,
            f"the shortest of {len(prompts)} held-out prompts has {shortest} tokens; the server has room for {room} "
            "beside an answer of probe.maxTokens. Lower probe.maxTokens or raise serve.contextLength",
        )
    return fitting[:count]


def _corrupt(path: Path, what: str) -> StageError:
    return StageError(ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT, f"the held-out prompts {path}: {what}")
