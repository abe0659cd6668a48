"""A turn that calls tools is learned from as the model has to produce it, whatever the template's way to call; results are not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_draft.data.conversations import Conversation, Message, UnusableError
from eagle3_draft.data.prompts import collect
from eagle3_draft.data.rendering import ANSWER_CUT, Rendered, Renderer
from eagle3_draft.data.spans import CALLS_LEFT_OUT, HISTORY_REWRITTEN
from eagle3_draft.data.template import CALLS_REFUSED, TOOLS_LEFT_OUT
from eagle3_draft.data.tools import Tool
from unit.data.test_rendering import CHATML, CONTENTS, SPECIAL, CharacterTokenizer, answers, bytelevel

#: By which targets frame what they call, beside those that any conversation has.
OF_CALLS = [
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|im_user|>",
    "<|im_system|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "[TOOL_CALLS]",
    "<|observation|>",
]
BYTES: Any = bytelevel(merges=[], special=[*SPECIAL, *OF_CALLS])

# In the manner of published ones, as far as calls go: what each writes around a turn, and what it makes of several calls
NEWLINE = "{{ '\\n' }}"  # one after a block is taken away
_QWEN = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    f"{NEWLINE}<tool_response>\n{{{{ m.content }}}}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n[[{{ m.content }}{% for call in m.tool_calls %}"
    f"{{% if m.content or not loop.first %}}{NEWLINE}{{% endif %}}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    f"<|im_end|>]]{NEWLINE}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN25 = _QWEN.replace("[[", "").replace("]]", "")
QWEN25_MARKED = _QWEN.replace("[[", "{% generation %}").replace("]]", "{% endgeneration %}")
LLAMA31 = (
    "<s>{% for m in messages %}"
    "{% if 'tool_calls' in m %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    "{% set call = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>'
    "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if loop.first and tools %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{% endif %}"
    "{{ m.content }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
KIMI = (
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_system|>{{ m.name or 'tool' }}<|im_middle|>## Return of {{ m.tool_call_id }}\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|im_assistant|>assistant<|im_middle|>{{ m.content }}"
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for call in m.tool_calls %}"
    "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>"
    "{% endfor %}<|tool_calls_section_end|>{% endif %}"
    "{% else %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}{% endif %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
KIMI_MARKED_WITHOUT_END = KIMI.replace(
    "assistant<|im_middle|>{{ m.content }}{% if", "assistant<|im_middle|>{% generation %}{{ m.content }}{% if"
).replace("<|tool_calls_section_end|>{% endif %}", "<|tool_calls_section_end|>{% endif %}{% endgeneration %}")
GPT_OSS = (
    "<|start|>developer<|message|>{% for tool in tools or [] %}type {{ tool.function.name }} = () => any;\n{% endfor %}<|end|>"
    "{% for m in messages %}"
    "{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "{% if m.content %}<|start|>assistant<|channel|>analysis<|message|>{{ m.content }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}"
    "{% if m.role == 'user' %}{% if loop.first and tools %}[AVAILABLE_TOOLS] "
    "{% for tool in tools %}{{ tool.name + ' ' }}{% endfor %}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content | tojson }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}{{ call.function | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
GLM = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|Assistant|>\n{{ m.content }}{% for call in m.tool_calls %}"
    f"{NEWLINE}"
    "<tool_call>{{ call.function.name }}\n{% for key, value in call.function.arguments.items() %}"
    "<arg_key>{{ key }}</arg_key>\n<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% else %}<|User|>\n{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)


def written(value: Any) -> str:
    """As ``tojson`` of transformers writes it."""
    return json.dumps(value, ensure_ascii=False)


#: What a call is called, and with what.
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Way:
    """A target's way to call.

    Attributes:
        template: Jinja.
        says: what it has to produce for a turn that calls, of its words and its calls; the number of calls before is given too.
        answers: for one that does not, of its words and whether it is the last.
        several: calls of one turn it can say.
        words: whether it says some beside a call.
    """

    template: str
    says: Callable[[str, Sequence[Call], int], str]
    answers: Callable[[str, bool], str]
    several: bool = True
    words: bool = True


def qwen(words: str, calls: Sequence[Call], before: int) -> str:
    blocks = [f'<tool_call>\n{{"name": "{name}", "arguments": {written(of)}}}\n</tool_call>' for name, of in calls]
    return "\n".join([*([words] if words else []), *blocks]) + "<|im_end|>"


def kimi(words: str, calls: Sequence[Call], before: int) -> str:
    blocks = [
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{written(of)}<|tool_call_end|>"
        for number, (name, of) in enumerate(calls, before)
    ]
    return f"{words}<|tool_calls_section_begin|>{''.join(blocks)}<|tool_calls_section_end|><|im_end|>"


def llama(words: str, calls: Sequence[Call], before: int) -> str:
    ((name, of),) = calls
    return f'{{"name": "{name}", "parameters": {written(of)}}}<|eot_id|>'


def gpt_oss(words: str, calls: Sequence[Call], before: int) -> str:
    ((name, of),) = calls
    thought = f"<|channel|>analysis<|message|>{words}<|end|><|start|>assistant" if words else ""
    return f"{thought} to=functions.{name}<|channel|>commentary json<|message|>{written(of)}<|call|>"


def mistral(words: str, calls: Sequence[Call], before: int) -> str:
    return f"[TOOL_CALLS] {written([{'name': name, 'arguments': of} for name, of in calls])}</s>"


def glm(words: str, calls: Sequence[Call], before: int) -> str:
    def call(name: str, of: dict[str, Any]) -> str:
        values = (value if isinstance(value, str) else written(value) for value in of.values())
        pairs = zip(of, values, strict=True)
        told = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
        return f"\n<tool_call>{name}\n{told}</tool_call>"

    return f"\n{words}" + "".join(call(*one) for one in calls)


WAYS = {
    "qwen2.5": Way(QWEN25, qwen, lambda words, last: f"{words}<|im_end|>"),
    "qwen2.5-marked": Way(QWEN25_MARKED, qwen, lambda words, last: f"{words}<|im_end|>"),
    "llama3.1": Way(LLAMA31, llama, lambda words, last: f"{words}<|eot_id|>", several=False, words=False),
    "kimi": Way(KIMI, kimi, lambda words, last: f"{words}<|im_end|>"),
    "kimi-marked-without-end": Way(KIMI_MARKED_WITHOUT_END, kimi, lambda words, last: f"{words}<|im_end|>"),
    "gpt-oss": Way(
        GPT_OSS,
        gpt_oss,
        lambda words, last: f"<|channel|>final<|message|>{words}<|{'return' if last else 'end'}|>",
        several=False,
    ),
    "mistral": Way(MISTRAL, mistral, lambda words, last: f" {words}</s>", words=False),
    "glm": Way(GLM, glm, lambda words, last: f"\n{words}"),
}

NAMES = ("get_weather", "f")
TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in NAMES
]


def call(name: str, arguments: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """As it comes from a conversation that was read."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"functions.{name}:{number}", "index": None, "type": "function", "function": function}


