"""A chat template that no draft can be trained by is refused before a GPU is taken, and no other one."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode
from eagle3_api.spec import Regenerate
from eagle3_draft.data.conversations import Conversation
from eagle3_draft.data.texts import TextRenderer
from eagle3_draft.inspect.rendering import TRIED, TokenizerByFiles
from unit.data.test_rendering import CHATML, CHATML_MARKED, MISTRAL, SHAPES, TURNS, bytelevel
from unit.data.test_tool_calls import BYTES, EXCHANGES, QWEN25, TOOLS, WAYS, conversation
from unit.inspect.test_inspect import World

OF_ITS_OWN = (
    "{{ bos_token }}{% for m in messages %}{% if loop.index > 9 %}{% break %}{% endif %}{{ m.role }}: {{ m.content }}"
    "{{ eos_token }}{% endfor %}{{ tools | tojson }}{{ strftime_now('%Y')[:1] }}{% if add_generation_prompt %}assistant: {% endif %}"
)
ANSWER = {"role": "assistant", "content": "yes"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def write(world: World, conversations: Iterable[list[dict[str, str]]], *, tools_in: int = 0) -> None:
    """So many of them, the first, offer tools."""
    lines = [
        {"messages": messages, **({"tools": TOOLS} if number < tools_in else {})}
        for number, messages in enumerate(conversations)
    ]
    world.data.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "template", [*(shape.template for shape in SHAPES.values()), OF_ITS_OWN], ids=[*SHAPES, "of its own"]
)
def test_a_tokenizers_files_render_as_transformers_do(tmp_path: Path, template: str) -> None:
    tokenizer = bytelevel()
    tokenizer.save_pretrained(tmp_path)
    told = TextRenderer(TokenizerByFiles(tmp_path), template).answers(Conversation(TURNS, b""))
    assert told == TextRenderer(tokenizer, template).answers(Conversation(TURNS, b""))


@pytest.mark.parametrize("name", WAYS)
def test_a_tokenizers_files_render_calls_as_transformers_do(tmp_path: Path, name: str) -> None:
    BYTES.save_pretrained(tmp_path)
    calling = Conversation(conversation(EXCHANGES), b"", TOOLS)
    told = TextRenderer(TokenizerByFiles(tmp_path), WAYS[name].template).answers(calling)
    assert told == TextRenderer(BYTES, WAYS[name].template).answers(calling)


@pytest.mark.parametrize("in_files", [True, False])
def test_a_template_of_the_tokenizers_own_for_tools_is_found_in_its_files(tmp_path: Path, in_files: bool) -> None:
    tokenizer = bytelevel()
    tokenizer.chat_template = {"default": CHATML, "tool_use": QWEN25}
    tokenizer.save_pretrained(tmp_path, save_jinja_files=in_files)
    assert (tmp_path / "chat_template.jinja").exists() == in_files
    calling = Conversation(conversation(EXCHANGES), b"", TOOLS)
    assert TextRenderer(TokenizerByFiles(tmp_path), CHATML).answers(calling) == TextRenderer(tokenizer, CHATML).answers(
        calling
    )


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if %}", "the chat template is not valid Jinja: Expected an expression"),
        ("{{ raise_exception('in pairs only') }}", '64 refused by the chat template ("in pairs only")'),
        (
            "{{ messages[0].content + 1 }}",
            '64 refused by the chat template ("can only concatenate str (not "int") to str")',
        ),
        (
            "{{ messages | length }}",
            "64 answers rewritten by the chat template. Name a chat template in data.chatTemplate",
        ),
        (CHATML.replace("m.content", "'?'"), "64 answers rewritten by the chat template"),
    ],
    ids=["no Jinja", "refuses", "stumbles", "renders nothing", "hides the words"],
)
def test_a_template_that_shows_no_answer_is_refused_in_its_own_words(world: World, template: str, words: str) -> None:
    (world.target / "chat_template.jinja").write_text(template)
    said = world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, words)
    assert said.startswith(("target.model: none of the first 64 conversations", "the chat template"))


def test_the_objects_own_template_is_the_one_that_is_named(world: World, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("?")
    data = DataConfig(
        conversations=str(world.data), max_length=64, holdout=0.1, chat_template=str(tmp_path / "own.jinja")
    )
    world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, "data.chatTemplate: none of the first", data=data)


@pytest.mark.parametrize("marked", [False, True])
def test_conversations_that_a_template_refuses_beside_others_are_told_and_left_out(world: World, marked: bool) -> None:
    template = (
        MISTRAL
        if not marked
        else "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML_MARKED
    )
    (world.target / "chat_template.jinja").write_text(template)
    ruled: list[list[dict[str, str]]] = [[{"role": "system", "content": "Be brief."}] * (i % 2) for i in range(100)]
    write(world, ([*rule, {"role": "user", "content": str(i)}, ANSWER] for i, rule in enumerate(ruled)))
    (warning,) = world.inspect().warnings
    said = "no" if marked else "no system turn"
    assert re.fullmatch(
        rf"of the first {TRIED} conversations (\d+) are left out: \1 refused by the chat template \(\"{said}\"\)",
        warning,
    )


def test_reasoning_that_the_template_leaves_out_is_told_before_a_gpu_is_taken(world: World) -> None:
    thought = {**ANSWER, "reasoning": "hm"}
    write(world, ([{"role": "user", "content": str(i)}, thought if i % 2 else ANSWER] for i in range(100)))
    (warning,) = world.inspect().warnings
    assert re.fullmatch(
        rf"of the first {TRIED} conversations (\d+) are left out: \1 reasoning left out by the chat template", warning
    )
    write(world, ([{"role": "user", "content": str(i)}, thought] for i in range(100)))
    words = "64 reasoning left out by the chat template. Name a chat template"
    world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, words, "data.regenerate")


def test_conversations_without_any_answer_are_no_fault_of_the_template(world: World) -> None:
    write(world, ([{"role": "user", "content": str(i)}] for i in range(100)))
    words = (
        "data.conversations: none of the first 64 conversations could be learned from: 64 no answer of the assistant"
    )
    world.refused(ExitCode.BAD_INPUT, Reason.NO_USABLE_DATA, words, "data.regenerate")


@pytest.mark.parametrize(
    "changes", [{"data": {"regenerate": Regenerate()}}, {"checkpoint": True}], ids=["answers", "adopts"]
)
def test_where_nothing_is_learned_from_the_datas_answers_a_template_need_not_show_them(
    world: World, changes: dict[str, Any]
) -> None:
    (world.target / "chat_template.jinja").write_text("{{ messages | length }}")
    data = DataConfig(conversations=str(world.data), max_length=64, holdout=0.1, **changes.get("data", {}))
    adopted = {"checkpoint": str(world.checkpoint)} if "checkpoint" in changes else {}
    assert world.inspect(data=data, **adopted).warnings == []
    (world.target / "chat_template.jinja").write_text("{{ raise_exception('nobody may ask') }}")
    world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, "nobody may ask", data=data, **adopted)


@pytest.mark.parametrize("tools_in", [50, 100], ids=["half", "all"])
def test_a_template_that_says_nothing_of_tools_is_no_fault_where_they_are_offered(world: World, tools_in: int) -> None:
    write(world, ([{"role": "user", "content": str(i)}, ANSWER] for i in range(100)), tools_in=tools_in)
    (warning,) = world.inspect().warnings
    assert warning.endswith(" tools left out by the chat template")


def test_a_template_is_refused_for_what_has_no_tools_also_where_they_are_offered_in_others(world: World) -> None:
    (world.target / "chat_template.jinja").write_text("{{ messages | length }}")
    write(world, ([{"role": "user", "content": str(i)}, ANSWER] for i in range(100)), tools_in=50)
    world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, "tools left out", "answers rewritten")


def test_what_code_of_the_targets_own_may_mend_is_told_and_not_refused(world: World) -> None:
    (world.target / "chat_template.jinja").write_text("{{ prepared + messages[0].content }}")
    (world.target / "tokenization_own.py").write_text("")
    (warning,) = world.inspect().warnings
    assert "64 refused by the chat template (\"'prepared' is undefined\")" in warning


def test_a_token_that_only_a_tokenizers_class_knows_is_no_fault_of_the_template(world: World) -> None:
    (world.target / "chat_template.jinja").write_text(CHATML.replace("m.content", "m.content + eos_token"))
    assert world.inspect().warnings == []
