"""Requests at a concurrency, and what follows from their times and counts."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TypeVar

from eagle3_draft.probe.prompts import Prompt
from eagle3_draft.probe.server import Generated, Streamed

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Throughput:
    """A run of requests, all answered."""

    answers: list[Generated]
    seconds: float

    @property
    def requests(self) -> int:
        """Answers."""
        return len(self.answers)

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def verify_steps(self) -> int:
        """Of all answers; 0 without speculation."""
        return sum(answer.verify_steps for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together, over the time from the first's start to the last's end."""
        return self.tokens / self.seconds

    @property
    def accept_length(self) -> float | None:
        """Tokens of a verify step, the target's own included: (tokens - requests) / verify steps.

        An answer's first token comes from prefill. SGLang's own ``spec_accept_length`` counts it, and reads 2.0 for a
        useless draft with answers of two tokens. The last step of an answer that is cut at its limit counts with the
        tokens that were kept.
        """
        if not self.verify_steps:
            return None
        return (self.tokens - self.requests) / self.verify_steps


@dataclass(frozen=True)
class Latency:
    """Medians over streamed answers, in seconds."""

    first_token_seconds: float
    inter_token_seconds: float


def break_even(speculative: Throughput, plain_tokens_per_second: float) -> float | None:
    """L*: the accept length at which this server, at this load, is exactly as fast as the one without speculation.

    A run of R answers with T tokens in S seconds made V verify steps, v = V / S a second, at the accept length
    L = (T - R) / V. Were the draft accepted at another length x, each answer would still have one token from prefill and
    its other T / R - 1 by verify steps: (T - R) / x steps in all. What a step costs does not depend on how many of its
    tokens are accepted, so at v steps a second that takes (T - R) / (x v) seconds, and

        tokens/s (x) = T / ((T - R) / (x v)) = x v T / (T - R)

    which at x = L is T / S, as measured. It equals the plain server's P tokens/s at

        L* = P / v * (T - R) / T = L * P / (T / S)

    P / v alone is too large by the tokens that come from prefill: twice, for answers of two tokens. And L / L* is the
    speedup over the plain server, so "accept length below L* times minSpeedup" and "speedup below minSpeedup" are one.

    The time of prefill is counted as if it shrank with x like the steps do. It does not; where it is the share f of S, the
    true break-even is L (1 - f) / (P S / T - f), which for a draft that gains is smaller than L*. So L* is on the safe
    side, by little: prefill is the smaller part wherever speculation is worth anything.

    Returns:
        None where there was no verify step.
    """
    length = speculative.accept_length
    if length is None:
        return None
    return length * plain_tokens_per_second / speculative.tokens_per_second


def at_concurrency(
    ask: Callable[[Prompt], Answered],
    prompts: Sequence[Prompt],
    concurrency: int,
    answered: Callable[[Answered], None],
) -> tuple[list[Answered], float]:
    """Ask for all prompts, so many at a time.

    Args:
        ask: sends one prompt and returns its answer.
        prompts: in order.
        concurrency: requests in flight.
        answered: called with each answer, from this thread.

    Returns:
        The answers in the prompts' order, and the seconds from the first's start to the last's end.
    """
    start = threading.Barrier(concurrency + 1)
    with ThreadPoolExecutor(concurrency) as pool:
        # Threads exist before the clock starts
        for _ in range(concurrency):
            pool.submit(start.wait)
        start.wait()
        began = time.perf_counter()
        asked = [pool.submit(ask, prompt) for prompt in prompts]
        try:
            for future in as_completed(asked):
                answered(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in asked], time.perf_counter() - began


def repeated(prompts: Sequence[Prompt], concurrency: int) -> list[Prompt]:
    """The prompts, from the first again until each of the requests in flight has been followed by another."""
    requests = max(len(prompts), 2 * concurrency)
    return [prompts[index % len(prompts)] for index in range(requests)]


def latency(streamed: Sequence[Streamed]) -> Latency:
    """The medians of streamed answers; 0 between tokens where no answer had two."""
    gaps = [answer.inter_token_seconds for answer in streamed if answer.inter_token_seconds is not None]
    return Latency(
        first_token_seconds=statistics.median(answer.first_token_seconds for answer in streamed),
        inter_token_seconds=statistics.median(gaps) if gaps else 0.0,
    )
