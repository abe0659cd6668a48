"""The target's own answers to a part's questions: given once, and kept beside the part.

While a part is answered, each finished dialogue is a line of a working file, so that an interrupted run loses only the
dialogues that were open. When all are finished they lie in ``answers.jsonl``, in the part's order, and become part of the
artifact. A line holds the conversation's digest and each answer: its tokens, which are what counts, whether it ended, and
its text, for people.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from eagle3_api.artifacts import ANSWERS
from eagle3_api.base import Model
from eagle3_draft.data.dialogue import Answer, Dialogue
from eagle3_draft.files import write_atomic

_WORKING = f".{ANSWERS}"


@dataclass(frozen=True)
class Count:
    """How many answers there are.

    Attributes:
        all: of them.
        cut: by a length.
    """

    all: int
    cut: int

    @classmethod
    def of(cls, dialogues: Iterable[Dialogue]) -> "Count":
        """Of these dialogues."""
        ended = Counter(answer.ended for dialogue in dialogues for answer in dialogue.answers)
        return cls(ended.total(), ended[False])


class _Answer(Model):
    ids: list[int]
    ended: bool
    text: str


class _Line(Model):
    conversation: str
    answers: list[_Answer]


class PartAnswers:
    """The dialogues of a part while they are answered.

    Args:
        folder: of the part.
        dialogues: of the part, by conversation, in order, all at their beginning. Those that an earlier run finished are at
            their end afterwards.

    Attributes:
        dialogues: the same.
        open: those that are not finished.
    """

    def __init__(self, folder: Path, dialogues: Mapping[int, Dialogue]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.dialogues = dialogues
        self._folder = folder
        known = dict(_read(folder / _WORKING)) | dict(_read(folder / ANSWERS))
        for dialogue in dialogues.values():
            for answer in known.get(dialogue.digest.hex(), ()):
                dialogue.take(answer)
        self.open = {dialogue for dialogue in dialogues.values() if dialogue.prompt is not None}
        self._working = (folder / _WORKING).open("ab")
        self._working.write(b"\n")  # after a line that was torn

    def keep(self, dialogue: Dialogue) -> None:
        """One of them is finished."""
        self._working.write(_line(dialogue))
        self._working.flush()
        self.open.discard(dialogue)

    def settle(self) -> None:
        """All are finished: their answers become the part's."""
        self.close()
        write_atomic(self._folder / ANSWERS, b"".join(map(_line, self.dialogues.values())))
        (self._folder / _WORKING).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the working file to the next run."""
        self._working.close()


def _line(dialogue: Dialogue) -> bytes:
    given = zip(dialogue.answers, dialogue.texts, strict=True)
    answers = [_Answer(ids=list(answer.ids), ended=answer.ended, text=text) for answer, text in given]
    line = _Line(conversation=dialogue.digest.hex(), answers=answers)
    return json.dumps(line.to_json(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _read(path: Path) -> Iterator[tuple[str, Sequence[Answer]]]:
    """The answers of each conversation, by its digest. What is no whole line was being written when the run ended."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for text in lines:
        try:
            line = _Line.model_validate_json(text)
        except ValidationError:
            continue
        yield line.conversation, [Answer(answer.ids, answer.ended) for answer in line.answers]