def result(name: str, content: str, number: int = 0) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": f"functions.{name}:{number}", "name": name}


@dataclass(frozen=True)
class Turn:
    """What the assistant says once: words, and calls with what each results in."""

    words: str
    calls: Sequence[tuple[Call, str]] = ()


def conversation(exchanges: Sequence[tuple[str, Sequence[Turn]]]) -> list[Message]:
    messages: list[Message] = []
    count = 0
    for question, turns in exchanges:
        messages.append({"role": "user", "content": question})
        for turn in turns:
            numbered = list(enumerate(turn.calls, count))
            count += len(numbered)
            calls = {"tool_calls": [call(*of, number) for number, (of, _) in numbered]} if numbered else {}
            messages.append({"role": "assistant", "content": turn.words, **calls})
            messages += [result(name, said, number) for number, ((name, _), said) in numbered]
    return messages


def taught(way: Way, exchanges: Sequence[tuple[str, Sequence[Turn]]]) -> list[str]:
    """What the model has to produce, turn by turn."""
    turns = [turn for _, of in exchanges for turn in of]
    found, count = [], 0
    for number, turn in enumerate(turns, 1):
        calls = [of for of, _ in turn.calls]
        found.append(way.says(turn.words, calls, count) if calls else way.answers(turn.words, number == len(turns)))
        count += len(calls)
    return found


