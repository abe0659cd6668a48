"""Conversations are read whole or refused with the line that is wrong; their content decides order and split."""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode
from eagle3_api.spec import Regenerate
from eagle3_draft.data import forms
from eagle3_draft.data.conversations import (
    CALLS_UNCLEAR,
    PROMPTS,
    QUESTIONS,
    TOKENS_AROUND_TOOLS,
    TOOLS_UNCLEAR,
    Conversations,
    Reading,
)
from eagle3_draft.data.openings import DIGEST_BYTES, Openings
from eagle3_draft.errors import StageError


def talk(text: str, answer: str = "yes") -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    return write(tmp_path / "train.jsonl", *(talk(f"question {i}") for i in range(100)))


def test_conversations_are_read_with_their_messages(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(json.dumps({**talk("häßlich ☃"), "id": 7}, ensure_ascii=False).encode() + b"\n\n  \n")
    found = Conversations.read(path)
    assert len(found) == 1
    assert found[0].messages == talk("häßlich ☃")["messages"]
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_order_of_the_lines_changes_nothing(tmp_path: Path, hundred: Path) -> None:
    lines = hundred.read_text().splitlines()
    random.Random(1).shuffle(lines)
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_text("\n".join(lines))
    one, other = Conversations.read(hundred), Conversations.read(shuffled)
    assert [c.messages for c in one] == [c.messages for c in other]
    assert one.held_out(0.1) == other.held_out(0.1)


def test_a_sample_is_split_like_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *(talk(f"question {i}") for i in range(2000)))
    whole, sample = Conversations.read(path), Conversations.read(path, max_samples=500)
    assert [c.digest for c in sample] == [c.digest for c in whole[:500]]
    assert sample.held_out(0.1) == whole.held_out(0.1)[:500]
    assert 0.05 < sum(sample.held_out(0.1)) / 500 < 0.15


def test_a_conversation_keeps_its_side_when_others_come_and_go(tmp_path: Path, hundred: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(hundred.read_text() + json.dumps(talk("one more")) + "\n")
    before, after = Conversations.read(hundred), Conversations.read(more)
    sides = dict(zip((c.digest for c in after), after.held_out(0.2), strict=True))
    assert all(sides[c.digest] == side for c, side in zip(before, before.held_out(0.2), strict=True))


@given(st.lists(st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES), max_size=20), st.floats(1e-6, 0.5))
def test_at_least_one_conversation_is_held_out(digests: list[bytes], share: float) -> None:
    chosen = Openings(digests).held_out(share)
    assert len(chosen) == len(digests)
    assert any(chosen) or not digests


Messages = list[dict[str, str]]


def dialogue(*said: str, system: str | None = None) -> Messages:
    """A dialogue that a user begins."""
    turns = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(said)]
    return ([{"role": "system", "content": system}] if system else []) + turns


def sides(path: Path, every: list[Messages], share: float) -> tuple[list[Messages], list[Messages]]:
    """Those that are learned from, and those that are held out."""
    read = Conversations.read(write(path / "sides.jsonl", *({"messages": one} for one in every)))
    split = read.held_out(share)
    learned, held = (
        [one.messages for one, out in zip(read, split, strict=True) if out is side] for side in (False, True)
    )
    assert learned
    assert held
    return learned, held


def questions(every: list[Messages]) -> set[str]:
    return {" ".join(one["content"].split()) for messages in every for one in messages if one["role"] == "user"}


def test_no_question_is_learned_from_and_measured_with_whatever_is_said_before_and_after_it(tmp_path: Path) -> None:
    """Neither other answers to it, nor dialogues that are listed as they grow, nor another system prompt, nor blanks."""
    every = []
    for number in range(400):
        asked = f"what is {number}?"
        every += [dialogue(asked, f"answer {answer}") for answer in range(3)]
        every += [
            dialogue(asked, "say more", f"of {number}?", "more"),
            dialogue(f"{asked}\n", "yes", system="be brief"),
        ]
    learned, held = sides(tmp_path, every, 0.05)
    assert not questions(learned) & questions(held)
    assert 0.02 < len(held) / len(every) < 0.1


