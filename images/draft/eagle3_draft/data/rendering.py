"""Rendering conversations to tokens, and marking the assistant's among them.

A token is the assistant's if the model would have to produce it: the answer and the end-of-turn token after it, but
neither the generation prompt before it nor what the template writes after it. A template that marks the answers itself
(``{% generation %}``) is believed; for every other one the answer is what is added to the rendering of the turns before
it, which is exact to the character. A conversation in which the two cannot be told apart is dropped and counted.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
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

_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")


#: Of a text, and the characters that each covers where the tokenizer can tell.
_Tokens = tuple[list[int], list[tuple[int, int]] | None]


class UnusableError(Exception):
    """A conversation that cannot be learned from; its text is why."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as tokens.

    Attributes:
        input_ids: signed 32-bit, one a token.
        loss_mask: unsigned 8-bit, 1 where the token is the assistant's.
    """

    input_ids: "array[int]"
    loss_mask: "array[int]"


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
        self._special = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        # Only a fast tokenizer knows which characters a token came from
        self._has_offsets = bool(tokenizer.is_fast)
        self._marks_answers = self._has_offsets and _GENERATION.search(template) is not None
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
        """As ``conversation``, each. The tokenizer takes them together, on as many cores as there are, where it compares."""
        texts: list[str | UnusableError] = [self._usable_text(messages) for messages in every]
        whole = [text for text in texts if isinstance(text, str)]
        tokens = iter(self._encode_with_offsets(whole) if not self._marks_answers else [None] * len(whole))
        return [
            text if isinstance(text, UnusableError) else self._rendered(messages, text, next(tokens))
            for messages, text in zip(every, texts, strict=True)
        ]

    def _usable_text(self, messages: Sequence[Message]) -> str | UnusableError:
        if not any(message["role"] == "assistant" for message in messages):
            return UnusableError(NO_ANSWER)
        try:
            return "" if self._marks_answers else self._text(messages)
        except TemplateError:
            return UnusableError(TEMPLATE_REFUSED)

    def _rendered(self, messages: Sequence[Message], text: str, tokens: _Tokens | None) -> Rendered | UnusableError:
        try:
            return self._cut(*(self._marked(messages) if tokens is None else self._compared(messages, text, *tokens)))
        except TemplateError:
            return UnusableError(TEMPLATE_REFUSED)
        except UnusableError as why:
            return why

    def _cut(self, ids: list[int], mask: list[int]) -> Rendered:
        if 1 not in mask:
            raise UnusableError(NO_ANSWER)
        mask = mask[: self.max_length]
        if 1 not in mask:
            raise UnusableError(ANSWER_CUT)
        return Rendered(array("i", ids[: self.max_length]), array("B", mask))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Messages as a request to the server is rendered, up to where the assistant begins.

        Raises:
            UnusableError: the template refuses them.
        """
        try:
            return self._encode(self._text(messages, answer_follows=True))
        except TemplateError:
            raise UnusableError(TEMPLATE_REFUSED) from None

    def _marked(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """By the template's own marks. The end-of-turn token is added where the template left it outside."""
        encoded = self._tokenizer.apply_chat_template(
            list(messages), chat_template=self._template, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = list(encoded["input_ids"]), list(encoded["assistant_masks"])
        for index in range(len(ids) - 1, 0, -1):
            if mask[index - 1] and ids[index - 1] not in self._special and ids[index] in self._special:
                mask[index] = 1
        return ids, mask

    def _compared(
        self, messages: Sequence[Message], whole: str, ids: list[int], offsets: list[tuple[int, int]] | None
    ) -> tuple[list[int], list[int]]:
        """By comparing the whole rendering with the renderings up to and after each answer."""
        mask = [0] * len(ids)
        for position, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            start, answered, end = self._answer(whole, messages, position)
            first = self._index(whole, ids, offsets, start)
            after = self._index(whole, ids, offsets, answered)
            last = len(ids) if end is None else self._index(whole, ids, offsets, end)
            # Of what follows the answer, the model produces only the end-of-turn token
            stop = next((index + 1 for index in range(after, last) if ids[index] in self._special), None)
            if stop is None and end is None:
                raise UnusableError(HISTORY_REWRITTEN)
            stop = last if stop is None else stop
            mask[first:stop] = [1] * (stop - first)
        return ids, mask

    def _answer(self, whole: str, messages: Sequence[Message], position: int) -> tuple[int, int, int | None]:
        """Where an answer begins and ends in the whole rendering, and where its turn does, in characters.

        The last is None where an answer is rendered otherwise once it is history (without its <think> part).
        """
        content = messages[position]["content"].strip()
        prompt = self._text(messages[:position], answer_follows=True)
        if whole.startswith(prompt):
            start = len(prompt)
        else:
            # The generation prompt holds more than history does (an opened <think>)
            history = self._text(messages[:position])
            start = whole.find(content, len(history)) if whole.startswith(history) else -1
        turn = self._text(messages[: position + 1])
        if whole.startswith(turn):
            end, at = len(turn), whole.rfind(content, start, len(turn)) if content else start
        else:
            end, at = None, whole.find(content, start)
        if start < 0 or at < 0:
            raise UnusableError(HISTORY_REWRITTEN)
        return start, at + len(content), end

    def _index(self, whole: str, ids: list[int], offsets: list[tuple[int, int]] | None, character: int) -> int:
        """The first token that lies at a character or later."""
        if offsets is not None:
            # A token of spaces may be given no width, at its end: it belongs to what is before
            later = (index for index, (start, end) in enumerate(offsets) if start >= character and end > character)
            return next(later, len(ids))
        before = self._encode(whole[:character])
        if ids[: len(before)] != before:
            raise UnusableError(TOKENS_JOINED)
        return len(before)

    def _text(self, messages: Sequence[Message], *, answer_follows: bool = False) -> str:
        if not messages and not answer_follows:
            return ""
        text: str = self._tokenizer.apply_chat_template(
            list(messages), chat_template=self._template, tokenize=False, add_generation_prompt=answer_follows
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
