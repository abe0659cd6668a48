"""Where in a rendered conversation the assistant's words are: its answers and calls, and the end of a turn after each.

Neither the generation prompt before an answer is the assistant's, nor what the template writes after its turn, nor a tool's result.
Both bounds are places in the text that the template itself shows, for an answer's own words may occur anywhere in it:

- A template that marks the answers (``{% generation %}``) is believed.
- Every other one is rendered once more with a word in the answer's place that occurs nowhere else. What it writes before
  and after that word is what it writes before and after the answer, whatever that says. A turn that calls ends with the last
  special token of those that the template writes after the arguments of the last call; what is around them is the target's own
  way to call.

A conversation in which the two cannot be told apart is not used, nor one with calls that the template leaves out, or with the
reasoning before its last answer. That of former answers most templates leave out in a server, too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from eagle3_draft.data.conversations import REASONING, REASONING_BEGINS, REASONING_ENDS, Message, UnusableError
from eagle3_draft.data.template import BEGINS, ENDS, STAND_IN, Template
from eagle3_draft.data.tools import Tool

NO_ANSWER = "no answer of the assistant"
HISTORY_REWRITTEN = "answers rewritten by the chat template"
CALLS_LEFT_OUT = "tool calls left out by the chat template"
REASONING_LEFT_OUT = "reasoning left out by the chat template"

#: A piece of a text: the characters from the first number up to the second.
Span = tuple[int, int]


def talk(template: Template, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> "Talk":
    """A conversation as text.

    Args:
        template: of the target.
        messages: of the conversation.
        tools: that may be called, as SGLang hands them to the template.

    Raises:
        UnusableError: it has no answer, or the template refuses it.
    """
    if not any(message["role"] == "assistant" for message in messages):
        raise UnusableError(NO_ANSWER)
    template.require_tools(tools)
    # Of former answers a server hands no template their reasoning but by its own word
    messages = [*messages[:-1], _renamed(messages[-1], template.reasoning)]
    return Talk(template, messages, tools, template.text(messages, tools))


@dataclass(frozen=True)
class Talk:
    """One conversation, and what a template makes of it and of such as differ from it.

    Attributes:
        template: of the target.
        messages: of the conversation.
        tools: that may be called.
        text: that the template makes of it.
    """

    template: Template
    messages: Sequence[Message]
    tools: Sequence[Tool]
    text: str

    def answers(self, until: int | None = None) -> list[Span]:
        """Where in the text is what the model has to produce.

        Args:
            until: a character behind which nobody asks: what begins there is left out, and not looked at. Each answer that is looked at
                takes three renderings, so that the ends of conversations with hundreds of them would take most of the time.

        Raises:
            UnusableError: there is nothing, or it cannot be told.
        """
        spans, looked_at = self._marked() if self.template.marks else self._compared(until)
        if not _named(looked_at, "".join(self.text[start:stop] for start, stop in spans)):
            raise UnusableError(CALLS_LEFT_OUT)
        if not self._shows_reasoning:
            raise UnusableError(REASONING_LEFT_OUT)
        return spans

    def _rendered(self, messages: Sequence[Message], *, answer_follows: bool = False, marked: bool = False) -> str:
        return self.template.text(messages, self.tools, answer_follows=answer_follows, marked=marked)

    @property
    def _shows_reasoning(self) -> bool:
        """Whether the reasoning of an answer that nothing follows stands in the text, if it has any."""
        *before, last = self.messages
        other = _reasoned_otherwise(last, self.template.reasoning)
        return other == last or STAND_IN in self._rendered([*before, other])

    def _marked(self) -> tuple[list[Span], Sequence[Message]]:
        """By the template's own marks, and the end-of-turn token after them where the template leaves it outside."""
        pieces = self._marked_pieces(self.messages)
        if "".join(pieces) != self.text:
            raise UnusableError(HISTORY_REWRITTEN)
        calls = _calls(self.messages)
        stood_in = self._marked_pieces([*map(_stood_in, self.messages)]) if calls else []
        if sum(piece.count(STAND_IN) for piece in stood_in[1::2]) != calls:
            raise UnusableError(CALLS_LEFT_OUT)
        bounds = [*accumulate(map(len, pieces))]
        spans = zip(bounds[::2], bounds[1::2], strict=False)  # the last one ends the text
        if self.template.marks_end:
            return [*spans], self.messages
        following = [(start, stop, self.template.special.match(self.text, stop)) for start, stop in spans]
        return [(start, end.end() if end else stop) for start, stop, end in following], self.messages

    def _compared(self, until: int | None) -> tuple[list[Span], Sequence[Message]]:
        """By what the template writes around another answer in the same place; and the messages up to the last that was looked at."""
        found: list[Span] = []
        for position, message in enumerate(self.messages):
            if message["role"] != "assistant":
                continue
            if found and until is not None and found[-1][1] > until:
                return found, self.messages[:position]
            found.append(self._answer(position, self.text))
        return found, self.messages

    def _marked_pieces(self, messages: Sequence[Message]) -> list[str]:
        """A text in pieces: what is not the assistant's and what is, by turns."""
        pieces = re.split(f"({BEGINS}|{ENDS})", self._rendered(messages, marked=True))
        if any(mark != (ENDS if number % 2 else BEGINS) for number, mark in enumerate(pieces[1::2])):
            raise UnusableError(HISTORY_REWRITTEN)
        return pieces[::2]

    def _answer(self, position: int, text: str) -> Span:
        """One answer, with what ends its turn."""
        prompt = self._rendered(self.messages[:position], answer_follows=True)
        if "tool_calls" in self.messages[position]:
            closing, after = self._after_calls(position)
            # Where words stand beside the calls, this is also what finds out that the template drops them
            worded = self.messages[position]["content"] or not text.startswith(prompt)
            before = self._around(self._worded(position))[0] if worded else prompt
        else:
            before, closing, after = self._around_words(position, prompt)
        # The prompt holds less than what is before the words (their reasoning), or more than history does (an opened <think>)
        start = len(prompt) if text.startswith(prompt) else len(before)
        stop = len(text) - len(after)
        if not (text.startswith((prompt, before)) and text.endswith(closing + after) and start <= stop - len(closing)):
            raise UnusableError(HISTORY_REWRITTEN)
        return start, stop

    def _around_words(self, position: int, prompt: str) -> tuple[str, str, str]:
        """What the template writes before an answer's words, what ends its turn, and what is after that."""
        other = self._worded(position)
        before, after = self._around(other)
        ending = after if position + 1 == len(other) else self._around(other[: position + 1])[1]
        if after.startswith(ending):
            end = self.template.special.search(ending)
            stop = end.end() if end else len(ending)
            return before, after[:stop], after[stop:]
        # The last turn ends otherwise than those before it. Theirs is a token that does not begin another turn
        end = self.template.special.match(after)
        if end is None or end.group() in prompt.removeprefix(self._rendered(self.messages[:position])):
            raise UnusableError(HISTORY_REWRITTEN)
        return before, end.group(), after[end.end() :]

    def _after_calls(self, position: int) -> tuple[str, str]:
        """What ends a turn that calls, and what is after it."""
        other = [*self.messages]
        other[position] = _stood_in(self.messages[position])
        pieces = self._rendered(other).split(STAND_IN)
        if len(pieces) != 1 + _calls([other[position]]):
            raise UnusableError(CALLS_LEFT_OUT)
        after = pieces[-1]
        ending = after if position + 1 == len(other) else self._rendered(other[: position + 1]).split(STAND_IN)[-1]
        if not after.startswith(ending):
            raise UnusableError(HISTORY_REWRITTEN)
        special = [*self.template.special.finditer(ending)]
        return (special[-1].group(), after[special[-1].end() :]) if special else ("", after[len(ending) :])

    def _worded(self, position: int) -> list[Message]:
        """With a word in an answer's place."""
        other = [*self.messages]
        other[position] = {**self.messages[position], "content": STAND_IN}
        return other

    def _around(self, messages: Sequence[Message]) -> tuple[str, str]:
        """What the template writes before and after the word in an answer's place."""
        pieces = self._rendered(messages).split(STAND_IN)
        if len(pieces) != 2:
            raise UnusableError(HISTORY_REWRITTEN)
        return pieces[0], pieces[1]


def _renamed(message: Message, reasoning: str) -> Message:
    """With the reasoning where the template asks for it."""
    return {reasoning if name == REASONING[0] else name: value for name, value in message.items()}


def _reasoned_otherwise(message: Message, field: str) -> Message:
    """With a word in place of the reasoning, be it in a field of its own or in the content."""
    if field in message:
        return {**message, field: STAND_IN}
    reasoning, mark, rest = message["content"].partition(REASONING_ENDS)
    if not mark or not reasoning.strip().removeprefix(REASONING_BEGINS).strip():
        return message
    return {**message, "content": f"{REASONING_BEGINS}{STAND_IN}{mark}{rest}"}


def _stood_in(message: Message) -> Message:
    """With a word in place of what each call says."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": {"of": STAND_IN}}} for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _calls(messages: Sequence[Message]) -> int:
    return sum(len(message.get("tool_calls", ())) for message in messages)


def _named(messages: Sequence[Message], said: str) -> bool:
    """Whether the calls' names are said, in their order."""
    at = 0
    for name in (call["function"]["name"] for message in messages for call in message.get("tool_calls", ())):
        found = said.find(name, at)
        if found < 0:
            return False
        at = found + len(name)
    return True