def test_the_side_of_a_conversation_and_its_place_in_the_order_do_not_depend_on_each_other(tmp_path: Path) -> None:
    every = [{"messages": dialogue(f"{number}", f"{answer}")} for number in range(500) for answer in range(2)]
    read = Conversations.read(write(tmp_path / "x.jsonl", *every))
    held = read.held_out(0.2)
    assert 0.3 < sum(held[:500]) / sum(held) < 0.7
    assert [one.digest[16:] for one in read] == sorted(one.digest[16:] for one in read)


def test_where_most_open_alike_further_questions_decide_and_that_is_told(tmp_path: Path) -> None:
    opened = ["begin", "yes", "go on", "yes"]
    every = [dialogue(*opened, f"{number}", f"{answer}") for number in range(300) for answer in range(2)]
    every += [dialogue(f"other {number}", "yes") for number in range(100)]
    learned, held = sides(tmp_path, every, 0.1)
    assert not questions(learned) & questions(held) - {"begin", "go on"}
    assert 0.05 < len(held) / len(every) < 0.2
    (told,) = Conversations.read(tmp_path / "sides.jsonl").openings.notes(0.1)
    assert told.startswith("600 of 700 conversations open with the same question")
    assert "by what else they are asked" in told


def test_where_all_ask_the_same_of_other_texts_the_system_prompts_decide(tmp_path: Path) -> None:
    every = [dialogue("sum it up", f"{answer}", system=f"{text}") for text in range(200) for answer in range(2)]
    learned, held = sides(tmp_path, every, 0.1)
    assert not {one[0]["content"] for one in learned} & {one[0]["content"] for one in held}
    assert 0.05 < len(held) / len(every) < 0.2


def test_a_held_out_share_that_is_far_from_what_was_asked_for_is_told_with_why(tmp_path: Path) -> None:
    def notes(asking_the_same: int, share: float) -> list[str]:
        every = [dialogue("hi there", f"{number}") for number in range(asking_the_same)]
        every += [dialogue(f"{number}", "yes") for number in range(1000 - asking_the_same)]
        read = Conversations.read(write(tmp_path / "x.jsonl", *({"messages": one} for one in every)))
        return read.openings.notes(share)

    assert notes(0, 0.18) == []
    (told,) = notes(400, 0.18)
    assert told.endswith(
        "not data.holdout's 18.0%: what opens with the same question is on one side, up to 400 of them"
    )
    assert notes(400, 0.17) == []  # "hi there" is learned from


def test_a_conversation_that_occurs_twice_is_taken_once(tmp_path: Path) -> None:
    found = Conversations.read(write(tmp_path / "x.jsonl", talk("a"), talk("b"), {**talk("a"), "id": 3}))
    assert len(found) == 2
    assert found.dropped == {"duplicate": 1}


def test_expected_tokens_are_at_most_the_longest_length(tmp_path: Path) -> None:
    found = Conversations.read(write(tmp_path / "x.jsonl", talk("a" * 3000), talk("b" * 30)))
    assert found.expected_tokens(512) == 512 + (10 + 8) + (1 + 8)


