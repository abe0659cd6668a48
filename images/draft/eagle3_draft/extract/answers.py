"""The target's own answers to a part's questions: given once, and kept beside the part.

While a part is answered, each finished dialogue is a line of a working file, so that an interrupted run loses only the
dialogues that were open. When all are finished they lie in ``answers.jsonl``, in the part's order, and become part of the
artifact. A line holds the conversation's digest and each answer: its tokens, which are what counts, whether it ended, and
its text, for people.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from eagle3_api.artifacts import ANSWERS
from eagle3_api.base import Model
from eagle3_draft.artifacts import write_atomic
from eagle3_draft.data.dialogue import Answer, Dialogue
from eagle3_draft.extract.engine import Engine, Sampling

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


def answered(
    folder: Path,
    dialogues: Sequence[Dialogue],
    engine: Callable[[], Engine],
    sampling: Sampling,
    *,
    attend: Callable[[], None],
    progress: Callable[[int], None],
) -> None:
    """Have all dialogues answered; those that an earlier run finished are taken from the folder.

    Args:
        folder: of the part.
        dialogues: of the part, in order, all at their beginning. They are at their end afterwards.
        engine: loads the target, if there is anything left to answer.
        sampling: how answers are drawn.
        attend: called now and then; what it raises interrupts.
        progress: told how many are finished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = dict(_read(folder / _WORKING)) | dict(_read(folder / ANSWERS))
    for dialogue in dialogues:
        _replay(dialogue, known)
    left = [dialogue for dialogue in dialogues if dialogue.prompt is not None]
    before = len(dialogues) - len(left)
    progress(before)
    if left:
        with (
            (folder / _WORKING).open("ab") as working,
            # Closed at once when something is raised here: the engine cannot end while it answers
            closing(engine().converse(left, sampling, attend)) as finished,
        ):
            working.write(b"\n")  # after a line that was torn
            for count, dialogue in enumerate(finished, start=1):
                working.write(_line(dialogue))
                working.flush()
                progress(before + count)
                attend()
    write_atomic(folder / ANSWERS, b"".join(map(_line, dialogues)))
    (folder / _WORKING).unlink(missing_ok=True)


def _line(dialogue: Dialogue) -> bytes:
    given = zip(dialogue.answers, dialogue.texts, strict=True)
    answers = [_Answer(ids=list(answer.ids), ended=answer.ended, text=text) for answer, text in given]
    line = _Line(conversation=dialogue.digest.hex(), answers=answers)
    return json.dumps(line.to_json(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _read(path: Path) -> Iterator[tuple[str, list[Answer]]]:
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


def _replay(dialogue: Dialogue, known: Mapping[str, Sequence[Answer]]) -> None:
    for answer in known.get(dialogue.digest.hex(), ()):
        dialogue.take(answer)
