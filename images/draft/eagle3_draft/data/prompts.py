"""The probe's prompts: held-out conversations up to where the assistant would answer last.

They travel with the artifacts, from Extract's to Convert's, as JSON Lines; a line has ``messages``, ``tools`` where the
conversation has them, the same as ``input_ids``, rendered with the generation prompt, and the ``day`` that it was then, if the
template says one.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eagle3_draft.data.conversations import Conversation, UnusableError
from eagle3_draft.data.rendering import Renderer
from eagle3_draft.files import write_atomic

#: At most so many are kept.
LIMIT = 64

Prompt = dict[str, Any]


def collect(conversations: Iterable[Conversation], renderer: Renderer, max_length: int) -> list[Prompt]:
    """The first prompts of these conversations, in their order.

    Left out are conversations without a user turn, prompts of more than ``max_length`` tokens, and all but the first of those that
    are the same: several answers to one question are held out together.
    """
    found: list[Prompt] = []
    taken: list[Prompt] = []
    for conversation in conversations:
        if len(found) == LIMIT:
            break
        turns = [index for index, message in enumerate(conversation.messages) if message["role"] == "user"]
        if not turns:
            continue
        messages = renderer.named(conversation).messages[: turns[-1] + 1]
        asked: Prompt = {"messages": messages} | ({"tools": conversation.tools} if conversation.tools else {})
        if asked in taken:
            continue
        try:
            ids = renderer.prompt(messages, conversation.tools)
        except UnusableError:
            continue
        if len(ids) <= max_length:
            said = renderer.day_said(conversation.tools)
            day = {"day": said} if said else {}
            taken.append(asked)
            found.append({**asked, "input_ids": ids, **day})
    return found


def write(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSON Lines."""
    lines = "".join(json.dumps(prompt, ensure_ascii=False, separators=(",", ":")) + "\n" for prompt in prompts)
    write_atomic(path, lines.encode())
