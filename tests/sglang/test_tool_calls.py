"""Conversations with tools become the text that a server makes of the same request, and of it what the target says is learned from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environment
import pytest
from transformers import AutoTokenizer

from eagle3_api.artifacts import PROMPTS
from eagle3_api.jobs import DataConfig
from eagle3_draft.probe.server import Rendered, Server
from served.extraction import Extraction, every
from served.server import sglang
from tiny.make import cached

pytestmark = pytest.mark.timeout(600)

#: Shows every field of what it is given: two texts of as many words are of the same fields.
TEMPLATE = (
    "<s>{% for tool in tools or [] %} {{ tool | tojson }}{% endfor %}"
    "{% for m in messages %} <{{ 'assistant' if m.role == 'assistant' else 'user' }}>"
    "{% if m.role == 'tool' %} {{ m | tojson }}{% endif %} {{ m.content }}"
    "{% for call in m.tool_calls %} [ {{ call.function.name }} {{ call | tojson }} ]{% endfor %} <end>{% endfor %}"
    "{% if add_generation_prompt %} <assistant>{% endif %}"
)

#: One as clients write it, and one whose schema a server corrects.
TOOLS = [
    {"type": "function", "function": {"name": "count", "description": "counts on", "parameters": {"type": "object"}}},
    {
        "type": "function",
        "function": {
            "parameters": {"type": "dict", "properties": {"of": {"type": "varchar(9) or so"}}},
            "name": "go",
            "returns": {"type": "integer"},
        },
    },
]


def asked(number: int) -> list[dict[str, Any]]:
    """A question, two calls at once, what they resulted in, an answer, and another question with its answer."""
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps({"of": number})}}
        for name in ("count", "go")
    ]
    return [
        {"role": "user", "content": f"count from {number} in twos"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2 4", "tool_call_id": "call_count", "name": "count"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "6"}, {"type": "text", "text": "8"}],
            "tool_call_id": "call_go",
        },
        {"role": "assistant", "content": "2 4 6"},
        {"role": "user", "content": "go on in fives"},
        {"role": "assistant", "content": "7 12"},
    ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "tools.jinja"
    file.write_text(TEMPLATE)
    return file


@pytest.fixture(scope="module")
def extracted(template: Path) -> Extraction:
    data = template.parent / "data.jsonl"
    data.write_text("".join(json.dumps({"messages": asked(number), "tools": TOOLS}) + "\n" for number in range(12)))
    target = cached(environment.ensure() / "bin" / "python3") / "models" / "tiny-target"
    made = Extraction(template.parent / "extracted", target, data)
    of_data = DataConfig(conversations=str(data), max_length=512, holdout=0.3, chat_template=str(template))
    result = made.run(made.config(data=of_data)).result
    assert (result.conversations, result.dropped) == (12, {})
    return made


@pytest.fixture(scope="module")
def server(extracted: Extraction, template: Path) -> Iterator[Server]:
    with sglang(extracted.target, template.parent / "server.log", "--chat-template", str(template)) as url:
        yield Server(url)


def test_what_the_target_says_is_learned_from_its_calls_too_and_what_they_result_in_is_not(
    extracted: Extraction,
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(extracted.target)
    for sample in every(extracted.features()):
        words = tokenizer.convert_ids_to_tokens(sample.input_ids.tolist())
        learned = [word for word, marked in zip(words, sample.loss_mask.tolist(), strict=True) if marked]
        known = " ".join(word for word in learned if word != "<unk>")
        assert known == "[ count ] [ go ] <end> 2 4 6 <end> 7 12 <end>"
        assert words.count("<end>") == 7


def rendered(server: Server, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Rendered:
    made = server.rendered(messages, tools)
    assert isinstance(made, Rendered), made
    return made


def test_a_probes_prompt_with_tools_has_the_tokens_that_the_server_makes_of_the_same_request(
    extracted: Extraction, server: Server
) -> None:
    lines = [json.loads(line) for line in (extracted.folder / "features" / PROMPTS).read_text().splitlines()]
    assert lines
    for line in lines:
        assert line["messages"][-1]["content"] == "go on in fives"
        assert rendered(server, line["messages"], line["tools"]).ids == line["input_ids"]
        assert rendered(server, line["messages"], []).tokens != len(line["input_ids"])
