"""The forms in which conversations come, made into one: ``{"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}``.

- OpenAI's messages, which is that form, and the former one of its calls: ``function_call``, with a result of role ``function``;
- ``{"prompt": text}``, or a list of messages in the same place: a question without an answer;
- ShareGPT's ``{"conversations": [{"from": "human", "value": ...}, ...]}``, with calls from ``function_call`` and results from
  ``observation``;
- Parquet with one such value a row, in columns of the same names, and tools in another. It needs pyarrow, which SGLang requires
  and our own image has unless it was built without.
"""

import json
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PARQUET_MAGIC = b"PAR1"

#: Where more than one has something the first is taken: of a whole conversation some files have the first question besides.
COLUMNS = ("messages", "conversations")
PROMPT_COLUMNS = (*COLUMNS, "prompt")
TOOLS_COLUMN = "tools"

#: Who speaks, by what ShareGPT's files call them.
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "observation": "function",
}
_CALLING = "function_call"


class FormError(ValueError):
    """A file in a form that cannot be read here; its text is why."""


def as_messages(value: Any, *, prompts: bool = False) -> Any:
    """A line's value, of another form turned into messages. What is of no form is left as it is, to be judged.

    Args:
        value: of the line.
        prompts: it may be a question alone.
    """
    messages = _messages(value, prompts) if isinstance(value, dict) else None
    if messages is None:
        return value
    return {"messages": _with_calls(messages), TOOLS_COLUMN: value.get(TOOLS_COLUMN)}


def _messages(value: dict[str, Any], prompts: bool) -> list[Any] | None:
    said = {name: value[name] for name in (PROMPT_COLUMNS if prompts else COLUMNS) if value.get(name) is not None}
    match next(iter(said.items()), None):
        case ("conversations", list(turns)):
            return [_message(turn) for turn in turns]
        case ("prompt", str(question)):
            return [{"role": "user", "content": question}]
        case (_, list(messages)):
            return messages
    return None


def _message(turn: Any) -> Any:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn  # some files have role and content under the other name
    if turn["from"] == _CALLING:
        return {"role": "assistant", "content": "", _CALLING: _parsed(turn.get("value"))}
    return {"role": _SPEAKERS.get(str(turn["from"]), turn["from"]), "content": turn.get("value")}


def _parsed(text: Any) -> Any:
    with suppress(ValueError, TypeError, RecursionError):
        return json.loads(text)
    return text


def _with_calls(messages: list[Any]) -> list[Any]:
    """Former calls and their results as today's, where it is clear which results are a call's: as many stand behind it, or the
    conversation ends with it. Others are left as they are.
    """
    made: list[Any] = []
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        calls = _former_calls(message)
        results: list[Any] = []
        while calls and rest and isinstance(rest[0], dict) and rest[0].get("role") == "function":
            results.append(rest.popleft())
        ends = not results and not rest
        if calls and (ends or len(results) == len(calls)):
            made.append({**message, _CALLING: None, "tool_calls": [{"function": call} for call in calls]})
            made += [{**result, "role": "tool"} for result in results]
        else:
            made += [message, *results]
    return made


def _former_calls(message: Any) -> list[dict[str, Any]]:
    found = message.get(_CALLING) if isinstance(message, dict) and message.get("role") == "assistant" else None
    every = found if isinstance(found, list) else [found]
    calls = [call for call in every if isinstance(call, dict)]
    return calls if len(calls) == len(every) else []


def is_parquet(path: Path) -> bool:
    """Whether a file is of this form, by how it begins.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def spelled_out(path: Path, *, prompts: bool = False) -> IO[bytes]:
    """A Parquet file as JSON Lines, one row a line, in a file of the pod's scratch that goes when it is closed.

    Conversations are read in another order than they lie in, which a row group at a time would be read for each.

    Args:
        path: of the file.
        prompts: its rows may be questions alone.

    Raises:
        FormError: there is no pyarrow, or no column of conversations, or the file is broken.
    """
    made = tempfile.NamedTemporaryFile(prefix="eagle3-conversations-", suffix=".jsonl")  # noqa: SIM115 - outlives this
    for row in _rows(path, PROMPT_COLUMNS if prompts else COLUMNS):
        made.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    made.flush()
    return made


def lines(path: Path) -> Iterator[bytes]:
    """The conversations or questions of a file as lines of JSON, whatever its form; a line that is none is left as it is.

    Raises:
        FormError: as of ``spelled_out``.
    """
    if is_parquet(path):
        for row in _rows(path, PROMPT_COLUMNS):
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
        return
    with path.open("rb") as file:
        for line in file:
            yield line if line.endswith(b"\n") else line + b"\n"


def _rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise FormError(
            "Parquet needs pyarrow, which this image does not hold; write the conversations as JSON Lines, or use an image "
            "with it: ours is built with it by EXTRAS='--extra hub --extra parquet', and SGLang's own have it"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        found = [name for name in columns if name in file.schema_arrow.names]
        if not found:
            raise FormError(f"it has no column {' or '.join(columns)}, but {', '.join(file.schema_arrow.names[:8])}")
        wanted = [*found, *({TOOLS_COLUMN} & {*file.schema_arrow.names})]
        for batch in file.iter_batches(batch_size=1024, columns=wanted):
            yield from map(_without_nulls, batch.to_pylist())
    except pyarrow.ArrowException as error:
        raise FormError(f"no whole Parquet file: {error}") from error


def _without_nulls(value: Any) -> Any:
    """What a column of objects that have not the same fields holds of each: it gives all of them the fields of all."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
