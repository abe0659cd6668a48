"""The prompts that the probe will send: those of the training, or made here for a draft that was trained elsewhere."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

from eagle3_api.artifacts import PROMPTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ExitCode
from eagle3_draft.data import prompts
from eagle3_draft.data.conversations import Conversation, Conversations
from eagle3_draft.data.rendering import Renderer
from eagle3_draft.data.tokenizer_files import chat_template
from eagle3_draft.errors import StageError
from eagle3_draft.storage import artifacts

#: Questions for everyone, one conversation a line, where the object names no data.
QUESTIONS = "questions.jsonl"


def put(config: ConvertConfig, folder: Path) -> None:
    """Put prompts.jsonl into the artifact's folder.

    Raises:
        StageError: the data holds none that could be sent (NoUsableData).
    """
    if config.trained is not None:
        shutil.copyfile(artifacts.verified(Path(config.trained), PROMPTS), folder / PROMPTS)
        return
    found = _of_data(config) if config.data is not None else _of_everyone(config)
    if not found:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.NO_USABLE_DATA,
            "no held-out conversation has a user turn that fits, so no server could be probed. Give more conversations, or "
            "leave data out, to have built-in questions asked",
        )
    prompts.write(folder / PROMPTS, found)


def _of_data(config: ConvertConfig) -> list[prompts.Prompt]:
    """The held-out conversations, as Extract would have chosen them."""
    assert config.data is not None  # noqa: S101  the caller's condition
    conversations = Conversations.of(config.data)
    held = conversations.held_out(config.data.holdout)
    renderer = _renderer(config, config.data.max_length, config.data.chat_template)
    chosen = (conversation for conversation, out in zip(conversations, held, strict=True) if out)
    asked = chosen if conversations.reading.answers else (conversation.opening for conversation in chosen)
    return prompts.collect(asked, renderer, config.data.max_length)


def _of_everyone(config: ConvertConfig) -> list[prompts.Prompt]:
    text = files("eagle3_draft.convert").joinpath(QUESTIONS).read_text(encoding="utf-8")
    asked = [Conversation(json.loads(line)["messages"], b"") for line in text.splitlines()]
    return prompts.collect(asked, _renderer(config, config.context_length, None), config.context_length)


def _renderer(config: ConvertConfig, max_length: int, template: str | None) -> Renderer:
    target = Path(config.target)
    return Renderer.load(
        target,
        chat_template(target, Path(template) if template else None),
        max_length,
        trust_remote_code=config.trust_remote_code,
    )
