"""The forms in which conversations come, made into one: ``{"messages": [{"role": ..., "content": ...}, ...]}``.

- OpenAI's messages, which is that form;
- ``{"prompt": text}``, or a list of messages in the same place: a question without an answer;
- ShareGPT's ``{"conversations": [{"from": "human", "value": ...}, ...]}``;
- Parquet with one such value a row, in a column of the same name. It needs pyarrow, which SGLang requires and our own
  image has unless it was built without.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

PARQUET_MAGIC = b"PAR1"

COLUMNS = ("messages", "conversations")
PROMPT_COLUMNS = ("prompt", *COLUMNS)

#: Who speaks, by what ShareGPT's files call them.
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "function_call": "function",
    "observation": "tool",
}


class FormError(ValueError):
    """A file in a form that cannot be read here; its text is why."""


def as_messages(value: Any, *, prompts: bool = False) -> Any:
    """A line's value, of another form turned into messages. What is of no form is left as it is, to be judged.

    Args:
        value: of the line.
        prompts: it may be a question alone.
    """
    if not isinstance(value, dict) or "messages" in value:
        return value
    if prompts and isinstance(value.get("prompt"), str):
        return {"messages": [{"role": "user", "content": value["prompt"]}]}
    if prompts and isinstance(value.get("prompt"), list):
        return {"messages": value["prompt"]}
    if isinstance(value.get("conversations"), list):
        return {"messages": [_message(turn) for turn in value["conversations"]]}
    return value


def _message(turn: Any) -> Any:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn  # some files have role and content under the other name
    return {"role": _SPEAKERS.get(str(turn["from"]), turn["from"]), "content": turn.get("value")}


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
        column = next((name for name in columns if name in file.schema_arrow.names), None)
        if column is None:
            raise FormError(f"it has no column {' or '.join(columns)}, but {', '.join(file.schema_arrow.names[:8])}")
        for batch in file.iter_batches(batch_size=1024, columns=[column]):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise FormError(f"no whole Parquet file: {error}") from error
