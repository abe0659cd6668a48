"""A chat template, applied as SGLang's server applies it: what a request's messages and tools become as text."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.conversations import REASONING, Message, UnusableError, uses_tools
from eagle3_draft.data.tokenizer_files import ASKS_FOR_TODAY, TODAY, template_day
from eagle3_draft.data.tools import Tool
from eagle3_draft.errors import StageError

TEMPLATE_REFUSED = "refused by the chat template"
CALLS_REFUSED = "tool calls refused by the chat template"
TOOLS_LEFT_OUT = "tools left out by the chat template"

#: Stands in an answer's place, to see what a template writes around it. One that changes letters changes these.
STAND_IN = "\U000f0000Answer\U000f0000"

#: Stand where a template marks an answer's beginning and its end.
BEGINS, ENDS = "\U000f0001", "\U000f0002"

_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")

#: By which a template refuses a conversation, or code of the target's own that prepares the tools for it. Of what else it says
#: (text to which it adds an object, say) SGLang's server makes a refusal, too.
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)


class Template:
    """A chat template, as one tokenizer applies it.

    Args:
        tokenizer: of transformers.
        jinja: its text.

    Attributes:
        special: matches any of the tokenizer's special tokens in a text.
        reasoning: the field of an answer in which it asks for the reasoning: gpt-oss's asks for ``thinking``.
        marks: whether the template says which words are the assistant's (``{% generation %}``).
        day: that it always is by the template, in ISO 8601; None where it does not say.

    Raises:
        StageError: it is no Jinja (TemplateMissing).
    """

    def __init__(self, tokenizer: Any, jinja: str) -> None:
        self._tokenizer = tokenizer
        self._jinja = jinja
        self.day = template_day(jinja)
        self._given = {ASKS_FOR_TODAY: TODAY.strftime} if self.day else {}
        special = {*tokenizer.all_special_tokens} | {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        self.special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self.reasoning = _reasoning(jinja)
        self.marks = _GENERATION.search(jinja) is not None
        self._marked_jinja = _with_marks(jinja)
        try:
            self._applied([{"role": "user", "content": "?"}])
        except TemplateSyntaxError as error:
            raise StageError(
                ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, f"the chat template is not valid Jinja: {error}"
            ) from None
        except _REFUSALS:
            pass  # it may refuse this conversation; that is judged one by one

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        answer_follows: bool = False,
        marked: bool = False,
    ) -> str:
        """What a conversation becomes.

        Args:
            messages: of it.
            tools: that may be called, as SGLang hands them over (``tools.served``).
            answer_follows: up to where the assistant begins to answer.
            marked: with ``BEGINS`` and ``ENDS`` where the template marks what is the assistant's.

        Raises:
            UnusableError: the template refuses it, by the error that is its cause.
        """
        if not messages and not answer_follows:
            return ""
        jinja = self._marked_jinja if marked else self._jinja
        try:
            return self._applied(messages, tools, answer_follows=answer_follows, jinja=jinja)
        except _REFUSALS as error:
            if not tools:
                raise _refused(messages, tools) from error
        # Some want functions alone
        functions = [tool["function"] for tool in tools]
        try:
            return self._applied(messages, functions, answer_follows=answer_follows, jinja=jinja)
        except _REFUSALS as error:
            raise _refused(messages, tools) from error

    def require_tools(self, tools: Sequence[Tool]) -> None:
        """Refuse tools of which the template says nothing: the target would not know what it may call.

        Raises:
            UnusableError: it says nothing of them.
        """
        if tools and not self._shows_tools:
            raise UnusableError(TOOLS_LEFT_OUT)

    @cached_property
    def marks_end(self) -> bool:
        """Whether the template marks what ends a turn as the assistant's."""
        shown = self.text(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": STAND_IN}],
            marked=True,
        )
        return self.special.search(shown.partition(STAND_IN)[2].partition(ENDS)[0]) is not None

    @cached_property
    def _shows_tools(self) -> bool:
        function = {"name": STAND_IN, "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            return STAND_IN in self.text(
                [{"role": "user", "content": "?"}], [{"type": "function", "function": function}], answer_follows=True
            )
        except UnusableError:
            return True  # it may refuse this one alone; that is judged one by one

    @cached_property
    def names_calls_by_id(self) -> bool:
        """Whether what is called is said by a call's id alone."""
        try:
            return STAND_IN in self.text(_calling("?", STAND_IN)) and STAND_IN not in self.text(_calling(STAND_IN, "?"))
        except UnusableError:
            return False

    def _applied(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        answer_follows: bool = False,
        jinja: str | None = None,
    ) -> str:
        # Transformers look at the first message to tell one conversation from several: of none there are several, of one
        conversation: list[Any] = list(messages) or [[]]
        text: str | list[str] = self._tokenizer.apply_chat_template(
            conversation,
            tools=list(tools) or None,
            chat_template=jinja or self._jinja,
            tokenize=False,
            add_generation_prompt=answer_follows,
            **self._given,
        )
        return text if isinstance(text, str) else text[0]


def _reasoning(jinja: str) -> str:
    return next((name for name in REASONING if re.search(rf"""[.'"]{name}\b""", jinja)), REASONING[0])


def _calling(name: str, identifier: str) -> list[Message]:
    """A question, and a call for an answer."""
    call = {"id": identifier, "index": None, "type": "function", "function": {"name": name, "arguments": {}}}
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


def _with_marks(template: str) -> str:
    """A template that writes a character where it marked something. A block for a block: they strip the same whitespace."""

    def written(tag: re.Match[str]) -> str:
        left, end, right = tag.groups()
        return f"{{%{left} if true %}}{ENDS if end else BEGINS}{{% endif {right}%}}"

    return _GENERATION.sub(written, template)


def _refused(messages: Sequence[Message], tools: Sequence[Tool]) -> UnusableError:
    return UnusableError(CALLS_REFUSED if uses_tools(messages, tools) else TEMPLATE_REFUSED)
