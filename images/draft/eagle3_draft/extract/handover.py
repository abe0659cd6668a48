"""How rows get from the engine's process to the stage's: one file a forward, in the order of the forwards.

A file holds the rows of all conversations of its forward, each tensor in one piece, and says in its metadata whose they are. So
the engine's process, for which every conversation's file would be a pause between two forwards, writes one; and a conversation
that was computed in one forward, as most are, is a view of its rows. What was computed in several is joined here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.stage import StageError

_ROWS = "rows"


class Rows(Model):
    """Rows of one conversation in one forward.

    Attributes:
        conversation: its number.
        start: its first token that was computed.
        count: tokens.
    """

    conversation: int
    start: int
    count: int


class HandoverWriter:
    """The engine's side.

    Args:
        folder: for the files; emptied by the reader.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    def write(self, rows: Iterable[Rows], columns: Mapping[str, Tensor]) -> None:
        """Hand over the rows of one forward.

        Args:
            rows: whose they are, in order. They follow each other in every column.
            columns: (rows, ...), on the CPU, by name.
        """
        told = json.dumps([one.to_json() for one in rows])
        save_file(dict(columns), _file(self._folder, self._written), metadata={_ROWS: told})
        self._written += 1


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

    def look(self) -> None:
        """Take in the forwards that were handed over since the last look. Their files go, what they hold stays mapped.

        Raises:
            StageError: rows of a conversation are missing before others (FeaturesMisaligned).
        """
        while (path := _file(self._folder, self._read)).exists():
            with safe_open(path, framework="pt") as file:
                rows = [Rows.model_validate(one) for one in json.loads(file.metadata()[_ROWS])]
                columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
            path.unlink()
            self._read += 1
            end = 0
            for one in rows:
                which, end = slice(end, end + one.count), end + one.count
                self._add(one, {name: column[which] for name, column in columns.items()})

    def take(self, conversation: int) -> dict[str, Tensor] | None:
        """All rows of a conversation, which are then forgotten; None where there are none."""
        found = self._open.pop(conversation, None)
        if found is None:
            return None
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
        conversation.count += rows.count


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.safetensors"