def refused(read: Callable[[], object], *words: str) -> None:
    with pytest.raises(StageError) as raised:
        read()
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE)
    for word in words:
        assert word in raised.value.message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("\\x00", "not JSON"),
        ("7", "not an object"),
        ("{}", "'messages' is missing"),
        ('{"messages": []}', "'messages' is missing"),
        ('{"messages": "hi"}', "'messages' is missing"),
        ('{"messages": ["hi"]}', "messages[0] is not an object"),
        ('{"conversations": [{"from": "robot", "value": "hi"}]}', "role is 'robot'"),
        ('{"conversations": [{"from": "human"}]}', "content is neither a string"),
        ('{"conversations": "hi"}', "'messages' is missing"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content is neither a string"),
        (
            '{"messages": [{"role": "user", "content": []}]}',
            "messages[0].content is neither a string nor a list of parts",
        ),
        ('{"messages": [{"role": "user", "content": ["hi"]}]}', "messages[0].content[0] is not an object with a type"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
            "messages[0].content[0].text is not a string",
        ),
        (
            '{"messages": [{"role": "assistant", "content": 7, "tool_calls": []}]}',
            "messages[0].content is neither a string",
        ),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', "messages[0].role"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(talk("good")) + "\n" + line + "\n")
    refused(lambda: Conversations.read(path), f"{path}, line 2", words)


def after(message: dict[str, object]) -> dict[str, object]:
    """A conversation in which a message stands between a question and its answer."""
    answered = {"role": "assistant", "content": "yes"}
    return {"messages": [{"role": "user", "content": "one"}, message, answered]}


def calling(**call: object) -> dict[str, object]:
    return after({"role": "assistant", "content": None, **call})


def add(number: int, **function: object) -> dict[str, object]:
    """A call as OpenAI's clients write it down."""
    of = {"name": "add", "arguments": f'{{"n": {number}}}', **function}
    return {"id": f"call_{number}", "type": "function", "function": of}


def called(result: object) -> dict[str, object]:
    """A conversation with a call, what it resulted in, and an answer."""
    return {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": None, "tool_calls": [add(1)]},
            {"role": "tool", "content": result, "tool_call_id": "call_1"},
            {"role": "assistant", "content": "yes"},
        ]
    }


FIRST = {"name": "add", "arguments": {"n": 1}}


def sharegpt_calls(calls: object, *results: str) -> dict[str, object]:
    """The same in ShareGPT's form."""
    turns = [{"from": "human", "value": "one"}]
    turns += [{"from": "function_call", "value": calls if isinstance(calls, str) else json.dumps(calls)}]
    turns += [{"from": "observation", "value": result} for result in results]
    return {"conversations": [*turns, {"from": "gpt", "value": "yes"}]}


#: JSON within JSON that no parser follows.
NESTED = "[" * 100_000
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (after({"role": "tool", "content": "7", "tool_call_id": "x"}), CALLS_UNCLEAR),
        (after({"role": "function", "content": "7", "name": "add"}), CALLS_UNCLEAR),
        (calling(tool_calls=[{"id": "x", "type": "function"}]), CALLS_UNCLEAR),
        (calling(tool_calls=[add(1, name=None)]), CALLS_UNCLEAR),
        (calling(tool_calls=[add(1, arguments="1 + 1")]), CALLS_UNCLEAR),
        (calling(tool_calls=[add(1, arguments="[1]")]), CALLS_UNCLEAR),
        (calling(tool_calls=[add(1, arguments=NESTED)]), CALLS_UNCLEAR),
        (calling(tool_calls=[add(1) | {"id": 7}]), CALLS_UNCLEAR),
        (calling(tool_calls=[add(1) | {"type": "custom"}]), CALLS_UNCLEAR),
        (calling(tool_calls="add"), CALLS_UNCLEAR),
        (called({"n": 7}), CALLS_UNCLEAR),
        # Of two calls one result, or none and yet an answer: which is whose?
        (calling(function_call={"name": "add", "arguments": "{}"}), CALLS_UNCLEAR),
        (sharegpt_calls([FIRST, FIRST], "7"), CALLS_UNCLEAR),
        (sharegpt_calls(FIRST, "7", "8"), CALLS_UNCLEAR),
        (sharegpt_calls("add(1)", "7"), CALLS_UNCLEAR),
        (sharegpt_calls(NESTED, "7"), CALLS_UNCLEAR),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "observation", "value": "7"}]}, CALLS_UNCLEAR),
        ({**talk("one"), "tools": "add"}, TOOLS_UNCLEAR),
        ({**talk("one"), "tools": NESTED}, TOOLS_UNCLEAR),
        ({**talk("one"), "tools": [NESTED]}, TOOLS_UNCLEAR),
        ({**talk("one"), "tools": {"name": "add"}}, TOOLS_UNCLEAR),
        ({**talk("one"), "tools": ["add"]}, TOOLS_UNCLEAR),
        ({**talk("one"), "tools": [{"type": "function", "function": {"parameters": {}}}]}, TOOLS_UNCLEAR),
        (
            after({"role": "user", "content": [{"type": "text", "text": "what is it?"}, IMAGE]}),
            "content that is not text",
        ),
        (calling(refusal="I cannot help with that."), "answer without content"),
        (calling(tool_calls=[]), "answer without content"),
        (calling(reasoning="hm"), "answer without content"),
        (after({"role": "assistant", "content": "b", "reasoning_content": 7}), "reasoning that is not text"),
        (after({"role": "assistant", "content": "b", "thinking": [{"text": "hm"}]}), "reasoning that is not text"),
        (after({"role": "system", "content": "be kind"}), "system message that is not the first"),
        (after({"role": "developer", "content": "be kind"}), "message of a developer"),
    ],
)
def test_a_conversation_of_a_kind_that_cannot_be_learned_from_is_counted_and_the_others_are_taken(
    tmp_path: Path, line: dict[str, object], why: str
) -> None:
    path = write(tmp_path / "x.jsonl", line, talk("good"), line, talk("good"))
    found = Conversations.read(path)
    assert [conversation.messages for conversation in found] == [talk("good")["messages"]]
    assert found.dropped == {why: 2, "duplicate": 1}


