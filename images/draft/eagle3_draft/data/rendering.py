"""Rendering conversations to tokens, and marking the assistant's among them.

A token is the assistant's if the model would have to produce it: where in the text that is says ``spans``, and which tokens
lie there the tokenizer, if it knows which characters a token came from. Otherwise the text up to there is tokenized alone,
from the bound before it or else from its beginning, and must be what the whole has there. A conversation in which the two cannot be told apart is dropped and counted.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding  # type: ignore[import-untyped]
from transformers import AutoTokenizer

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.conversations import Conversation, Message, UnusableError
from eagle3_draft.data.spans import NO_ANSWER, Talk
from eagle3_draft.data.texts import TextRenderer
from eagle3_draft.data.tools import Tool
from eagle3_draft.errors import StageError

ANSWER_CUT = "answers begin after maxLength"
TOKENS_JOINED = "answers joined to the prompt by the tokenizer"

#: Tokens of the prompt that an answer is decoded after, as many as SGLang takes.
_CONTEXT = 5

#: Of a text, and which characters each covers where the tokenizer can tell.
_Tokens = tuple[list[int], Encoding | None]


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
        day: that it always is, where the template says what day it is, be it the tokenizer's own for tools alone.
        takes_reasoning: the template asks for an answer's reasoning in a field of its own.
        channels: the target reasons in one channel and answers in another, as gpt-oss does; special tokens tell which is which.

    Raises:
        StageError: the template is no Jinja (TemplateMissing).
    """

    def __init__(self, tokenizer: Any, template: str, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._texts = TextRenderer(tokenizer, template)
        self.max_length = max_length
        self.day = self._texts.day
        self.takes_reasoning = "reasoning_content" in template
        self.channels = "<|channel|>" in template
        # Only a fast tokenizer knows which characters a token came from
        self._is_fast = bool(tokenizer.is_fast)

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
        """Tokens as a server hands them out: without special ones, if these are not what tells channels apart, and as they read
        after the prompt.

        Alone they may read otherwise: many tokenizers leave out the space before the first word.

        Args:
            ids: of an answer.
            prompt: to which it is one.
        """
        before = list(prompt[-_CONTEXT:])
        return self._decode([*before, *ids])[len(self._decode(before)) :]

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Rendered:
        """A conversation as tokens, cut at the longest length.

        Raises:
            UnusableError: it has no token to learn from, or they cannot be told from the others.
        """
        (found,) = self.conversations([Conversation([*messages], b"", [*tools])])
        if isinstance(found, UnusableError):
            raise found
        return found

    def conversations(self, every: Iterable[Conversation]) -> "list[Rendered | UnusableError]":
        """As ``conversation``, each as it comes. The tokenizer takes them together, on as many cores as there are."""
        found = [self._talk(one) for one in every]
        tokens = iter(self._encode_all([one.text for one in found if not isinstance(one, UnusableError)]))
        return [one if isinstance(one, UnusableError) else self._rendered(one, *next(tokens)) for one in found]

    def _talk(self, conversation: Conversation) -> Talk | UnusableError:
        try:
            return self._texts.talk(conversation)
        except UnusableError as why:
            return why

    def named(self, conversation: Conversation) -> Conversation:
        """A conversation whose calls have ids by which the target would know them, where its template goes by ids."""
        return self._texts.named(conversation)

    def _rendered(self, talk: Talk, ids: list[int], covered: Encoding | None) -> Rendered | UnusableError:
        mask, known = bytearray(len(ids)), (0, 0)
        until = None
        if covered is not None and len(ids) > self.max_length:
            until, _ = covered.token_to_chars(self.max_length)
        try:
            for start, stop in sorted(talk.answers(until)):
                known = start, self._index(talk.text, ids, covered, start, known)
                first, last = known[1], self._index(talk.text, ids, covered, stop, known)
                mask[first:last] = b"\1" * (last - first)
            return self._cut(ids, mask)
        except UnusableError as why:
            return why

    def _cut(self, ids: list[int], mask: bytearray) -> Rendered:
        if 1 not in mask:
            raise UnusableError(NO_ANSWER)
        mask = mask[: self.max_length]
        if 1 not in mask:
            raise UnusableError(ANSWER_CUT)
        return Rendered(array("i", ids[: self.max_length]), array("B", mask), max(0, len(ids) - self.max_length))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Messages as a request to the server is rendered, up to where the assistant begins.

        Raises:
            UnusableError: the template refuses them, or says nothing of the tools.
        """
        return self._encode(self._texts.prompt(messages, tools))

    def day_said(self, tools: Sequence[Tool]) -> str | None:
        """That it is by a prompt with these tools, in ISO 8601, if its template says one."""
        return self._texts.day_said(tools)

    def _index(
        self, whole: str, ids: list[int], covered: Encoding | None, character: int, known: tuple[int, int]
    ) -> int:
        """The first token that lies at a character or later; ``known`` is a character before, and its token."""
        if covered is not None:
            return first_token(covered, character, len(whole))
        before, begin = known
        # From what is known, or a log of many turns takes minutes; from the beginning where a tokenizer takes that of a text otherwise
        for start, index in ((before, begin), (0, 0)):
            between = self._encode(whole[start:character])
            if ids[index : index + len(between)] == between:
                return index + len(between)
        raise UnusableError(TOKENS_JOINED)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not self.channels)
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _encode_all(self, texts: list[str]) -> list[_Tokens]:
        """Of each text the tokens, and which characters each covers where the tokenizer can tell."""
        if not self._is_fast or not texts:
            return [(self._encode(text), None) for text in texts]
        # Which characters each token covers is not asked for: a list of them all would be most of the work that Python does here
        encoded = self._tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
        )
        return list(zip(encoded["input_ids"], encoded.encodings, strict=True))


def first_token(tokens: Encoding, character: int, characters: int) -> int:
    """The first token that lies at a character or later. One of spaces may have no width, at its end: it belongs to what is before."""

    def lies_there(index: int) -> bool:
        begin, end = tokens.token_to_chars(index)
        return bool(begin >= character and end > character)

    covering = (tokens.char_to_token(at) for at in range(character, characters))
    index: int = next((found for found in covering if found is not None), len(tokens))
    while index < len(tokens) and not lies_there(index):  # it begins before
        index += 1
    while index > 0 and lies_there(index - 1):  # of no width
        index -= 1
    return index
