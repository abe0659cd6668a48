"""Rendering conversations to tokens, and marking the assistant's among them.

A token is the assistant's if the model would have to produce it: the answer and the end-of-turn token after it, but
neither the generation prompt before it nor what the template writes after it. Both bounds are places in the rendered text
that the template itself shows, for an answer's own words may occur anywhere in it:

- A template that marks the answers (``{% generation %}``) is believed.
- Every other one is rendered once more with a word in the answer's place that occurs nowhere else. What it writes before
  and after that word is what it writes before and after the answer, whatever that says.

A conversation in which the two cannot be told apart is dropped and counted.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from transformers import AutoTokenizer

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.conversations import Message
from eagle3_draft.stage import StageError

NO_ANSWER = "no answer of the assistant"
ANSWER_CUT = "answers begin after maxLength"
TEMPLATE_REFUSED = "refused by the chat template"
HISTORY_REWRITTEN = "answers rewritten by the chat template"
TOKENS_JOINED = "answers joined to the prompt by the tokenizer"

#: Tokens of the prompt that an answer is decoded after, as many as SGLang takes.
_CONTEXT = 5

#: Stands in an answer's place, to see what a template writes around it. One that changes letters changes these.
_STAND_IN = "\U000f0000Answer\U000f0000"

#: Stand where a template marks an answer's beginning and its end.
_BEGINS, _ENDS = "\U000f0001", "\U000f0002"

_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")

#: A piece of a text: the characters from the first number up to the second.
_Span = tuple[int, int]

#: Of a text, and the characters that each covers where the tokenizer can tell.
_Tokens = tuple[list[int], list[_Span] | None]


class UnusableError(Exception):
    """A conversation that cannot be learned from; its text is why."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as tokens.

    Attributes:
        input_ids: signed 32-bit, one a token.
        loss_mask: unsigned 8-bit, 1 where the token is the assistant's.
        lost: tokens beyond the longest length, which are not among them.
    """

    input_ids: "array[int]"
    loss_mask: "array[int]"
    lost: int = 0


class Renderer:
    """Renders conversations with one tokenizer and one chat template.

    Args:
        tokenizer: of transformers.
        template: Jinja text.
        max_length: tokens after which a conversation is cut.

    Attributes:
        max_length: as given.
        takes_reasoning: the template asks for an answer's reasoning in a field of its own.

    Raises:
        StageError: the template is no Jinja (TemplateMissing).
    """

    def __init__(self, tokenizer: Any, template: str, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.max_length = max_length
        self.takes_reasoning = "reasoning_content" in template
        special = {*tokenizer.all_special_tokens} | {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        # Only a fast tokenizer knows which characters a token came from
        self._has_offsets = bool(tokenizer.is_fast)
        self._marked_template = _with_marks(template) if _GENERATION.search(template) else None
        try:
            self._text([{"role": "user", "content": "?"}])
        except TemplateSyntaxError as error:
            raise StageError(
                ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, f"the chat template is no Jinja: {error}"
            ) from None
        except TemplateError:
            pass  # it may refuse this conversation; that is judged one by one

    @classmethod
    def load(cls, target: Path, template: str, max_length: int, *, trust_remote_code: bool = False) -> "Renderer":
        """A renderer with the tokenizer of a target.

        Raises:
            StageError: the tokenizer cannot be loaded (TargetUnreadable).
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                target, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.TARGET_UNREADABLE,
                f"target.model: the tokenizer in {target} cannot be loaded: {error}",
            ) from error
        return cls(tokenizer, template, max_length)

    @property
    def end_token(self) -> int | None:
        """The tokenizer's own end of a text."""
        token: int | None = self._tokenizer.eos_token_id
        return token

    def text(self, ids: Sequence[int], prompt: Sequence[int]) -> str:
        """Tokens as a server hands them out: without special ones, and as they read after the prompt.

        Alone they may read otherwise: many tokenizers leave out the space before the first word.

        Args:
            ids: of an answer.
            prompt: to which it is one.
        """
        before = list(prompt[-_CONTEXT:])
        return self._decode([*before, *ids])[len(self._decode(before)) :]

    def conversation(self, messages: Sequence[Message]) -> Rendered:
        """A conversation as tokens, cut at the longest length.

        Raises:
            UnusableError: it has no token to learn from, or they cannot be told from the others.
        """
        (found,) = self.conversations([messages])
        if isinstance(found, UnusableError):
            raise found
        return found

    def conversations(self, every: Sequence[Sequence[Message]]) -> "list[Rendered | UnusableError]":
        """As ``conversation``, each. The tokenizer takes them together, on as many cores as there are."""
        found = [self._found(messages) for messages in every]
        tokens = iter(self._encode_with_offsets([one[0] for one in found if not isinstance(one, UnusableError)]))
        return [one if isinstance(one, UnusableError) else self._rendered(*one, *next(tokens)) for one in found]

    def _found(self, messages: Sequence[Message]) -> tuple[str, list[_Span]] | UnusableError:
        """A conversation's text, and where in it is what the model has to produce."""
        if not any(message["role"] == "assistant" for message in messages):
            return UnusableError(NO_ANSWER)
        try:
            text = self._text(messages)
            spans = self._compared(messages, text) if self._marked_template is None else self._marked(messages, text)
        except TemplateError:
            return UnusableError(TEMPLATE_REFUSED)
        except UnusableError as why:
            return why
        return text, spans

    def _rendered(
        self, text: str, spans: list[_Span], ids: list[int], offsets: list[_Span] | None
    ) -> Rendered | UnusableError:
        mask = [0] * len(ids)
        try:
            for start, stop in spans:
                first, last = self._index(text, ids, offsets, start), self._index(text, ids, offsets, stop)
                mask[first:last] = [1] * (last - first)
            return self._cut(ids, mask)
        except UnusableError as why:
            return why

    def _cut(self, ids: list[int], mask: list[int]) -> Rendered:
        if 1 not in mask:
            raise UnusableError(NO_ANSWER)
        mask = mask[: self.max_length]
        if 1 not in mask:
            raise UnusableError(ANSWER_CUT)
        return Rendered(array("i", ids[: self.max_length]), array("B", mask), max(0, len(ids) - self.max_length))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Messages as a request to the server is rendered, up to where the assistant begins.

        Raises:
            UnusableError: the template refuses them.
        """
        try:
            return self._encode(self._text(messages, answer_follows=True))
        except TemplateError:
            raise UnusableError(TEMPLATE_REFUSED) from None

    def _marked(self, messages: Sequence[Message], text: str) -> list[_Span]:
        """By the template's own marks, and the end-of-turn token after them where the template leaves it outside."""
        marked = self._text(messages, template=self._marked_template)
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
            template=self._marked_template,
        )
        return self._special.search(shown.partition(_STAND_IN)[2].partition(_ENDS)[0]) is not None

    def _compared(self, messages: Sequence[Message], text: str) -> list[_Span]:
        """By what the template writes around another answer in the same place."""
        return [
            self._answer(messages, position, text)
            for position, message in enumerate(messages)
            if message["role"] == "assistant"
        ]

    def _answer(self, messages: Sequence[Message], position: int, text: str) -> _Span:
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

    def _index(self, whole: str, ids: list[int], offsets: list[_Span] | None, character: int) -> int:
        """The first token that lies at a character or later."""
        if offsets is not None:
            # A token of spaces may be given no width, at its end: it belongs to what is before
            later = (index for index, (start, end) in enumerate(offsets) if start >= character and end > character)
            return next(later, len(ids))
        before = self._encode(whole[:character])
        if ids[: len(before)] != before:
            raise UnusableError(TOKENS_JOINED)
        return len(before)

    def _text(self, messages: Sequence[Message], *, answer_follows: bool = False, template: str | None = None) -> str:
        if not messages and not answer_follows:
            return ""
        text: str = self._tokenizer.apply_chat_template(
            list(messages),
            chat_template=template or self._template,
            tokenize=False,
            add_generation_prompt=answer_follows,
        )
        return text

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _encode_with_offsets(self, texts: list[str]) -> list[_Tokens]:
        """Of each text the tokens, and the characters that each covers where the tokenizer can tell."""
        if not self._has_offsets or not texts:
            return [(self._encode(text), None) for text in texts]
        encoded = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        return list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))


def _with_marks(template: str) -> str:
    """A template that writes a character where it marked something. A block for a block: they strip the same whitespace."""

    def written(tag: re.Match[str]) -> str:
        left, end, right = tag.groups()
        return f"{{%{left} if true %}}{_ENDS if end else _BEGINS}{{% endif {right}%}}"

    return _GENERATION.sub(written, template)
