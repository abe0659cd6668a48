"""Where in a rendered conversation the assistant's words are: its answers, and the end of a turn after each.

Neither the generation prompt before an answer is the assistant's, nor what the template writes after its turn. Both bounds are
places in the text that the template itself shows, for an answer's own words may occur anywhere in it:

- A template that marks the answers (``{% generation %}``) is believed.
- Every other one is rendered once more with a word in the answer's place that occurs nowhere else. What it writes before
  and after that word is what it writes before and after the answer, whatever that says.

A conversation in which the two cannot be told apart is not used.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.conversations import Message, UnusableError
from eagle3_draft.stage import StageError

NO_ANSWER = "no answer of the assistant"
TEMPLATE_REFUSED = "refused by the chat template"
HISTORY_REWRITTEN = "answers rewritten by the chat template"

#: Stands in an answer's place, to see what a template writes around it. One that changes letters changes these.
_STAND_IN = "\U000f0000Answer\U000f0000"

#: Stand where a template marks an answer's beginning and its end.
_BEGINS, _ENDS = "\U000f0001", "\U000f0002"

_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")

#: A piece of a text: the characters from the first number up to the second.
Span = tuple[int, int]


class Template:
    """A chat template, as one tokenizer applies it.

    Args:
        tokenizer: of transformers.
        jinja: its text.

    Raises:
        StageError: it is no Jinja (TemplateMissing).
    """

    def __init__(self, tokenizer: Any, jinja: str) -> None:
        self._tokenizer = tokenizer
        self._jinja = jinja
        special = {*tokenizer.all_special_tokens} | {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._marked_jinja = _with_marks(jinja) if _GENERATION.search(jinja) else None
        try:
            self._text([{"role": "user", "content": "?"}])
        except TemplateSyntaxError as error:
            raise StageError(
                ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, f"the chat template is no Jinja: {error}"
            ) from None
        except TemplateError:
            pass  # it may refuse this conversation; that is judged one by one

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text of messages up to where the assistant begins.

        Raises:
            UnusableError: the template refuses them.
        """
        try:
            return self._text(messages, answer_follows=True)
        except TemplateError:
            raise UnusableError(TEMPLATE_REFUSED) from None

    def answers(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text of a conversation, and where in it is what the model has to produce.

        Raises:
            UnusableError: there is nothing, or it cannot be told.
        """
        if not any(message["role"] == "assistant" for message in messages):
            raise UnusableError(NO_ANSWER)
        try:
            text = self._text(messages)
            spans = self._compared(messages, text) if self._marked_jinja is None else self._marked(messages, text)
        except TemplateError:
            raise UnusableError(TEMPLATE_REFUSED) from None
        return text, spans

    def _marked(self, messages: Sequence[Message], text: str) -> list[Span]:
        """By the template's own marks, and the end-of-turn token after them where the template leaves it outside."""
        marked = self._text(messages, jinja=self._marked_jinja)
        pieces = re.split(f"({_BEGINS}|{_ENDS})", marked)
        if "".join(pieces[::2]) != text or any(
            mark != (_ENDS if number % 2 else _BEGINS) for number, mark in enumerate(pieces[1::2])
        ):
            raise UnusableError(HISTORY_REWRITTEN)
        bounds = [*accumulate(len(piece) for piece in pieces[::2])]
        spans = zip(bounds[::2], bounds[1::2], strict=False)  # the last one ends the text
        if self._marks_end:
            return [*spans]
        following = [(start, stop, self._special.match(text, stop)) for start, stop in spans]
        return [(start, end.end() if end else stop) for start, stop, end in following]

    @cached_property
    def _marks_end(self) -> bool:
        """Whether the template marks what ends a turn as the assistant's."""
        shown = self._text(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": _STAND_IN}],
            jinja=self._marked_jinja,
        )
        return self._special.search(shown.partition(_STAND_IN)[2].partition(_ENDS)[0]) is not None

    def _compared(self, messages: Sequence[Message], text: str) -> list[Span]:
        """By what the template writes around another answer in the same place."""
        return [
            self._answer(messages, position, text)
            for position, message in enumerate(messages)
            if message["role"] == "assistant"
        ]

    def _answer(self, messages: Sequence[Message], position: int, text: str) -> Span:
        """One answer, with what ends its turn."""
        other: list[Message] = [*messages]
        other[position] = {**messages[position], "content": _STAND_IN}
        before, after = self._around(other)
        prompt = self._text(messages[:position], answer_follows=True)
        # The prompt holds less than what is before the words (their reasoning), or more than history does (an opened <think>)
        start = len(prompt) if text.startswith(prompt) else len(before)
        stop = len(text) - len(after)
        if not (text.startswith((prompt, before)) and text.endswith(after) and start <= stop):
            raise UnusableError(HISTORY_REWRITTEN)
        _, ending = self._around(other[: position + 1])
        if after.startswith(ending):
            end = self._special.search(ending)
            return start, stop + (end.end() if end else len(ending))
        # The last turn ends otherwise than those before it. Theirs is a token that does not begin another turn
        end = self._special.match(after)
        if end is None or end.group() in prompt.removeprefix(self._text(messages[:position])):
            raise UnusableError(HISTORY_REWRITTEN)
        return start, stop + end.end()

    def _around(self, messages: Sequence[Message]) -> tuple[str, str]:
        """What the template writes before and after the word in an answer's place."""
        pieces = self._text(messages).split(_STAND_IN)
        if len(pieces) != 2:
            raise UnusableError(HISTORY_REWRITTEN)
        return pieces[0], pieces[1]

    def _text(self, messages: Sequence[Message], *, answer_follows: bool = False, jinja: str | None = None) -> str:
        if not messages and not answer_follows:
            return ""
        text: str = self._tokenizer.apply_chat_template(
            list(messages),
            chat_template=jinja or self._jinja,
            tokenize=False,
            add_generation_prompt=answer_follows,
        )
        return text


def _with_marks(template: str) -> str:
    """A template that writes a character where it marked something. A block for a block: they strip the same whitespace."""

    def written(tag: re.Match[str]) -> str:
        left, end, right = tag.groups()
        return f"{{%{left} if true %}}{_ENDS if end else _BEGINS}{{% endif {right}%}}"

    return _GENERATION.sub(written, template)
