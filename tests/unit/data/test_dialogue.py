"""The target's own answers are learned from token by token, as it produced them, in the history that a server would see."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.data.conversations import Conversation, Message, UnusableError
from eagle3_draft.data.dialogue import NO_QUESTION, QUESTION_TOO_LONG, Answer, Dialogue
from eagle3_draft.data.rendering import Renderer
from eagle3_draft.data.template import TEMPLATE_REFUSED, TOOLS_LEFT_OUT
from eagle3_draft.data.tools import Tool
from unit.data.test_rendering import CHANNELS, CHATML, HARMONY, LLAMA3, MISTRAL, OPENED_THINKING, SPECIAL, bytelevel

QUESTIONS: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "user", "content": "And of Spain?"},
]

#: Drops the reasoning of every answer but the last, and asks for it in a field of its own.
REASONING = (
    "{% set last = messages | length - 1 %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 == last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TOKENIZER: Any = bytelevel()
ENDS = {name: TOKENIZER.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|eot_id|>", "</s>")}


def tokens(text: str) -> list[int]:
    ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return ids


def dialogue(
    template: str, *, messages: Sequence[Message] = QUESTIONS, max_length: int = 4096, max_tokens: int = 256
) -> Dialogue:
    return Dialogue(Conversation(list(messages), b"\1" * 32), Renderer(TOKENIZER, template, max_length), max_tokens)


def said(text: str, end: str = "<|im_end|>") -> Answer:
    return Answer([*tokens(text), ENDS[end]], ended=True)


def text(ids: Sequence[int]) -> str:
    made: str = TOKENIZER.decode(list(ids), clean_up_tokenization_spaces=False)
    return made


def spoken(made: Dialogue) -> list[int]:
    """What is learned from, in order."""
    return [
        token for one in made.sequences() for token, marked in zip(one.input_ids, one.loss_mask, strict=True) if marked
    ]


def test_each_question_is_answered_with_the_answers_before_it_in_its_history() -> None:
    made = dialogue(CHATML)
    assert made.prompt is not None
    assert text(made.prompt).endswith("capital of France?<|im_end|>\n<|im_start|>assistant\n")
    made.take(said("Paris."))
    assert text(made.prompt).endswith(
        "Paris.<|im_end|>\n<|im_start|>user\nAnd of Spain?<|im_end|>\n<|im_start|>assistant\n"
    )
    made.take(said("Madrid."))
    assert made.prompt is None
    (whole,) = made.sequences()
    expected = [*tokens("Paris."), ENDS["<|im_end|>"], *tokens("Madrid."), ENDS["<|im_end|>"]]
    assert spoken(made) == expected
    assert text(whole.input_ids).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert [answer.ended for answer in made.answers] == [True, True]


def test_tokens_that_the_tokenizer_would_not_make_are_learned_from_as_they_were_produced() -> None:
    made = dialogue(CHATML)
    assert tokens("is") != tokens("i") + tokens("s")
    odd = Answer([*tokens("i"), *tokens("s"), ENDS["<|im_end|>"]], ended=True)
    made.take(odd)
    made.take(said("Madrid."))
    first, second = made.sequences()
    assert first.input_ids[-3:].tolist() == list(odd.ids)
    assert first.loss_mask.tolist()[-4:] == [0, 1, 1, 1]
    # A server renders the text, and so does the second turn's history; nothing of it is learned from again
    assert text(second.input_ids).count("is<|im_end|>") == 1
    assert sum(second.loss_mask) == len(tokens("Madrid.")) + 1


def test_reasoning_that_the_template_drops_from_history_begins_a_new_sequence() -> None:
    made = dialogue(REASONING)
    made.take(said("<think>\nFrance? Paris.\n</think>\n\nParis."))
    made.take(said("<think>\nSpain.\n</think>\n\nMadrid."))
    first, second = made.sequences()
    assert text(first.input_ids).endswith("<think>\nFrance? Paris.\n</think>\n\nParis.<|im_end|>")
    assert "France? Paris." not in text(second.input_ids)
    assert text(second.input_ids).endswith("<think>\nSpain.\n</think>\n\nMadrid.<|im_end|>")


def test_reasoning_whose_beginning_stands_in_the_prompt_is_told_from_the_answer() -> None:
    made = dialogue(REASONING.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"))
    made.take(said("France? Paris.\n</think>\n\nParis."))
    assert made.prompt is not None
    assert "assistant\nParis.<|im_end|>" in text(made.prompt)


def test_a_template_that_knows_no_reasoning_gets_the_answer_whole_as_a_server_would_give_it() -> None:
    made = dialogue(CHATML)
    made.take(said("<think>\nFrance?\n</think>\n\nParis."))
    made.take(said("Madrid."))
    assert len(made.sequences()) == 1
    made = dialogue(OPENED_THINKING)
    made.take(said("France?\n</think>\n\nParis."))
    made.take(said("Madrid."))
    first, second = made.sequences()  # history has no <think> where the prompt had one
    assert len(first.input_ids) < len(second.input_ids)


@pytest.mark.parametrize("last", ["final", "commentary"])
def test_of_an_answer_in_channels_history_has_the_final_one_as_a_server_has_it(last: str) -> None:
    tokenizer: Any = bytelevel(special=[*SPECIAL, *HARMONY])
    asked = Conversation(QUESTIONS[1:], b"\1" * 32)
    made = Dialogue(asked, Renderer(tokenizer, CHANNELS, 4096), 256)
    answer = f"<|channel|>analysis<|message|>France? Paris.<|end|><|start|>assistant<|channel|>{last}<|message|>Paris.<|return|>"
    made.take(Answer(tokenizer(answer, add_special_tokens=False)["input_ids"], ended=True))
    assert made.texts == [answer.removesuffix("<|return|>")]
    (sequence,) = made.sequences()
    assert tokenizer.decode(list(sequence.input_ids)).endswith("<|start|>assistant" + answer)
    if last == "commentary":
        assert made.prompt is None
        return
    assert made.prompt is not None
    assert tokenizer.decode(made.prompt) == (
        "<|start|>user<|message|>What is the capital of France?<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|end|>"
        "<|start|>user<|message|>And of Spain?<|end|><|start|>assistant"
    )


@pytest.mark.parametrize(("template", "end"), [(LLAMA3, "<|eot_id|>"), (MISTRAL, "</s>")])
def test_other_templates_go_on_with_the_same_tokens(template: str, end: str) -> None:
    made = dialogue(template, messages=QUESTIONS[1:])
    made.take(said("Paris.", end))
    made.take(said("Madrid.", end))
    assert spoken(made) == [*tokens("Paris."), ENDS[end], *tokens("Madrid."), ENDS[end]]


def test_tools_are_offered_with_each_question_and_a_call_which_nobody_carries_out_ends_the_conversation() -> None:
    tools: list[Tool] = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    offering = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + CHATML
    asked = Conversation([*QUESTIONS, QUESTIONS[-1]], b"\1" * 32, tools)

    made = Dialogue(asked, Renderer(TOKENIZER, offering, 4096), 256)
    made.take(said("Paris."))
    assert made.prompt is not None
    assert text(made.prompt).startswith("find <|im_start|>system")
    made.take(said('{"name": "find", "arguments": {}}'))
    assert made.prompt is None
    assert spoken(made) == [
        token for answer in ("Paris.", '{"name": "find", "arguments": {}}') for token in said(answer).ids
    ]

    without = Dialogue(asked, Renderer(TOKENIZER, CHATML, 4096), 256)
    with pytest.raises(UnusableError, match=TOOLS_LEFT_OUT):
        without.sequences()


def test_a_cut_answer_is_kept_without_an_end_and_ends_the_conversation() -> None:
    made = dialogue(CHATML, max_tokens=5)
    assert made.room == 5
    cut = Answer(tokens("Paris")[:2], ended=False)
    made.take(cut)
    assert made.prompt is None
    assert spoken(made) == list(cut.ids)


def test_a_question_that_leaves_no_room_ends_the_conversation() -> None:
    opening = dialogue(CHATML).prompt
    assert opening is not None
    made = dialogue(CHATML, max_length=len(opening) + 10)
    assert made.room == 10
    made.take(said("Paris."))
    assert made.prompt is None
    assert len(made.sequences()) == 1
    assert made.cut


@pytest.mark.parametrize(
    ("template", "messages", "max_length", "why"),
    [
        (CHATML, QUESTIONS[:1], 4096, NO_QUESTION),
        (CHATML, [], 4096, NO_QUESTION),
        (CHATML, QUESTIONS, 8, QUESTION_TOO_LONG),
        (MISTRAL, QUESTIONS, 4096, TEMPLATE_REFUSED),
    ],
)
def test_what_cannot_be_answered_says_why(template: str, messages: list[Message], max_length: int, why: str) -> None:
    made = dialogue(template, messages=messages, max_length=max_length)
    assert made.prompt is None
    with pytest.raises(UnusableError, match=why):
        made.sequences()


def test_an_answer_that_nobody_asked_for_or_that_has_no_room_is_refused() -> None:
    made = dialogue(CHATML, max_tokens=3)
    with pytest.raises(ValueError, match="too long"):
        made.take(said("Paris, of course."))
    made.take(Answer(tokens("P"), ended=False))
    with pytest.raises(ValueError, match="not asked for"):
        made.take(said("x"))


def test_each_answer_has_a_seed_of_its_own_and_always_the_same() -> None:
    made, again, other = dialogue(CHATML), dialogue(CHATML), dialogue(CHATML)
    seeds = [made.seed(0), made.seed(1)]
    made.take(said("Paris."))
    assert len({*seeds, made.seed(0)}) == 3
    assert again.seed(0) == seeds[0]
    assert other.seed(1) == seeds[1]
    assert all(0 <= seed < 2**31 for seed in seeds)


@given(
    st.lists(st.text(max_size=12), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(8, 260), max_size=8), min_size=4, max_size=4),
    st.sampled_from([CHATML, LLAMA3, REASONING]),
)
def test_what_is_learned_from_is_what_was_produced_whatever_that_is(
    questions: list[str], produced: list[list[int]], template: str
) -> None:
    made = dialogue(
        template, messages=[{"role": "user", "content": question} for question in questions], max_length=200
    )
    prompts = []
    for ids in produced:
        if made.prompt is None:
            break
        prompts.append(made.prompt)
        answer = [*ids, ENDS["<|im_end|>"]]
        made.take(Answer(answer, ended=True) if len(answer) <= made.room else Answer(ids[: made.room], ended=False))
    try:
        sequences = made.sequences()
    except UnusableError:
        assert not made.answers
        return
    assert spoken(made) == [token for answer in made.answers for token in answer.ids]
    for one in sequences:
        assert len(one.input_ids) <= 200
        # Each run of produced tokens stands right after a prompt, which is all that was before it
        starts = [i for i, mark in enumerate(one.loss_mask) if mark and not (i and one.loss_mask[i - 1])]
        assert all(one.input_ids[:start].tolist() in prompts for start in starts)
