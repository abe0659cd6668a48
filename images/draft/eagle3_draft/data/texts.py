"""Conversations as texts: what of their rendering needs a tokenizer's chat templates, and none of its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eagle3_draft.data import call_ids, spans
from eagle3_draft.data.conversations import Conversation, Message, UnusableError
from eagle3_draft.data.spans import Span, Talk
from eagle3_draft.data.template import CALLS_REFUSED, Template
from eagle3_draft.data.tools import Tool, served


class TextRenderer:
    """Renders conversations to text with one chat template.

    Args:
        tokenizer: of transformers, or what stands for one (``TokenizerByFiles``).
        jinja: the template's text.

    Attributes:
        day: that it always is, where a template that is applied says what day it is, be it the one for tools alone.

    Raises:
        StageError: the template is no Jinja (TemplateMissing).
    """

    def __init__(self, tokenizer: Any, jinja: str) -> None:
        self._template = Template(tokenizer, jinja)
        self._for_tools = _for_tools(tokenizer, jinja) or self._template
        self.day = self._template.day or self._for_tools.day

    def answers(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """The text of a conversation, and where in it is what the model has to produce.

        Raises:
            UnusableError: there is nothing, or it cannot be told.
        """
        talk = self.talk(conversation)
        return talk.text, talk.answers()

    def talk(self, conversation: Conversation) -> Talk:
        """The same, of which the answers are not looked for yet.

        Raises:
            UnusableError: it has none, or the template refuses it.
        """
        template, tools = self._served(conversation.tools)
        return spans.talk(template, self.named(conversation).messages, tools)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Messages as a request to the server is rendered, up to where the assistant begins.

        Raises:
            UnusableError: the template refuses them, or says nothing of the tools.
        """
        template, offered = self._served(tools)
        template.require_tools(offered)
        return template.text(messages, offered, answer_follows=True)

    def day_said(self, tools: Sequence[Tool]) -> str | None:
        """That it is by the template for a request with these tools, if that says one."""
        return self._applied_with(tools).day

    def named(self, conversation: Conversation) -> Conversation:
        """A conversation whose calls have ids by which the target would know them, where its template goes by ids."""
        if not any("tool_calls" in message for message in conversation.messages):
            return conversation
        template = self._applied_with(conversation.tools)
        if not template.names_calls_by_id:
            return conversation
        return replace(conversation, messages=call_ids.named(conversation.messages))

    def _served(self, tools: Sequence[Tool]) -> tuple[Template, list[Tool]]:
        """The template for a request with these tools, and what it is given of them."""
        try:
            return self._applied_with(tools), served(tools)
        except ValueError:
            raise UnusableError(CALLS_REFUSED) from None

    def _applied_with(self, tools: Sequence[Tool]) -> Template:
        return self._for_tools if tools else self._template


def _for_tools(tokenizer: Any, jinja: str) -> Template | None:
    """The template that the tokenizer takes for requests with tools, where it has one beside its own."""
    named = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {}
    return Template(tokenizer, named["tool_use"]) if named.get("default") == jinja and "tool_use" in named else None