def rendering(tokenizer: Any, template: str, messages: list[Message], tools: Sequence[Tool] = ()) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tools=list(tools) or None, chat_template=template, tokenize=False
    )
    return text


VALUES = st.recursive(
    CONTENTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(CONTENTS, inner, max_size=2),
    max_leaves=3,
)
CALLS = st.tuples(st.tuples(st.sampled_from(NAMES), st.dictionaries(CONTENTS, VALUES, max_size=2)), CONTENTS)


@st.composite
def exchanges_of(draw: st.DrawFn, way: Way) -> list[tuple[str, list[Turn]]]:
    several = draw(st.integers(1, 3)) if way.several else 1
    words = CONTENTS if way.words else st.just("")
    calling = st.builds(Turn, words, st.lists(CALLS, min_size=1, max_size=several))
    turns = st.tuples(st.lists(calling, max_size=2), st.builds(Turn, CONTENTS)).map(lambda of: [*of[0], of[1]])
    return draw(st.lists(st.tuples(CONTENTS, turns), min_size=1, max_size=2))


@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_called_the_turn_is_taught_as_it_is_said_and_the_rest_is_the_templates(
    name: str, data: st.DataObject
) -> None:
    way = WAYS[name]
    exchanges = data.draw(exchanges_of(way))
    messages = conversation(exchanges)
    renderer = Renderer(BYTES, way.template, 1 << 16)
    assert answers(renderer, BYTES, messages, TOOLS) == taught(way, exchanges)
    shown = [tool["function"] for tool in TOOLS] if name == "mistral" else TOOLS
    whole = renderer.conversation(messages, TOOLS).input_ids
    plain = way.template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    assert BYTES.decode(whole, clean_up_tokenization_spaces=False) == rendering(BYTES, plain, messages, shown)


#: Two questions, three calls (each alone and without words, which every way can say), their results and the answers.
@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=20)
@given(data=st.data())
def test_what_is_cut_away_is_not_looked_at_and_the_rest_is_taught_as_in_the_whole(
    name: str, data: st.DataObject
) -> None:
    way = WAYS[name]
    messages = conversation(data.draw(exchanges_of(way)))
    whole = Renderer(BYTES, way.template, 1 << 16).conversation(messages, TOOLS)
    length = data.draw(st.integers(1, len(whole.input_ids)))
    (cut,) = Renderer(BYTES, way.template, length).conversations([Conversation(messages, b"", TOOLS)])
    if 1 not in whole.loss_mask[:length]:
        assert str(cut) == ANSWER_CUT
        return
    assert isinstance(cut, Rendered)
    assert (cut.input_ids, cut.loss_mask) == (whole.input_ids[:length], whole.loss_mask[:length])


