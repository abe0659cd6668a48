import itertools
import json
import random

import pytest

from tiny.grammar import GATE, NUMBERS, STRIDES, answer, conversations, question, stride_after, tokens


def numbers(words: list[str]) -> list[int]:
    return [int(word) for word in words if word not in STRIDES]


def test_an_answer_counts_on_and_announces_the_stride_that_the_number_decides() -> None:
    assert answer(60, "twos")[:6] == ["62", "64", "ones", "65", "66", "67"]


@pytest.mark.parametrize("stride", STRIDES)
def test_an_answer_is_never_empty_and_ends_before_it_would_pass_the_last_number(stride: str) -> None:
    for last in range(NUMBERS):
        counted = numbers(answer(last, stride))
        assert counted == sorted(counted)
        assert counted[0] == (last + STRIDES[stride]) % NUMBERS
        assert counted[-1] + max(STRIDES.values()) >= NUMBERS


def test_most_numbers_announce_nothing() -> None:
    announcing = [n for n in range(NUMBERS) if stride_after(n)]
    assert announcing == list(range(0, NUMBERS, GATE))


def test_the_text_has_entropy_only_where_a_stride_may_be_announced() -> None:
    rng = random.Random(0)
    drawn = [answer(40, "ones", rng) for _ in range(200)]
    likeliest = answer(40, "ones")
    announced = sum(made[: len(likeliest)] == likeliest for made in drawn)
    assert 0 < announced < len(drawn)
    for made in drawn:
        first = next((a for a, b in itertools.pairwise(made) if b in STRIDES), None)
        assert first is None or int(first) % GATE == 0


def test_the_same_seed_makes_the_same_conversations_and_another_seed_others() -> None:
    assert conversations(1, 20) == conversations(1, 20)
    assert conversations(1, 20) != conversations(2, 20)


def test_conversations_alternate_between_user_and_assistant_in_20_to_120_tokens() -> None:
    made = conversations(3, 300)
    for messages in made:
        assert 20 <= tokens(messages) <= 120
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(m["content"] for m in messages)
    assert {len(messages) // 2 for messages in made} == {1, 2, 3}


def test_a_conversation_is_one_line_of_json() -> None:
    (messages,) = conversations(4, 1)
    assert json.loads(json.dumps({"messages": messages}))["messages"] == messages


def test_go_on_continues_from_the_last_number() -> None:
    for messages in conversations(5, 300):
        for (_, before), (asked, after) in itertools.pairwise(zip(messages[::2], messages[1::2], strict=True)):
            if asked["content"].startswith("go on in "):
                stride = asked["content"].removeprefix("go on in ")
                last = numbers(before["content"].split())[-1]
                assert numbers(after["content"].split())[0] == (last + STRIDES[stride]) % NUMBERS


def test_a_question_names_the_number_and_the_stride() -> None:
    assert question(7, "threes") == "count from 7 in threes"
