"""How rows get from the engine's process to the stage's: a note for each forward, in the order of the forwards, and its rows.

A note says whose rows they are and where: in a region of shared memory, to which the GPU copies them itself, or in a file of their
own where no region has room. The engine's process does not wait for either: the rows leave the GPU in the order of its work, and
a thread of the writer's own waits for them and writes the note, while the next forward runs. A conversation that was
computed in one forward, as most are, is a view of its rows; what was computed in several is joined here.
"""

import json
import mmap
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
from torch import Tensor

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.extract.regions import Column, Entry, Leases, Regions, layout

#: Forwards whose notes are not written yet. One more would wait: their rows are in memory.
AHEAD = 2


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
    """A new folder for the files beside an artifact."""
    artifact.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_prefix(pod), dir=artifact))


def remove_left(artifact: Path, pod: int) -> None:
    """Remove what killed pods of this number left beside an artifact. The next one may hand over in memory."""
    for left in artifact.glob(f"{_prefix(pod)}*"):
        shutil.rmtree(left, ignore_errors=True)


def _prefix(pod: int) -> str:
    return f".handover-{pod}-"


class HandoverWriter:
    """The engine's side.

    Args:
        folder: for the notes and the files; emptied by the reader.
        failed: told, by the writer's thread, of what kept it from writing one. None follows one that is missing.
        regions: what the rows are laid into while there is room.
    """

    def __init__(self, folder: Path, failed: Callable[[Exception], None], regions: Regions) -> None:
        self._folder = folder
        self._failed = failed
        self._regions = regions
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
        on_gpu = any(column.is_cuda for column in columns.values())
        places, size = layout(columns)
        entry = self._regions.take(size, pinned=on_gpu)
        memory = self._regions.memory(entry) if entry else torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
        for name, column in columns.items():
            places[name].view(memory).copy_(column, non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if on_gpu else None
        note = {"rows": list(rows), "columns": places, "entry": entry}
        self._waiting.append(self._thread.submit(self._write, note, None if entry else memory, copied))

    def _write(self, note: Mapping[str, object], own_file: Tensor | None, copied: torch.cuda.Event | None) -> None:
        if self._broken:
            return
        path = _note(self._folder, self._written)
        partial = path.with_suffix(".partial")
        try:
            if copied is not None:
                copied.synchronize()
            if own_file is not None:
                _file(path).write_bytes(own_file.numpy().data)
            partial.write_text(json.dumps(note))
            partial.rename(path)
            self._written += 1
        except Exception as error:
            self._broken = True
            for left in (partial, _file(path)):
                with suppress(OSError):
                    left.unlink()  # where there is no space, it makes room for a word about it
            self._failed(error)


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
        self._leases = Leases(folder)
        self._read = 0
        self._open: dict[int, _Conversation] = {}

    def look(self) -> int:
        """Take in the forwards that were handed over since the last look. Their notes and files go, their rows stay mapped.

        Returns:
            How many there were.

        Raises:
            StageError: rows of a conversation are missing before others (FeaturesMisaligned).
        """
        before = self._read
        while (path := _note(self._folder, self._read)).exists():
            note = json.loads(path.read_bytes())
            memory = self._leases.memory(Entry(*note["entry"])) if note["entry"] is not None else _mapped(_file(path))
            path.unlink()
            self._read += 1
            columns = {name: Column(*place).view(memory) for name, place in note["columns"].items()}
            end = 0
            for one in map(Rows._make, note["rows"]):
                which, end = slice(end, end + one.tokens), end + one.tokens
                self._add(one, {name: column[which] for name, column in columns.items()})
        return self._read - before

    def under_way(self) -> int | None:
        """Bytes of the next rows that are in their file while the other side writes it; None where it writes none."""
        try:
            return _file(_note(self._folder, self._read)).stat().st_size
        except FileNotFoundError:
            return None

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


def _mapped(path: Path) -> Tensor:
    """The bytes of a file, which goes."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch shares writable buffers alone
    path.unlink()
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _note(folder: Path, number: int) -> Path:
    return folder / f"{number}.json"


def _file(note: Path) -> Path:
    return note.with_suffix(".rows")
