"""What is learned from of a part: its conversations as tokens, with the answers that stand in the data or the target's own."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from eagle3_draft.data.conversations import Conversations
from eagle3_draft.data.dialogue import Dialogue
from eagle3_draft.data.rendering import Rendered, Renderer, UnusableError
from eagle3_draft.extract.answers import Count, answered
from eagle3_draft.extract.engine import Engine, Sampling
from eagle3_draft.extract.parts import Part
from eagle3_draft.features import Split
from eagle3_draft.progress import Progress


@dataclass
class Usable:
    """The conversations of a part that can be learned from, and why the others cannot.

    Attributes:
        texts: of each split.
        dropped: conversations, by why.
        answers: that the target gave itself.
    """

    texts: dict[Split, list[Rendered]] = field(default_factory=lambda: {split: [] for split in Split})
    dropped: Counter[str] = field(default_factory=Counter)
    answers: Count | None = None

    @property
    def all(self) -> list[Rendered]:
        """Of both splits."""
        return [text for part in self.texts.values() for text in part]


@dataclass(frozen=True)
class Source:
    """What texts are made of.

    Attributes:
        conversations: all of them.
        held_out: which of them are kept out of training.
        renderer: of the target.
        attend: called between two of them; what it raises interrupts.
    """

    conversations: Conversations
    held_out: Sequence[bool]
    renderer: Renderer
    attend: Callable[[], None]

    def split(self, index: int) -> Split:
        """Of one conversation."""
        return Split.HELD_OUT if self.held_out[index] else Split.TRAIN


class Texts(Protocol):
    """Makes texts of parts.

    Attributes:
        unit: what progress counts, in plural.
        steps: how much a conversation counts, its states included.
    """

    unit: str
    steps: int

    def of(self, part: Part, engine: Callable[[], Engine], progress: Progress, done: int) -> Usable:
        """The texts of a part.

        Args:
            part: which.
            engine: loads the target, if it is needed.
            progress: told how far the whole is.
            done: how much of the whole was done before.
        """
        ...


class AsTheyStand:
    """With the answers in the data."""

    unit = "conversations"
    steps = 1

    def __init__(self, source: Source) -> None:
        self._source = source

    def of(self, part: Part, engine: Callable[[], Engine], progress: Progress, done: int) -> Usable:
        """The texts of a part; the target is not needed for them."""
        usable, source = Usable(), self._source
        for index in part.conversations:
            source.attend()
            progress.update(done, f"rendering part {part.number + 1} of {part.count}")
            try:
                text = source.renderer.conversation(source.conversations[index].messages)
            except UnusableError as why:
                usable.dropped[str(why)] += 1
            else:
                usable.texts[source.split(index)].append(text)
        return usable


class Regenerated:
    """With the target's own answers.

    Args:
        source: what they are made of.
        folder: of the artifact, below which each part keeps its answers.
        sampling: how answers are drawn.
        max_tokens: of one answer.
    """

    unit = "answered and extracted conversations"
    steps = 2

    def __init__(self, source: Source, folder: Path, sampling: Sampling, max_tokens: int) -> None:
        self._source = source
        self._folder = folder
        self._sampling = sampling
        self._max_tokens = max_tokens

    def of(self, part: Part, engine: Callable[[], Engine], progress: Progress, done: int) -> Usable:
        """The texts of a part. A conversation whose history the template rewrites makes several."""
        source = self._source
        dialogues = {
            index: Dialogue(source.conversations[index], source.renderer, self._max_tokens)
            for index in part.conversations
        }
        answered(
            self._folder / part.name,
            list(dialogues.values()),
            engine,
            self._sampling,
            attend=source.attend,
            progress=lambda finished: progress.update(done + finished),
        )
        usable = Usable(answers=Count.of(dialogues.values()))
        for index, dialogue in dialogues.items():
            try:
                usable.texts[source.split(index)] += dialogue.sequences()
            except UnusableError as why:
                usable.dropped[str(why)] += 1
        return usable