OFFERED = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_calls_are_read_as_a_server_hands_them_to_the_template(tmp_path: Path) -> None:
    parts = called([{"type": "text", "text": word} for word in ("one", "more")])
    found = Conversations.read(write(tmp_path / "x.jsonl", {**parts, "tools": OFFERED}))
    function = {"name": "add", "arguments": {"n": 1}}
    assert found[0].messages == [
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "index": None, "type": "function", "function": function}],
        },
        {"role": "tool", "content": "one more", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "yes"},
    ]
    assert [*map(list, found[0].messages)] == [
        ["role", "content"],
        ["role", "content", "tool_calls"],
        ["role", "content", "tool_call_id"],
        ["role", "content"],
    ]
    assert found[0].tools == OFFERED


def test_a_call_is_the_same_with_its_arguments_as_text_and_as_an_object_in_either_form(tmp_path: Path) -> None:
    parsed = called("7")
    parsed["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"n": 1}  # type: ignore[index]
    found = Conversations.read(write(tmp_path / "x.jsonl", called("7"), parsed))
    assert found.dropped == {"duplicate": 1}

    former = called("7")
    former["messages"][1] = {"role": "assistant", "content": None, "function_call": add(1)["function"]}  # type: ignore[index]
    former["messages"][2] = {"role": "function", "name": "add", "content": "7"}  # type: ignore[index]
    nameless = sharegpt_calls({**FIRST, "arguments": '{"n": 1}'}, "7")
    named = sharegpt_calls([FIRST], "7")
    found = Conversations.read(write(tmp_path / "x.jsonl", former, nameless, named))
    assert found.dropped == {"duplicate": 1}
    assert all([m["role"] for m in c.messages] == ["user", "assistant", "tool", "assistant"] for c in found)
    assert {c.messages[2].get("name") for c in found} == {"add", None}
    ending = {"conversations": sharegpt_calls([FIRST, FIRST])["conversations"][:-1]}  # type: ignore[index]
    (last,) = Conversations.read(write(tmp_path / "x.jsonl", ending))
    assert len(last.messages[-1]["tool_calls"]) == 2


@pytest.mark.parametrize(
    "tools",
    [OFFERED, [OFFERED[0]["function"]], json.dumps(OFFERED), [json.dumps(OFFERED[0])]],
    ids=["entries", "functions", "text", "texts"],
)
def test_tools_are_the_same_however_they_are_written(tmp_path: Path, tools: object) -> None:
    found = Conversations.read(write(tmp_path / "x.jsonl", {**talk("one"), "tools": tools}))
    assert found[0].tools == OFFERED
    assert found[0].opening.tools == OFFERED


@pytest.mark.parametrize("tools", [None, [], "", "[]"])
def test_a_plain_conversation_has_the_hash_that_it_had_before_there_were_tools(tmp_path: Path, tools: object) -> None:
    whole = talk("one")
    whole["messages"][1] |= {"tool_calls": [], "function_call": None}  # type: ignore[index]
    (plain,) = Conversations.read(write(tmp_path / "x.jsonl", {**whole, "tools": tools}))
    assert plain.digest.hex() == "39a3fee9627af69c2c64065e01c30e9cffeeb25eeca422626c0ddd336c765190"
    (offered,) = Conversations.read(write(tmp_path / "x.jsonl", {**talk("one"), "tools": OFFERED}))
    assert offered.digest != plain.digest


def test_calls_and_tools_of_parquet_hold_no_more_than_was_written(tmp_path: Path) -> None:
    """A column of objects gives each of them the fields of all."""
    other = {"type": "function", "function": {"name": "say", "description": "aloud"}}
    lines = [{**called("7"), "tools": OFFERED}, {**talk("one"), "tools": [other]}, talk("two")]
    lines[0]["messages"][1]["tool_calls"] += [{"id": "x", "function": {"name": "say", "arguments": {"text": "hi"}}}]  # type: ignore[index]
    for call in lines[0]["messages"][1]["tool_calls"][:1]:  # type: ignore[index]
        call["function"]["arguments"] = {"n": 1}
    parquet.write_table(pyarrow.Table.from_pylist(lines), tmp_path / "x.parquet")
    rows = Conversations.read(tmp_path / "x.parquet")
    same = Conversations.read(write(tmp_path / "x.jsonl", *lines))
    assert [(c.messages, c.tools, c.digest) for c in rows] == [(c.messages, c.tools, c.digest) for c in same]
    assert len(rows) == 3


def test_what_calls_and_tools_take_is_reckoned_with(tmp_path: Path) -> None:
    plain = Conversations.read(write(tmp_path / "x.jsonl", talk("one"))).expected_tokens(1 << 20)
    with_tools = {**talk("one"), "tools": OFFERED}
    offered = Conversations.read(write(tmp_path / "x.jsonl", with_tools)).expected_tokens(1 << 20)
    assert plain + TOKENS_AROUND_TOOLS < offered < plain + TOKENS_AROUND_TOOLS + 60
    long = called("7")
    long["messages"][1]["tool_calls"] = [add(1, arguments=json.dumps({"text": 3000 * "x"}))]  # type: ignore[index]
    assert Conversations.read(write(tmp_path / "x.jsonl", long)).expected_tokens(1 << 20) > 1000


@pytest.mark.parametrize("reading", [QUESTIONS, PROMPTS])
def test_where_the_target_answers_nothing_is_asked_that_follows_a_tools_result(
    tmp_path: Path, reading: Reading
) -> None:
    asked: list[object] = [*question("one")["messages"]]  # type: ignore[misc]
    call, result = called("7")["messages"][1:3]  # type: ignore[index]
    more = [*question("two")["messages"]]  # type: ignore[misc]
    former = {"role": "function", "name": "add", "content": "7"}
    lines = [{"messages": [*asked, call, one, *more], "tools": OFFERED} for one in (result, former)]
    lines += [{"messages": [*asked, call, result], "tools": OFFERED}]
    found = Conversations.read(write(tmp_path / "x.jsonl", *lines), reading=reading)
    assert [(conversation.messages, conversation.tools) for conversation in found] == [(asked, OFFERED)]
    assert found.dropped == {"duplicate": 2}


def test_a_content_in_parts_of_text_is_the_text_that_a_server_joins_them_to(tmp_path: Path) -> None:
    parts = talk("one two")
    parts["messages"][0]["content"] = [{"type": "text", "text": word} for word in ("one", "two")]  # type: ignore[index]
    found = Conversations.read(write(tmp_path / "x.jsonl", talk("one two"), parts))
    assert [conversation.messages for conversation in found] == [talk("one two")["messages"]]
    assert found.dropped == {"duplicate": 1}
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": parts["messages"][:1]}]), tmp_path / "x.parquet")  # type: ignore[index]
    rows = Conversations.read(tmp_path / "x.parquet")
    assert [conversation.messages for conversation in rows] == [question("one two")["messages"]]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}\n')
    refused(lambda: Conversations.read(path), "line 1", "not JSON")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    refused(lambda: Conversations.read(tmp_path / "no.jsonl"), "no.jsonl", "placement.volumes")
    refused(lambda: Conversations.read(tmp_path), "it is a folder")