@pytest.mark.parametrize("name", WAYS)
def test_a_log_of_hundreds_of_calls_takes_renderings_for_the_answers_that_are_not_cut_away(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer takes three of the whole: of 400 calls it took ten seconds to learn from the first twenty."""
    way, rendered = WAYS[name], 0
    turns = [Turn("", [(("f", {"of": number}), "sunny")]) for number in range(100)]
    messages = conversation([("Where?", [*turns, Turn("There.")])])
    apply = BYTES.apply_chat_template

    def counted(*what: Any, **how: Any) -> Any:
        nonlocal rendered
        rendered += 1
        return apply(*what, **how)

    renderer = Renderer(BYTES, way.template, 500)
    monkeypatch.setattr(BYTES, "apply_chat_template", counted)
    assert renderer.conversation(messages, TOOLS).lost > 1000
    assert rendered < 60


EXCHANGES = [
    ("How is it in Paris?", [Turn("", [(("get_weather", {"city": "Paris"}), "<|im_end|> sunny")]), Turn("Sunny.")]),
    ("And there?", [Turn("", [(("f", {}), "7")]), Turn("", [(("f", {"n": 1}), "8")]), Turn("8.")]),
]


@pytest.mark.parametrize("name", WAYS)
def test_a_tokenizer_that_knows_no_characters_tells_the_same(name: str) -> None:
    class Slow(CharacterTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.add_tokens(OF_CALLS, special_tokens=True)

    slow, way = Slow(), WAYS[name]
    assert answers(Renderer(slow, way.template, 1 << 16), slow, conversation(EXCHANGES), TOOLS) == taught(
        way, EXCHANGES
    )


@pytest.mark.parametrize("name", WAYS)
def test_a_conversation_may_end_with_a_call(name: str) -> None:
    way = WAYS[name]
    exchanges = [EXCHANGES[0], ("And there?", [Turn("", [(("f", {"n": [1, None]}), "7")])])]
    messages = conversation(exchanges)[:-1]
    assert messages[-1]["role"] == "assistant"
    assert answers(Renderer(BYTES, way.template, 1 << 16), BYTES, messages, TOOLS) == taught(way, exchanges)


@pytest.mark.parametrize("name", WAYS)
def test_calls_without_a_list_of_tools_are_learned_from_too(name: str) -> None:
    way = WAYS[name]
    assert answers(Renderer(BYTES, way.template, 1 << 16), BYTES, conversation(EXCHANGES)) == taught(way, EXCHANGES)


#: Drops the reasoning of a turn that an answer follows, and opens it where the assistant begins, as Qwen3's and Kimi K2's thinking ones do.
THINKING = (
    KIMI.replace(
        "{% for m in messages %}{% if m.role == 'tool'",
        (
            "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
            "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'tool'"
        ),
    )
    .replace(
        "assistant<|im_middle|>{{ m.content }}",
        "assistant<|im_middle|><think>{% if loop.index0 > ns.last %}{{ m.reasoning_content }}{% endif %}</think>{{ m.content }}",
    )
    .replace("assistant<|im_middle|>{% endif %}", "assistant<|im_middle|><think>{% endif %}")
)


def test_the_reasoning_before_a_call_is_taught_where_the_template_keeps_it() -> None:
    messages = conversation(EXCHANGES)[:-1]
    for message in messages:
        if message["role"] == "assistant":
            message["reasoning_content"] = "hm"
    found = answers(Renderer(BYTES, THINKING, 1 << 16), BYTES, messages, TOOLS)
    spoken = taught(WAYS["kimi"], EXCHANGES)[:-1]
    # Of history the prompt had more; of the last exchange it is what is before
    assert found == [f"</think>{spoken[0]}", spoken[1], *(f"hm</think>{one}" for one in spoken[2:])]


@pytest.mark.parametrize(
    ("template", "exchanges", "why"),
    [
        (CHATML, EXCHANGES, TOOLS_LEFT_OUT),
        (CHATML.replace("{% for m", "{{ tools | tojson }}{% for m", 1), EXCHANGES, CALLS_LEFT_OUT),
        (QWEN25.replace('"name": "{{ call.function.name }}", ', ""), EXCHANGES, CALLS_LEFT_OUT),
        (QWEN25.replace("{{ call.function.arguments | tojson }}", "{}"), EXCHANGES, CALLS_LEFT_OUT),
        (QWEN25_MARKED.replace("{{ call.function.arguments | tojson }}", "{}"), EXCHANGES, CALLS_LEFT_OUT),
        (
            QWEN25.replace("call.function.arguments | tojson", "call.function.arguments | tojson | upper"),
            EXCHANGES,
            CALLS_LEFT_OUT,
        ),
        (
            QWEN25.replace("call.function.arguments | tojson", "'' + call.function.arguments"),
            EXCHANGES,
            CALLS_REFUSED,
        ),
        (
            QWEN25.replace("{{ m.content }}{% for", "{{ m.content if not m.tool_calls }}{% for"),
            [("?", [Turn("Hm.", [(("f", {}), "7")])])],
            HISTORY_REWRITTEN,
        ),
        (
            QWEN25_MARKED.replace("{% for call in", "{% endgeneration %}{% for call in").replace(
                "<|im_end|>{% endgeneration %}", "<|im_end|>"
            ),
            EXCHANGES,
            CALLS_LEFT_OUT,
        ),
        (GPT_OSS, [("?", [Turn("", [(("f", {"n": 1}), "7"), (("f", {"n": 2}), "8")])])], CALLS_LEFT_OUT),
        (LLAMA31, [("?", [Turn("", [(("f", {"n": 1}), "7"), (("f", {"n": 2}), "8")])])], CALLS_REFUSED),
        (LLAMA31, [("?", [Turn("Hm.", [(("f", {}), "7")])])], HISTORY_REWRITTEN),
    ],
    ids=[
        "tools",
        "calls",
        "names",
        "arguments",
        "arguments marked",
        "letters",
        "text",
        "words",
        "marks",
        "second call",
        "several calls",
        "words beside a call",
    ],
)
def test_what_the_template_does_not_say_is_not_learned_as_if_it_had_been_said(
    template: str, exchanges: list[tuple[str, list[Turn]]], why: str
) -> None:
    with pytest.raises(UnusableError, match=why):
        Renderer(BYTES, template, 1 << 16).conversation(conversation(exchanges), TOOLS)


def test_a_prompt_is_the_one_that_a_request_with_the_same_tools_makes() -> None:
    renderer = Renderer(BYTES, QWEN25, 1 << 16)
    messages = conversation(EXCHANGES)
    prompt = renderer.prompt(messages[:3], TOOLS)
    whole = renderer.conversation(messages, TOOLS)
    assert whole.input_ids[: len(prompt)].tolist() == prompt
    assert whole.loss_mask[len(prompt)] == 1
    with pytest.raises(UnusableError, match=TOOLS_LEFT_OUT):
        Renderer(BYTES, CHATML, 64).prompt(messages[:1], TOOLS)


def test_a_target_with_a_template_of_its_own_for_tools_is_shown_them_in_it() -> None:
    both: Any = bytelevel(merges=[], special=[*SPECIAL, *OF_CALLS])
    both.chat_template = {"default": CHATML, "tool_use": QWEN25}
    renderer = Renderer(both, CHATML, 1 << 16)
    assert answers(renderer, both, conversation(EXCHANGES), TOOLS) == taught(WAYS["qwen2.5"], EXCHANGES)
    plain: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}]
    assert both.decode(renderer.conversation(plain).input_ids).endswith("assistant\n<|im_end|>\n")
    # One that the object names is for all
    with pytest.raises(UnusableError, match=TOOLS_LEFT_OUT):
        Renderer(both, CHATML + " ", 1 << 16).conversation(conversation(EXCHANGES), TOOLS)


def strange(messages: list[Message]) -> list[Message]:
    """The same as another server would have numbered it, and with results in another order; of the last call without an id."""
    found = []
    for message in messages:
        one = dict(message)
        if "tool_calls" in one:
            one["tool_calls"] = [{**called, "id": f"call_{called['id'][-1]}"} for called in one["tool_calls"]]
        if one["role"] == "tool":
            one["tool_call_id"] = f"call_{one['tool_call_id'][-1]}"
        found.append(one)
    found[-3]["tool_calls"][0]["id"] = None
    del found[-2]["tool_call_id"]
    found[2], found[3] = found[3], found[2]
    return found


TWO = [
    ("?", [Turn("", [(("f", {"n": 1}), "7"), (("get_weather", {}), "8")]), Turn("So.")]),
    ("?", [Turn("", [(("f", {}), "9")]), Turn("So.")]),
]


def test_where_a_call_is_named_by_its_id_alone_it_gets_the_one_that_the_target_would_say() -> None:
    renderer = Renderer(BYTES, KIMI, 1 << 16)
    asked = strange(conversation(TWO))
    assert answers(renderer, BYTES, asked, TOOLS) == taught(WAYS["kimi"], TWO)
    text = BYTES.decode(renderer.conversation(asked, TOOLS).input_ids)
    assert "## Return of functions.get_weather:1\n8<" in text
    assert "## Return of functions.f:0\n7<" in text
    assert "## Return of functions.f:2\n9<" in text
    # What was told as the target tells it stays, whatever it was counted from
    told = [result("f", "7", 5)]
    calling: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", {}, 5)]},
    ]
    assert "functions.f:5" in BYTES.decode(renderer.conversation([*calling, *told]).input_ids)


@pytest.mark.parametrize("given", ["call_5f3a", "functions.overall:0", "functions.all", "functions.all:x"])
def test_an_id_that_only_happens_to_hold_a_tools_name_is_not_one_that_the_target_would_say(given: str) -> None:
    calling = {**call("all", {}, 0), "id": given}
    asked: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [calling]},
    ]
    text = BYTES.decode(Renderer(BYTES, KIMI, 1 << 16).conversation(asked).input_ids)
    assert "functions.all:0" in text
    assert given not in text.replace("functions.all:0", "")


@pytest.mark.parametrize("template", [KIMI, QWEN25])
def test_a_probes_prompt_is_rendered_from_the_messages_and_tools_that_it_sends(template: str) -> None:
    asked = Conversation(strange(conversation(TWO)), b"", TOOLS)
    renderer = Renderer(BYTES, template, 1 << 16)
    (prompt,) = collect([asked], renderer, 1 << 16)
    assert prompt["tools"] == TOOLS
    assert prompt["messages"][-1]["role"] == "user"
    assert prompt["input_ids"] == renderer.prompt(prompt["messages"], prompt["tools"])
    assert ("functions.get_weather:1" in json.dumps(prompt["messages"])) == (template == KIMI)
    (plain,) = collect([Conversation([{"role": "user", "content": "?"}], b"")], renderer, 1 << 16)
    assert "tools" not in plain


def test_several_answers_to_one_question_make_one_prompt() -> None:
    """They are held out together, and a server that is asked a few questions over and over is measured with those alone."""
    answered = [
        Conversation([{"role": "user", "content": asked}, {"role": "assistant", "content": f"{n}"}], b"")
        for asked in ("a?", "b?")
        for n in range(100)
    ]
    found = collect(answered, Renderer(BYTES, CHATML, 1 << 16), 1 << 16)
    assert [prompt["messages"][-1]["content"] for prompt in found] == ["a?", "b?"]


def test_a_prompt_has_the_day_that_the_template_which_rendered_it_says() -> None:
    both: Any = bytelevel(merges=[], special=[*SPECIAL, *OF_CALLS])
    both.chat_template = {"default": CHATML, "tool_use": "{{ strftime_now('%Y-%m-%d') }}" + QWEN25}
    renderer = Renderer(both, CHATML, 1 << 16)
    asked: list[Message] = [{"role": "user", "content": "?"}]
    with_tools, without = collect([Conversation(asked, b"", TOOLS), Conversation(asked, b"")], renderer, 1 << 16)
    assert both.decode(with_tools["input_ids"]).startswith(with_tools["day"])
    assert "day" not in without
    assert renderer.day == with_tools["day"]
