"""The chat template, tried on some of the conversations before a GPU is taken.

It is Extract's own rendering, up to where that needs tokens: the text of a conversation, and where in it the answers are. The
image that inspects holds no transformers, nor what a target's own tokenizer may need; so a tokenizer's files stand for it, and
its template is run as transformers run it.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.conversations import Conversation, Conversations, UnusableError
from eagle3_draft.data.spans import NO_ANSWER, REASONING_LEFT_OUT
from eagle3_draft.data.texts import TextRenderer
from eagle3_draft.data.tokenizer_files import named_tokens, own_templates, special_tokens
from eagle3_draft.errors import StageError

#: Conversations that are tried: their order is that of their digests, so that these are as mixed as all are.
TRIED = 64

#: Of those: from one in so many that cannot be used it is worth telling.
_TOLD_FROM = 10

#: Tokens that a tokenizer's class may have where its files name none: what they are is not known here.
_OF_ITS_CLASS = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")


def try_template(
    renderer: TextRenderer, target: Path, conversations: Conversations, *, field: str, answers: bool
) -> list[str]:
    """Render some conversations, as Extract will render all.

    Only what is sure refuses them: a template that cannot do with tools may do with what has none, and what code of the target's
    own prepares for it is not known here.

    Args:
        renderer: with the chat template.
        target: folder of the target, with its tokenizer's files.
        conversations: of the data, at least one.
        field: of the object, which says where the template is.
        answers: the data's answers are to be learned from; else the target is asked the first question of each.

    Returns:
        That a part of them cannot be used, if so.

    Raises:
        StageError: none of them can be rendered so that it shows which words are the assistant's (TemplateMissing); none of them has an answer (NoUsableData).
    """
    some = conversations[:TRIED]
    obstacles: Counter[str] = Counter()
    words: dict[str, str] = {}
    for conversation in some:
        try:
            _render(renderer, conversation, answers=answers)
        except UnusableError as why:
            obstacles[str(why)] += 1
            if why.__cause__ is not None:
                words[str(why)] = f' ("{why.__cause__}")'
    left_out = ", ".join(f"{count} {why}{words.get(why, '')}" for why, count in obstacles.most_common(3))
    if obstacles.total() == len(some):
        none = f"none of the first {len(some)} conversations could be learned from: {left_out}"
        if {*obstacles} == {NO_ANSWER}:
            where = conversations.reading.field
            advice = "Let the target answer: data.regenerate"
            raise StageError(ExitCode.BAD_INPUT, Reason.NO_USABLE_DATA, f"{where}: {none}. {advice}")
        if not all(one.uses_tools for one in some) and not any(target.glob("tokenization_*.py")):
            advice = "Name a chat template in data.chatTemplate that renders them, and serve with the same one"
            if REASONING_LEFT_OUT in obstacles:
                advice += "; or let the target answer: data.regenerate. For one that does not reason take the reasoning out of the data"
            raise StageError(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, f"{field}: {none}. {advice}")
    if obstacles.total() * _TOLD_FROM < len(some):
        return []
    return [f"of the first {len(some)} conversations {obstacles.total()} are left out: {left_out}"]


def _render(renderer: TextRenderer, conversation: Conversation, *, answers: bool) -> None:
    if answers:
        renderer.answers(conversation)
    else:
        asked = conversation.opening
        renderer.prompt(asked.messages, asked.tools)


class TokenizerByFiles:
    """What a ``TextRenderer`` wants of a tokenizer of transformers, by the tokenizer's files."""

    def __init__(self, target: Path) -> None:
        self._named = named_tokens(target)
        self.chat_template = own_templates(target)
        self.all_special_tokens = sorted({*special_tokens(target).texts.values(), *self._named.values()})
        self.added_tokens_decoder: Mapping[int, Any] = {}

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        *,
        chat_template: str,
        tokenize: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str | list[str]:
        """The text of a conversation, or that of each where there are several; never tokens.

        Raises:
            Exception: whatever the template trips over, as with transformers.
        """
        several = isinstance(conversation[0], list)
        given = {"tools": tools, "documents": None, **_OF_ITS_CLASS, **self._named, **variables}
        template = _compiled(chat_template)
        texts = [template.render(messages=one, **given) for one in (conversation if several else [conversation])]
        return texts if several else texts[0]


class _Generation(Extension):
    """The block with which a template marks answers, which writes what is in it."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@lru_cache(maxsize=4)  # with and without marks, and the same for tools
def _compiled(jinja: str) -> jinja2.Template:
    """As transformers' ``apply_chat_template`` compiles it; what day it is comes with what it is given."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(jinja)


def _tojson(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