def test_a_file_that_changes_while_it_is_used_is_named(tmp_path: Path) -> None:
    found = Conversations.read(write(tmp_path / "x.jsonl", talk("a")))
    write(tmp_path / "x.jsonl", talk("b"))
    refused(lambda: found[0], "changed while")


def sharegpt(text: str, answer: str = "yes") -> dict[str, object]:
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]
    return {"id": "x", "conversations": turns}


def test_the_same_conversation_is_the_same_in_either_form(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", talk("one"), sharegpt("one"), sharegpt("two"))
    found = Conversations.read(path)
    assert found.dropped == {"duplicate": 1}
    assert sorted(c.messages[0]["content"] for c in found) == ["one", "two"]
    assert all([m["role"] for m in c.messages] == ["user", "assistant"] for c in found)


@pytest.mark.parametrize("form", [talk, sharegpt])
def test_parquet_is_read_like_the_lines_of_the_same_conversations(
    tmp_path: Path, form: Callable[[str], dict[str, object]]
) -> None:
    rows = [form(f"question {i}") for i in range(100)]
    table = pyarrow.Table.from_pylist([{**row, "source": "web"} for row in rows])
    parquet.write_table(table, tmp_path / "train.parquet", row_group_size=7)
    found = Conversations.read(tmp_path / "train.parquet")
    lines = Conversations.read(write(tmp_path / "train.jsonl", *rows))
    assert [c.messages for c in found] == [c.messages for c in lines]
    assert found.sha256 == hashlib.sha256((tmp_path / "train.parquet").read_bytes()).hexdigest()


def test_parquet_without_conversations_or_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    with pytest.raises(StageError, match="no column messages or conversations, but text") as raised:
        Conversations.read(path)
    assert raised.value.reason == Reason.DATA_UNREADABLE
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StageError, match="no whole Parquet file"):
        Conversations.read(path)


