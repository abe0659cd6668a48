"""Ids of calls, for a template that says what is called by the call's id alone, as Kimi K2's does.

The target writes such an id itself: ``functions.<name>:<number>``, counted through the conversation. One that another server gave
(``call_5f3a``) is nothing that it would ever say, nor would it know from it what was called.
"""

import re
from collections.abc import Sequence
from typing import Any

from eagle3_draft.data.conversations import Message


def named(messages: Sequence[Message]) -> list[Message]:
    """With ids that name what is called, unless all of them do; results keep to their calls, by id or else by place."""
    if all(_names(call["id"] or "", call["function"]["name"]) for message in messages for call in _calls(message)):
        return [*messages]
    made: list[Message] = []
    count, ids, unanswered = 0, dict[str, str](), list[str]()
    for message in messages:
        calls = _calls(message)
        if calls:
            unanswered = [f"functions.{call['function']['name']}:{number}" for number, call in enumerate(calls, count)]
            count += len(calls)
            ids |= {call["id"]: new for call, new in zip(calls, unanswered, strict=True) if call["id"] is not None}
            renamed = [{**call, "id": new} for call, new in zip(calls, unanswered, strict=True)]
            made.append({**message, "tool_calls": renamed})
        elif message["role"] == "tool" and unanswered:
            new = ids.get(message.get("tool_call_id", ""), unanswered[0])
            unanswered = [one for one in unanswered if one != new]
            made.append({**message, "tool_call_id": new})
        else:
            made.append(message)
    return made


def _names(given: str, name: str) -> bool:
    """Whether the target would write an id so for what is called."""
    return re.fullmatch(rf"(.*\.)?{re.escape(name)}:\d+", given) is not None


def _calls(message: Message) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = message.get("tool_calls", [])
    return calls
