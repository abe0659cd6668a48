"""How rows get from the engine's process to the stage's: one file a forward, in the order of the forwards.

A file holds the rows of all conversations of its forward, each tensor in one piece, and says whose they are. The engine's process
does not wait for it: the rows leave the GPU in the order of its work, and a thread of the writer's own waits for them and writes
the file, while the next forward runs. A conversation that was computed in one forward, as most are, is a view of its file's rows;
what was computed in several is joined here.
"""

import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.features.pieces import PADDING, pieces
from eagle3_draft.stage import StageError

#: Forwards whose files are not written yet. One more would wait: their rows are in memory.
AHEAD = 2

_ROWS = "rows"


class Rows(NamedTuple):
    """Rows of one conversation in one forward.

    Attributes:
        conversation: its number.
        start: its first token that was computed.
        tokens: how many from there.
    """

    conversation: int
    start: int
    tokens: int


def folder_on_disk(artifact: Path, pod: int) -> Path:
    """A new folder for the files beside an artifact, in place of those that killed pods of this number left there."""
    artifact.mkdir(parents=True, exist_ok=True)
    prefix = f".handover-{pod}-"
    for left in artifact.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=artifact))


class HandoverWriter:
    """The engine's side.

    Args:
        folder: for the files; emptied by the reader.
        failed: told, by the writer's thread, of what kept it from writing a file. No file follows one that is missing.
    """

    def __init__(self, folder: Path, failed: Callable[[Exception], None]) -> None:
        self._folder = folder
        self._failed = failed
        self._written = 0
        self._broken = False
        self._thread = ThreadPoolExecutor(1, "handover")
        self._waiting: deque[Future[None]] = deque()

    def write(self, rows: Iterable[Rows], columns: Mapping[str, Tensor]) -> None:
        """Hand over the rows of one forward. Once this returns, the tensors may change.

        Args:
            rows: whose they are, in order. They follow each other in every column.
            columns: (rows, ...), by name, on the GPU or the CPU.
        """
        if len(self._waiting) == AHEAD:
            self._waiting.popleft().result()
        taken = {_ROWS: torch.tensor(list(rows))} | {name: _on_host(column) for name, column in columns.items()}
        copied = (
            torch.cuda.current_stream().record_event() if any(column.is_cuda for column in columns.values()) else None
        )
        self._waiting.append(self._thread.submit(self._write, taken, copied))

    def _write(self, columns: Mapping[str, Tensor], copied: torch.cuda.Event | None) -> None:
        if self._broken:
            return
        path = _file(self._folder, self._written)
        partial = path.with_suffix(".partial")
        try:
            if copied is not None:
                copied.synchronize()
            shapes = {name: (column.dtype, tuple(column.shape)) for name, column in columns.items()}
            with partial.open("wb") as file:
                for piece in pieces(shapes, {name: [column] for name, column in columns.items()}):
                    file.write(piece)
            partial.rename(path)
            self._written += 1
        except Exception as error:
            self._broken = True
            with suppress(OSError):
                partial.unlink()  # where there is no space, it makes room for a word about it
            self._failed(error)


def _on_host(column: Tensor) -> Tensor:
    """A copy on the CPU; of what is on the GPU, one that is there when the GPU gets to it."""
    host = torch.empty(column.shape, dtype=column.dtype, pin_memory=column.is_cuda)
    return host.copy_(column, non_blocking=True)


@dataclass
class _Conversation:
    chunks: list[dict[str, Tensor]] = field(default_factory=list)
    count: int = 0


class HandoverReader:
    """The stage's side.

    Args:
        folder: as the writer knows it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = 0
        self._open: dict[int, _Conversation] = {}

    def look(self) -> int:
        """Take in the forwards that were handed over since the last look. Their files go, what they hold stays mapped.

        Returns:
            How many there were.

        Raises:
            StageError: rows of a conversation are missing before others (FeaturesMisaligned).
        """
        before = self._read
        while (path := _file(self._folder, self._read)).exists():
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if not name.startswith(PADDING)]  # noqa: SIM118  (it is no mapping)
                columns = {name: file.get_tensor(name) for name in names}
            path.unlink()
            self._read += 1
            end = 0
            for one in map(Rows._make, columns.pop(_ROWS).tolist()):
                which, end = slice(end, end + one.tokens), end + one.tokens
                self._add(one, {name: column[which] for name, column in columns.items()})
        return self._read - before

    def take(self, conversation: int, tokens: int) -> dict[str, Tensor] | None:
        """All rows of a conversation, which are then forgotten; None while there are fewer than its tokens."""
        found = self._open.get(conversation)
        if found is None or found.count < tokens:
            return None
        del self._open[conversation]
        if len(found.chunks) == 1:
            return found.chunks[0]
        return {name: torch.cat([chunk[name] for chunk in found.chunks]) for name in found.chunks[0]}

    def _add(self, rows: Rows, chunk: dict[str, Tensor]) -> None:
        if rows.start == 0:  # the first chunk, also of a conversation that was put back and begins anew
            self._open[rows.conversation] = _Conversation()
        conversation = self._open.get(rows.conversation, _Conversation())
        if conversation.count != rows.start:
            raise StageError(
                ExitCode.REFUSED,
                Reason.FEATURES_MISALIGNED,
                f"rows from token {rows.start} on, after {conversation.count} tokens: the engine took the others from its "
                "prefix cache",
            )
        conversation.chunks.append(chunk)
        conversation.count += rows.tokens


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.safetensors"