def test_parquet_without_pyarrow_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StageError, match="needs pyarrow"):
        Conversations.read(tmp_path / "train.parquet")


def question(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_prompt_is_a_conversation_of_one_question_in_whatever_form(tmp_path: Path) -> None:
    lines = [{"prompt": "one", "id": 1}, question("one"), {"prompt": question("two")["messages"]}, sharegpt("three")]
    lines[-1]["conversations"] = [{"from": "human", "value": "three"}]
    found = Conversations.read(write(tmp_path / "x.jsonl", *lines), reading=PROMPTS)
    assert found.dropped == {"duplicate": 1}
    assert sorted(c.messages[0]["content"] for c in found) == ["one", "three", "two"]
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "one"}, {"prompt": "two"}]), tmp_path / "x.parquet")
    rows = Conversations.read(tmp_path / "x.parquet", reading=PROMPTS)
    assert {c.digest for c in rows} < {c.digest for c in found}


def test_of_a_row_that_has_a_conversation_and_its_first_question_the_conversation_is_read(tmp_path: Path) -> None:
    """UltraChat has both. Of its Parquet first questions alone were asked, and what came of it by a hub could not be read at all."""
    more = [*talk("one")["messages"], *talk("two")["messages"]]  # type: ignore[misc]
    rows: list[dict[str, object]] = [
        {"prompt": "one", "messages": more},
        {"prompt": "three", **talk("three")},
        {"prompt": "four"},
    ]
    table = pyarrow.Table.from_pylist([{"messages": None, **row} for row in rows])

    def given(count: int) -> None:
        parquet.write_table(table.slice(0, count), tmp_path / "x.parquet")
        (tmp_path / "joined.jsonl").write_bytes(b"".join(forms.lines(tmp_path / "x.parquet")))

    given(3)
    files = [tmp_path / "x.parquet", tmp_path / "joined.jsonl", write(tmp_path / "x.jsonl", *rows)]
    for file in files:
        asked = Conversations.read(file, reading=QUESTIONS)
        assert sorted(message["content"] for one in asked for message in one.messages) == [
            "four",
            "one",
            "three",
            "two",
        ]
    given(2)
    for file in files[:2]:
        assert sorted(len(one.messages) for one in Conversations.read(file)) == [2, 4]


