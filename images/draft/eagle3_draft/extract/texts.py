"""What is learned from: conversations as tokens, with the answers that stand in the data or the target's own."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

from eagle3_draft.data.conversations import Conversation, UnusableError
from eagle3_draft.data.dialogue import Dialogue
from eagle3_draft.data.rendering import Rendered
from eagle3_draft.extract.answers import Count, PartAnswers
from eagle3_draft.extract.engine import Answering, Engine, Sampling
from eagle3_draft.extract.inputs import Inputs
from eagle3_draft.extract.parts import Part
from eagle3_draft.features import Split
from eagle3_draft.runtime.progress import ProgressReporter

#: Dialogues that are open at least while there are any left to begin: as many as an engine decodes together.
OPEN_DIALOGUES = 512

#: Parts that are begun before the one whose answers are waited for is over. They are held in memory.
PARTS_AHEAD = 2

#: Conversations that the tokenizer takes together.
RENDERED_TOGETHER = 64

#: Between two looks at whether the pod is to end, while no dialogue is finished.
WAIT_SECONDS = 1.0


@dataclass
class Usable:
    """Conversations that can be learned from, and why the others cannot.

    Attributes:
        texts: of each split.
        dropped: conversations, by why.
        cut: conversations of which the longest length left a part.
        lost: tokens of them that it did not leave, as far as they are known: a question that was not asked has no answer.
        answers: that the target gave itself.
    """

    texts: dict[Split, list[Rendered]] = field(default_factory=lambda: {split: [] for split in Split})
    dropped: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    lost: int = 0
    answers: Count | None = None

    @property
    def all(self) -> list[Rendered]:
        """Of both splits."""
        return [text for part in self.texts.values() for text in part]


class Texts(Protocol):
    """Makes texts of the parts that a pod is to make, in their order.

    Attributes:
        unit: what progress counts, in plural.
        steps: how much a conversation counts, its states included.
        immediate: whether texts come without waiting for the target.
    """

    unit: str
    steps: int
    immediate: bool

    def first(self, parts: Sequence[Part], count: int) -> tuple[int, Usable]:
        """The texts of the first usable conversations of these parts, so many at most, and how many were looked at for them."""
        ...

    def of(self, part: Part) -> Usable:
        """The texts of a part."""
        ...

    def attend(self) -> None:
        """Called between two conversations while their states are taken; what it raises interrupts."""
        ...

    def close(self) -> None:
        """Give up what is not finished."""
        ...


class AsTheyStand:
    """With the answers in the data. The target is not needed for them.

    The next part is rendered by a thread while the states of one are taken: an engine that runs a small target is through
    with all that it has been asked for in less time than a part takes to render.

    Args:
        inputs: of the extraction.
        parts: to be made, in order.
        attend: called between two conversations; what it raises interrupts.
        progress: of the stage.
    """

    unit = "conversations"
    steps = 1
    immediate = True

    def __init__(
        self, inputs: Inputs, parts: Iterable[Part], attend: Callable[[], None], progress: ProgressReporter
    ) -> None:
        self._inputs = inputs
        self._waiting = deque(parts)
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, "rendering")
        self._rendering: Future[Usable] | None = None
        self.attend = attend

    def first(self, parts: Sequence[Part], count: int) -> tuple[int, Usable]:
        usable, looked_at = Usable(), 0
        for index, text in chain.from_iterable(map(self._rendered, parts)):
            self._add(usable, index, text)
            looked_at += 1
            if len(usable.all) == count:
                break
        return looked_at, usable

    def of(self, part: Part) -> Usable:
        """Of the next part; they are taken in order."""
        usable = (self._rendering or self._next()).result()
        self._waiting.popleft()
        self._rendering = self._next() if self._waiting else None
        return usable

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _next(self) -> "Future[Usable]":
        return self._thread.submit(self._usable, self._waiting[0])

    def _usable(self, part: Part) -> Usable:
        usable = Usable()
        for index, text in self._rendered(part):
            self._add(usable, index, text)
        return usable

    def _rendered(self, part: Part) -> Iterator[tuple[int, Rendered | UnusableError]]:
        for begin in range(0, len(part.conversations), RENDERED_TOGETHER):
            some = part.conversations[begin : begin + RENDERED_TOGETHER]
            yield from zip(some, self._inputs.renderer.conversations(self._each(part, some)), strict=True)

    def _each(self, part: Part, some: Sequence[int]) -> Iterator[Conversation]:
        """Of these conversations, with a look around before each: one with many turns may take seconds to render."""
        for index in some:
            self.attend()
            self._progress.advance(0, f"rendering part {part.number + 1} of {part.count}")
            yield self._inputs.conversations[index]

    def _add(self, usable: Usable, index: int, text: Rendered | UnusableError) -> None:
        if isinstance(text, UnusableError):
            usable.dropped[str(text)] += 1
        else:
            usable.texts[self._inputs.split(index)].append(text)
            usable.cut += text.lost > 0
            usable.lost += text.lost


class Regenerated:
    """With the target's own answers.

    Dialogues of the next parts are begun while the last ones of a part are still open and while its states are taken, so
    that the engine never waits for a part's longest answer. What is asked, and with which seed, does not depend on it.

    Args:
        inputs: of the extraction.
        parts: to be made, in order.
        folder: of the artifact, below which each part keeps its answers.
        sampling: how answers are drawn.
        max_tokens: of one answer.
        engine: loads the target, if there is anything left to answer.
        check: called now and then; what it raises interrupts.
        progress: of the stage; told of each dialogue that is finished.
    """

    unit = "answered and extracted conversations"
    steps = 2
    immediate = False

    def __init__(
        self,
        inputs: Inputs,
        parts: Iterable[Part],
        folder: Path,
        sampling: Sampling,
        max_tokens: int,
        *,
        engine: Callable[[], Engine],
        check: Callable[[], None],
        progress: ProgressReporter,
    ) -> None:
        self._inputs = inputs
        self._waiting = deque(parts)
        self._folder = folder
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._engine = engine
        self._check = check
        self._progress = progress
        self._begun: dict[Part, PartAnswers] = {}
        self._open: dict[Dialogue, PartAnswers] = {}
        self._answering: Answering[Dialogue] | None = None

    def first(self, parts: Sequence[Part], count: int) -> tuple[int, Usable]:
        """The first in the parts' order, for those that are finished first are the short ones. The others go on meanwhile."""
        self._ask()
        found: dict[int, Dialogue] = {}
        usable = 0
        for index, dialogue in self._dialogues(parts):
            found[index] = dialogue
            usable += dialogue in self._open or bool(dialogue.answers)
            if usable == count:
                break
        while not self._open.keys().isdisjoint(found.values()):
            self._hear(WAIT_SECONDS)
        return len(found), self._usable(found)

    def of(self, part: Part) -> Usable:
        """A conversation whose history the template rewrites makes several texts."""
        self._ask()
        begun = self._begun[part]
        while begun.open:
            self._hear(WAIT_SECONDS)
        begun.settle()
        del self._begun[part]
        return self._usable(begun.dialogues)

    def attend(self) -> None:
        """Also takes down what was answered meanwhile, and asks on."""
        self._hear(0)

    def close(self) -> None:
        if self._answering is not None:
            self._answering.close()
        for begun in self._begun.values():
            begun.close()

    def _hear(self, seconds: float) -> None:
        """Take down the dialogues that are finished, or that one which is within so many seconds; then ask on."""
        for dialogue in self._answering.finished(seconds) if self._answering is not None else ():
            self._open.pop(dialogue).keep(dialogue)
            self._progress.advance(1)
        self._check()
        self._ask()

    def _dialogues(self, parts: Sequence[Part]) -> Iterator[tuple[int, Dialogue]]:
        """Those of these parts, which are begun where they are not yet."""
        for part in parts:
            while part not in self._begun:
                self._begin(self._waiting.popleft())
            yield from self._begun[part].dialogues.items()

    def _ask(self) -> None:
        """Begin further parts, as far as that goes ahead."""
        while self._waiting and len(self._open) < OPEN_DIALOGUES and len(self._begun) <= PARTS_AHEAD:
            self._begin(self._waiting.popleft())

    def _begin(self, part: Part) -> None:
        renderer, conversations = self._inputs.renderer, self._inputs.conversations
        dialogues = {index: Dialogue(conversations[index], renderer, self._max_tokens) for index in part.conversations}
        begun = PartAnswers(self._folder / part.name, dialogues)
        self._begun[part] = begun
        self._progress.advance(len(dialogues) - len(begun.open))
        to_ask = [dialogue for dialogue in dialogues.values() if dialogue in begun.open]
        if to_ask:
            self._open |= dict.fromkeys(to_ask, begun)
            if self._answering is None:
                self._answering = self._engine().converse(self._sampling)
            self._answering.ask(to_ask)

    def _usable(self, dialogues: Mapping[int, Dialogue]) -> Usable:
        usable = Usable(answers=Count.of(dialogues.values()))
        for index, dialogue in dialogues.items():
            try:
                usable.texts[self._inputs.split(index)] += dialogue.sequences()
                usable.cut += dialogue.cut
            except UnusableError as why:
                usable.dropped[str(why)] += 1
        return usable
