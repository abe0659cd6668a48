"""Accept length, break-even and load."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.probe import measure
from eagle3_draft.probe.measure import Throughput
from eagle3_draft.probe.prompts import Prompt
from eagle3_draft.probe.server import Generated, Streamed


def answer(tokens: int, verify_steps: int) -> Generated:
    return Generated(output_ids=[7] * tokens, verify_steps=verify_steps, best=[])


def throughput(*answers: Generated, seconds: float) -> Throughput:
    return Throughput(list(answers), seconds)


def prompt(index: int) -> Prompt:
    return Prompt(index=index, messages=[], input_ids=[1])


def test_the_accept_length_is_over_all_requests_and_leaves_out_the_tokens_of_prefill() -> None:
    assert throughput(answer(16, 5), answer(4, 3), seconds=1).accept_length == 18 / 8


def test_a_useless_draft_with_answers_of_two_tokens_has_accept_length_one() -> None:
    assert throughput(*[answer(2, 1)] * 10, seconds=1).accept_length == 1


def test_without_verify_steps_there_is_neither_accept_length_nor_break_even() -> None:
    plain = throughput(answer(16, 0), seconds=1)
    assert plain.accept_length is None
    assert measure.break_even(plain, 90) is None


def test_break_even_is_the_plain_speed_over_the_verify_steps_a_second() -> None:
    # One H200: 451 tokens/s without a draft, 303 verify steps/s with one that is never accepted, 256 tokens an answer
    useless = throughput(answer(256, 255), seconds=255 / 303)
    assert measure.break_even(useless, 451) == pytest.approx(451 / 303 * 255 / 256)


answers = st.lists(st.tuples(st.integers(2, 300), st.floats(1, 6)), min_size=1, max_size=20)


@given(answers, st.floats(0.1, 100), st.floats(1, 1000))
def test_accept_length_over_break_even_is_the_speedup(
    lengths: list[tuple[int, float]], seconds: float, plain: float
) -> None:
    run = throughput(*(answer(n, max(1, round((n - 1) / length))) for n, length in lengths), seconds=seconds)
    even = measure.break_even(run, plain)
    assert run.accept_length is not None
    assert even is not None
    assert run.accept_length / even == pytest.approx(run.tokens_per_second / plain)


@given(answers, st.floats(0.001, 0.1), st.floats(0.001, 0.1))
def test_at_break_even_a_server_whose_time_goes_into_steps_is_as_fast_as_the_plain_one(
    lengths: list[tuple[int, float]], step: float, token: float
) -> None:
    """One request after the other: a verify step takes ``step`` seconds, a plain token ``token``, prefill nothing."""
    run = [answer(n, max(1, round((n - 1) / length))) for n, length in lengths]
    tokens, steps = sum(a.tokens for a in run), sum(a.verify_steps for a in run)
    even = measure.break_even(
        throughput(*run, seconds=steps * step), plain_tokens_per_second=tokens / ((tokens - len(run)) * token)
    )
    assert even == pytest.approx(step / token)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_requests_are_in_flight_as_asked_and_never_more(concurrency: int) -> None:
    together = threading.Barrier(concurrency, timeout=30)
    lock, flying, most = threading.Lock(), 0, 0

    def ask(asked: Prompt) -> int:
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        together.wait()
        with lock:
            flying -= 1
        return asked.index * 10

    seen: list[int] = []
    found, seconds = measure.at_concurrency(ask, [prompt(i) for i in range(6)], concurrency, seen.append)
    assert found == [0, 10, 20, 30, 40, 50]
    assert sorted(seen) == found
    assert most == concurrency
    assert seconds > 0


def test_one_failed_request_ends_the_measurement_with_its_error() -> None:
    def ask(asked: Prompt) -> int:
        if asked.index == 1:
            raise ValueError("broken")
        return asked.index

    with pytest.raises(ValueError, match="broken"):
        measure.at_concurrency(ask, [prompt(i) for i in range(4)], 2, lambda _: None)


def test_few_prompts_are_repeated_until_the_load_is_what_was_asked() -> None:
    given = [prompt(i) for i in range(3)]
    assert [p.index for p in measure.repeated(given, 1)] == [0, 1, 2]
    assert [p.index for p in measure.repeated(given, 4)] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_latencies_are_medians_and_ignore_answers_of_one_event() -> None:
    found = measure.latency([Streamed(1, 0.1, None), Streamed(9, 0.3, 0.02), Streamed(9, 0.2, 0.04)])
    assert found.first_token_seconds == 0.2
    assert found.inter_token_seconds == pytest.approx(0.03)
    assert measure.latency([Streamed(1, 0.1, None)]).inter_token_seconds == 0