def test_what_is_no_question_is_refused_by_the_field_that_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", question("one"), talk("two"))
    with pytest.raises(StageError, match=r"data\.prompts: .*line 2.*belongs into data\.conversations"):
        Conversations.read(path, reading=PROMPTS)
    path = write(tmp_path / "x.jsonl", {"prompt": "one"})
    refused(lambda: Conversations.read(path), "data.conversations", "'messages' is missing")


def test_without_their_answers_conversations_that_ask_the_same_are_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", talk("one", "yes"), talk("one", "no"), {"prompt": "one"}, talk("two"))
    found = Conversations.read(path, reading=QUESTIONS)
    assert found.dropped == {"duplicate": 2}
    assert sorted([m["role"] for m in c.messages] for c in found) == [["user"], ["user"]]


def test_answers_to_come_are_reckoned_with_as_long_as_they_may_get(tmp_path: Path) -> None:
    twice = {"messages": [*talk("a")["messages"], {"role": "user", "content": "b"}]}  # type: ignore[misc]
    found = Conversations.read(write(tmp_path / "x.jsonl", twice), reading=QUESTIONS)
    assert found.expected_tokens(4096) == 2 * (1 + 8)
    assert found.expected_tokens(4096, answer_tokens=100) == 2 * (1 + 8) + 2 * 100
    assert found.expected_tokens(128, answer_tokens=100) == 128


def test_an_assistants_reasoning_stays_and_is_part_of_the_conversation(tmp_path: Path) -> None:
    thought = talk("one")
    thought["messages"][1]["reasoning_content"] = "hm"  # type: ignore[index]
    empty = talk("one")
    empty["messages"][1]["reasoning_content"] = None  # type: ignore[index]
    found = Conversations.read(write(tmp_path / "x.jsonl", talk("one"), thought, empty))
    assert (len(found), found.dropped) == (2, {"duplicate": 1})
    assert {c.messages[1].get("reasoning_content") for c in found} == {"hm", None}


@pytest.mark.parametrize("name", ["reasoning", "thinking"])
def test_reasoning_by_another_servers_word_is_the_same_reasoning(tmp_path: Path, name: str) -> None:
    said, same = talk("one"), talk("one")
    said["messages"][1][name] = "hm"  # type: ignore[index]
    same["messages"][1]["reasoning_content"] = "hm"  # type: ignore[index]
    both = json.loads(json.dumps(said).replace('"hm"', '"hm", "reasoning_content": "hm"'))
    found = Conversations.read(write(tmp_path / "x.jsonl", said, same, both))
    assert [one.messages[1]["reasoning_content"] for one in found] == ["hm"]
    assert found.dropped == {"duplicate": 2}


@pytest.mark.parametrize(
    ("changes", "field", "answers"),
    [
        ({"conversations": True}, "data.conversations", True),
        ({"conversations": True, "regenerate": Regenerate()}, "data.conversations", False),
        ({"prompts": True, "regenerate": Regenerate()}, "data.prompts", False),
        ({"dataset": True}, "data.dataset", True),
        ({"dataset": True, "regenerate": Regenerate()}, "data.dataset", False),
    ],
)
def test_the_objects_data_is_read_as_the_object_says(
    tmp_path: Path, changes: dict[str, object], field: str, answers: bool
) -> None:
    path = str(write(tmp_path / "x.jsonl", question("one"), question("two")))
    named = {name: path if value is True else value for name, value in changes.items()}
    found = Conversations.of(DataConfig.model_validate({"max_length": 64, "holdout": 0.1, **named}))
    assert (found.reading.field, found.reading.answers, len(found)) == (field, answers, 2)
