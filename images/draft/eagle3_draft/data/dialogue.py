"""A conversation in which the target answers itself: the questions are the data's, the answers its own.

It is led turn by turn, as a client leads it: all that was said so far is rendered with the chat template, up to where the
assistant begins, and the target goes on from there. What it answers is said in the next rendering as a server would have
handed it out: text, with the reasoning apart where the template asks for it so.

What is learned from are the very tokens that the target produced, never its text made tokens again, which need not be
the same. So a turn joins the sequence of the turns before it only if its rendering repeats that sequence token by token;
where the template rewrites history (most drop the reasoning of former turns) or the tokenizer cuts it otherwise, a new
sequence begins. In either case a sequence is exactly what a server computes when it gives the last answer in it.
"""

import hashlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle3_draft.data.conversations import REASONING_BEGINS, REASONING_ENDS, Conversation, Message, UnusableError
from eagle3_draft.data.rendering import Rendered, Renderer
from eagle3_draft.data.tools import names

NO_QUESTION = "no question of a user"
QUESTION_TOO_LONG = "question as long as maxLength"

#: Behind it is the answer of a target that has channels.
FINAL_CHANNEL = "<|channel|>final<|message|>"


@dataclass(frozen=True)
class Answer:
    """What the target answered.

    Attributes:
        ids: as it produced them; the last is the token that ends the answer, if it came to its end.
        ended: whether it did. If not, a length cut it.
    """

    ids: Sequence[int]
    ended: bool


@dataclass
class _Sequence:
    """Tokens, and which of them the target produced."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    mask: "array[int]" = field(default_factory=lambda: array("B"))

    def begins(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt repeats it and goes on."""
        return array("i", prompt[: len(self.ids)]) == self.ids

    def add(self, ids: Sequence[int], *, produced: bool) -> None:
        self.ids.extend(ids)
        self.mask.extend([int(produced)] * len(ids))


class Dialogue:
    """One conversation, as far as the target has answered.

    A cut answer ends it: what follows would reply to half a sentence. So do a call, which nobody carries out, what never came to an
    answer behind its reasoning, and a question that leaves no room.

    Args:
        conversation: what others say, in order; the target answers each turn of the user.
        renderer: of the target; its longest length is that of a sequence.
        max_tokens: of one answer.

    Attributes:
        digest: of the conversation.
        prompt: the tokens from which the target goes on; None when it has no more to answer.
        answers: that it gave.
        texts: of them, as a server would hand them out.
    """

    def __init__(self, conversation: Conversation, renderer: Renderer, max_tokens: int) -> None:
        self.digest = conversation.digest
        self.prompt: list[int] | None = None
        self.answers: list[Answer] = []
        self.texts: list[str] = []
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._said: list[Message] = []
        self._tools = conversation.tools
        self._to_say = deque(conversation.messages)
        self._sequences: list[_Sequence] = []
        self._obstacle = NO_QUESTION
        self._ask()

    @property
    def cut(self) -> bool:
        """Whether it was answered up to a question that leaves no room for an answer."""
        return bool(self.answers) and self._obstacle == QUESTION_TOO_LONG

    @property
    def room(self) -> int:
        """Tokens that the next answer may have."""
        return min(self._max_tokens, self._renderer.max_length - len(self.prompt or ()))

    def seed(self, base: int) -> int:
        """For the next answer's sampling: another one for each answer, the same one each time."""
        text = f"{base}:{self.digest.hex()}:{len(self.answers)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def take(self, answer: Answer) -> None:
        """The target's answer to ``prompt``.

        Raises:
            ValueError: nothing was asked, or the answer is longer than there is room.
        """
        if self.prompt is None or len(answer.ids) > self.room:
            raise ValueError("an answer that was not asked for, or is too long")
        current = self._sequences[-1] if self._sequences else None
        if current is None or not current.begins(self.prompt):
            current = _Sequence()
            self._sequences.append(current)
        current.add(self.prompt[len(current.ids) :], produced=False)
        current.add(answer.ids, produced=True)
        self.answers.append(answer)
        self.texts.append(self._renderer.text(answer.ids[:-1] if answer.ended else answer.ids, self.prompt))
        self._said.append(self._message(self.texts[-1]))
        unanswered = self._renderer.channels and FINAL_CHANNEL not in self.texts[-1]
        if not answer.ended or unanswered or self._calls(self.texts[-1]):
            self._to_say.clear()
        self._ask()

    def sequences(self) -> list[Rendered]:
        """What can be learned from.

        Raises:
            UnusableError: there is no answer.
        """
        if not self._sequences:
            raise UnusableError(self._obstacle)
        return [Rendered(one.ids, one.mask) for one in self._sequences]

    def _ask(self) -> None:
        """Go on to the next question, or to the end."""
        self.prompt = None
        while self._to_say and self.prompt is None:
            message = self._to_say.popleft()
            self._said.append(message)
            if message["role"] == "user":
                self.prompt = self._rendered()
        if self.prompt is None:
            self._to_say.clear()

    def _rendered(self) -> list[int] | None:
        """What was said so far as tokens; None, and nothing more to say, where that cannot be answered."""
        try:
            prompt = self._renderer.prompt(self._said, self._tools)
        except UnusableError as why:
            self._obstacle = str(why)
        else:
            if len(prompt) < self._renderer.max_length:
                return prompt
            self._obstacle = QUESTION_TOO_LONG
        self._to_say.clear()
        return None

    def _calls(self, text: str) -> bool:
        """Whether an answer may be a call, whatever the target's way to call: it names a tool."""
        return any(name in text for name in names(self._tools))

    def _message(self, text: str) -> Message:
        if self._renderer.channels:
            return {"role": "assistant", "content": text.rpartition(FINAL_CHANNEL)[2]}
        reasoning, mark, content = text.partition(REASONING_ENDS)
        if not mark or not self._renderer.takes_reasoning:
            return {"role": "assistant", "content": text}
        return {
            "role": "assistant",
            "content": content.strip(),
            "reasoning_content": reasoning.strip().removeprefix(REASONING_BEGINS).strip(),
        }
