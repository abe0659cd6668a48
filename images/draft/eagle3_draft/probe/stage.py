"""The order of a probe, and its artifact.

1. Read back the arguments.
2. Warm up, empty the prefix cache, then send the prompts at the asked concurrency: this run alone is timed.
3. Stream a few of them at the same concurrency, for the latencies. Streaming costs the server an event a step, more of
   them without speculation than with, so the timed run does not stream.
4. At each further load in turn: warm up, empty the cache, send the prompts. That takes no longer than an answer lasts, times the
   waves of requests: prompts / load of them, two at least, and one to warm up.
5. The plain server: answer all prompts again, with the likeliest tokens of each position. These answers are the baseline;
   how they differ from the timed ones is what the server differs from itself. Then it computes them once more as parts of
   prompts: how far that moves its logits is its rounding (``lossless``).
6. Send conversations through the server's own chat template and compare the length with our rendering.
7. See whether anybody else was served meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eagle3_api.artifacts import ANSWERS, REPORT
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, LoadResult, ProbeConfig, ProbeResult
from eagle3_api.manifest import Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.files import write_atomic
from eagle3_draft.probe import arguments, lossless, measure, prompts
from eagle3_draft.probe.lossless import Answer, Deviation
from eagle3_draft.probe.measure import Latency, Throughput
from eagle3_draft.probe.prompts import Prompt
from eagle3_draft.probe.server import Counters, Rendered, Server
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.storage import artifacts

WARM_UP_REQUESTS = 2
#: Prompts that are streamed for the latencies, and conversations that go through the server's chat template.
STREAMED = 8
CONVERSATIONS = 4
#: Of the context, which SGLang keeps from prompts: it refuses one of as many tokens as the context has positions, less six.
RESERVED = 7
#: Tokens of an answer that are computed once more, one answer at a time: the server holds their logits of the whole
#: vocabulary at once, beside everything else that fills its GPU.
PREFILLED = 128
#: Tokens in which a chat template says what day it is, at most.
DAY_TOKENS = 16


@dataclass(frozen=True)
class _Baseline:
    """What the plain server's probe left."""

    key: str
    result: ProbeResult
    answers: dict[int, Answer]


@dataclass(frozen=True)
class _Template:
    """How the server renders conversations, against how the prompts were rendered."""

    mismatch: str = ""
    #: Why it could not be compared.
    unknown: str = ""


@dataclass(frozen=True)
class _Seen:
    """What was measured."""

    timed: Throughput
    latency: Latency
    #: By further loads, in order.
    further: dict[int, Throughput]
    #: As published: of a plain server with the tokens near its own.
    answers: list[Answer]
    #: Of the plain server.
    rounding: float
    #: The largest gap that is a tie.
    epsilon: float
    compared: int
    deviations: list[Deviation]
    template: _Template
    foreign_requests: int
    #: Prompts were prefilled, not taken from the server's cache, at each load.
    flushed: bool


def run(config: ProbeConfig) -> ProbeResult:
    """Measure the server, publish what was seen, and return the numbers.

    A probe that is finished is not repeated: its stored numbers are returned. One that shared the server with other
    requests is returned but not published, so that the next try measures anew.

    Raises:
        StageError: prompts or baseline cannot be used (CorruptArtifact, ProbeError: not tried again); the server cannot be
            reached or goes away (ProbeError: tried again).
    """
    folder = Path(config.folder)
    if artifacts.finished(folder, config.key) is not None:
        return _stored(folder)
    given = prompts.load(Path(config.prompts), config.prompts_digest)
    baseline = _baseline(config)
    server = Server(config.url)
    server.wait()
    info = server.info()
    chosen = prompts.select(given, count=config.count, room=_room(info, config.max_tokens))
    seen = _measure(config, server, chosen, baseline, info.get("dtype"))
    result = _result(config, info, seen, baseline)
    if not result.foreign_requests:
        _publish(config, info, chosen, seen, result, baseline)
    return result


def _room(info: dict[str, Any], max_tokens: int) -> int | None:
    """The longest prompt that leaves room for an answer, also where prompt and answer are sent as one prompt."""
    context = info.get("context_length")
    return context - max_tokens - RESERVED if isinstance(context, int) else None


def _measure(
    config: ProbeConfig, server: Server, chosen: list[Prompt], baseline: _Baseline | None, dtype: object
) -> _Seen:
    before = server.counters()
    requests = _Requests(server, chosen, config)
    timed, flushed = requests.timed(config.concurrency)
    flushed = server.flush() and flushed
    latency = requests.streamed()
    further = {}
    for load in config.loads:
        further[load], emptied = requests.timed(load)
        flushed = emptied and flushed

    # Prompts may have been sent more than once; the first answers count
    first = {prompt.index: answer.output_ids for prompt, answer in zip(chosen, timed.answers, strict=False)}
    if baseline is None:
        answers = requests.with_near_tokens()
        rounding = requests.rounding(answers)
        reference = {answer.prompt: answer for answer in answers}
    else:
        answers = [Answer(prompt=index, output_ids=output_ids) for index, output_ids in first.items()]
        rounding, reference = baseline.result.rounding, baseline.answers
    compared = [index for index in first if index in reference]
    epsilon = lossless.epsilon(dtype, rounding)
    found = (lossless.deviation(reference[index], first[index], epsilon) for index in compared)

    return _Seen(
        timed=timed,
        latency=latency,
        further=further,
        answers=answers,
        rounding=rounding,
        epsilon=epsilon,
        compared=len(compared),
        deviations=[deviation for deviation in found if deviation is not None],
        template=requests.template(),
        foreign_requests=_foreign(before, server.counters(), requests),
        flushed=flushed,
    )


class _Requests:
    """Everything that this probe sends, counted: what the server counts beyond it is somebody else's."""

    def __init__(self, server: Server, chosen: list[Prompt], config: ProbeConfig) -> None:
        self.requests = 0
        self.tokens = 0
        self._server = server
        self._chosen = chosen
        self._max_tokens = config.max_tokens
        self._concurrency = config.concurrency
        self._streamed = measure.repeated(chosen[:STREAMED], config.concurrency)
        of_baseline = 0 if config.baseline else 2 * len(chosen)
        by_loads = sum(
            _warm_up_requests(load) + len(measure.repeated(chosen, load))
            for load in (config.concurrency, *config.loads)
        )
        self._progress = ProgressReporter(by_loads + len(self._streamed) + of_baseline + CONVERSATIONS, "requests")

    def timed(self, load: int) -> tuple[Throughput, bool]:
        """All prompts at a load, and whether the server's cache was emptied before.

        The server is warmed up first, that kernels be compiled and graphs be captured for as many requests together.
        """
        asked = measure.repeated(self._chosen, load)
        self._generated(asked[: _warm_up_requests(load)], load)
        flushed = self._server.flush()
        return self._generated(asked, load), flushed

    def _generated(self, asked: list[Prompt], load: int) -> Throughput:
        answers, seconds = measure.at_concurrency(
            lambda prompt: self._server.generate(prompt.input_ids, self._max_tokens),
            asked,
            load,
            lambda answer: self._count(answer.tokens),
        )
        return Throughput(answers, seconds)

    def streamed(self) -> Latency:
        """A few prompts, streamed."""
        answers, _ = measure.at_concurrency(
            lambda prompt: self._server.stream(prompt.input_ids, self._max_tokens),
            self._streamed,
            self._concurrency,
            lambda answer: self._count(answer.tokens),
        )
        return measure.latency(answers)

    def with_near_tokens(self) -> list[Answer]:
        """All prompts once more, with how close each decision was."""
        answers, _ = measure.at_concurrency(
            lambda prompt: self._server.generate(prompt.input_ids, self._max_tokens, best=True),
            self._chosen,
            self._concurrency,
            lambda answer: self._count(answer.tokens),
        )
        return [
            Answer(
                prompt=prompt.index,
                output_ids=answer.output_ids,
                near=[_below_the_best(position) for position in answer.best],
            )
            for prompt, answer in zip(self._chosen, answers, strict=True)
        ]

    def rounding(self, answers: list[Answer]) -> float:
        """How far the server moves its own logits between decoding and prefill."""
        largest = 0.0
        for prompt, answer in zip(self._chosen, answers, strict=True):
            again = self._server.prefilled(prompt.input_ids, answer.output_ids[:PREFILLED])
            self._count(1)
            decoded = [{token: -far for token, far in position.items()} for position in answer.near[:PREFILLED]]
            largest = max(largest, lossless.rounding(decoded, again))
        return largest

    def template(self) -> _Template:
        """A few conversations through the server's own chat template."""
        unknown = ""
        for prompt in self._chosen[:CONVERSATIONS]:
            rendered = self._server.rendered(prompt.messages, prompt.tools)
            if isinstance(rendered, str):
                return _Template(unknown=rendered)
            self._count(1)
            if not (mismatch := _mismatch(rendered, prompt.input_ids)):
                continue
            if prompt.day is None or not _as_on_another_day(rendered, prompt.input_ids):
                return _Template(mismatch=mismatch)
            unknown = f"the template says what day it is, which was {prompt.day} for training"
        return _Template(unknown=unknown)

    def _count(self, tokens: int) -> None:
        self.requests += 1
        self.tokens += tokens
        self._progress.update(self.requests)


def _warm_up_requests(load: int) -> int:
    return max(WARM_UP_REQUESTS, load)


def _mismatch(rendered: Rendered, learnt: list[int]) -> str:
    """How what the server's own chat template made of a conversation differs from what was learned; empty where it does not."""
    tokens = rendered.tokens if rendered.ids is None else len(rendered.ids)
    if tokens != len(learnt):
        return (
            f"a held-out conversation has {tokens} tokens by the server's own chat template and {len(learnt)} as it "
            "was rendered for training"
        )
    if rendered.ids is None or rendered.ids == learnt:
        return ""
    first = _alike(rendered.ids, learnt)
    return (
        f"token {first} of a held-out conversation is {rendered.ids[first]} by the server's own chat template and "
        f"{learnt[first]} as it was rendered for training"
    )


def _as_on_another_day(rendered: Rendered, learnt: Sequence[int]) -> bool:
    """Whether the difference is as small as that between two days: in a few tokens, or in one place where their number differs."""
    ids = rendered.ids
    if ids is None:
        return abs(rendered.tokens - len(learnt)) <= DAY_TOKENS
    if len(ids) == len(learnt):
        return sum(one != other for one, other in zip(ids, learnt, strict=True)) <= DAY_TOKENS
    before = _alike(ids, learnt)
    after = _alike(ids[before:][::-1], learnt[before:][::-1])
    return max(len(ids), len(learnt)) - before - after <= DAY_TOKENS


def _alike(ids: Sequence[int], learnt: Sequence[int]) -> int:
    """How many tokens they begin with in common."""
    return sum(1 for _ in takewhile(bool, map(eq, ids, learnt)))


def _below_the_best(position: dict[int, float]) -> dict[int, float]:
    best = max(position.values(), default=0.0)
    return {token: round(best - log_probability, 6) for token, log_probability in position.items()}


def _foreign(before: Counters | None, after: Counters | None, ours: _Requests) -> int:
    """Finished requests that somebody else sent.

    Requests of one token are none: they cost no decoding, and a request that the server refuses is counted as one. A
    Service with several pods may answer from one that saw less than was sent; nothing foreign can be told then.
    """
    if before is None or after is None:
        return 0
    requests = after.requests - before.requests - ours.requests
    decoded = (after.tokens - after.requests) - (before.tokens - before.requests) - (ours.tokens - ours.requests)
    return max(1, round(requests)) if decoded > 0 and requests > 0 else 0


def _result(config: ProbeConfig, info: dict[str, Any], seen: _Seen, baseline: _Baseline | None) -> ProbeResult:
    timed = seen.timed
    plain = _plain_tokens_per_second(baseline)
    return ProbeResult(
        **_at_load(config.concurrency, timed, plain).model_dump(),
        loads=[_at_load(load, measured, plain) for load, measured in seen.further.items()],
        speculative=config.expected_arguments.get("speculative_algorithm") is not None,
        prompts_digest=config.prompts_digest,
        requests=timed.requests,
        tokens=timed.tokens,
        seconds=round(timed.seconds, 4),
        verify_steps=timed.verify_steps,
        first_token_seconds=round(seen.latency.first_token_seconds, 5),
        inter_token_seconds=round(seen.latency.inter_token_seconds, 6),
        compared=seen.compared,
        different=sum(found.kind == "different" for found in seen.deviations),
        ties=sum(found.kind == "tie" for found in seen.deviations),
        baseline_different=baseline.result.different if baseline else 0,
        rounding=round(seen.rounding, 6),
        tie=round(seen.epsilon, 6),
        argument_mismatches=arguments.mismatches(config.expected_arguments, info),
        template_mismatch=seen.template.mismatch,
        foreign_requests=seen.foreign_requests,
    )


def _plain_tokens_per_second(baseline: _Baseline | None) -> dict[int, float]:
    """The plain server's tokens/s, by loads."""
    return {} if baseline is None else {at.concurrency: at.tokens_per_second for at in baseline.result.at_loads}


def _at_load(load: int, measured: Throughput, plain: Mapping[int, float]) -> LoadResult:
    baseline = plain.get(load)
    return LoadResult(
        concurrency=load,
        tokens_per_second=round(measured.tokens_per_second, 2),
        accept_length=_rounded(measured.accept_length),
        break_even=_rounded(measure.break_even(measured, baseline)) if baseline else None,
        baseline_tokens_per_second=baseline,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# ----------------------------------------------------------------------------------------------------------- artifact


def _publish(
    config: ProbeConfig,
    info: dict[str, Any],
    chosen: list[Prompt],
    seen: _Seen,
    result: ProbeResult,
    baseline: _Baseline | None,
) -> Manifest:
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [answer.model_dump_json(by_alias=True) + "\n" for answer in seen.answers]
    write_atomic(folder / ANSWERS, "".join(lines).encode())
    numbers = result.to_json()
    report = {
        "result": numbers,
        "revision": config.revision,
        "server": {"version": info.get("version"), "dtype": info.get("dtype")}
        | {name: info.get(name) for name in config.expected_arguments},
        "deviations": [found.to_json() for found in seen.deviations],
        "answers": [
            {"prompt": prompt.index, "promptTokens": len(prompt.input_ids), "tokens": answer.tokens}
            | ({"verifySteps": answer.verify_steps} if answer.verify_steps else {})
            for prompt, answer in zip(chosen, seen.timed.answers, strict=False)
        ],
        "latency": asdict(seen.latency),
        "cacheFlushed": seen.flushed,
        "templateUnknown": seen.template.unknown,
    }
    write_atomic(folder / REPORT, json.dumps(report, indent=1, ensure_ascii=False).encode())
    return artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={"prompts": config.prompts_digest} | ({"baseline": baseline.key} if baseline else {}),
        numbers=numbers,
        provenance={"sglang": str(info.get("version")), "url": config.url},
    )


def _stored(folder: Path) -> ProbeResult:
    try:
        return ProbeResult.model_validate(json.loads(artifacts.verified(folder, REPORT).read_bytes())["result"])
    except (ValueError, KeyError) as error:
        raise _unusable(folder, f"{REPORT} is broken ({type(error).__name__})") from None


def _baseline(config: ProbeConfig) -> _Baseline | None:
    """The plain server's numbers and answers, measured with the same prompts at the same load."""
    if config.baseline is None:
        return None
    folder = Path(config.baseline)
    result = _stored(folder)
    if result.prompts_digest != config.prompts_digest:
        raise _unusable(folder, "it was measured with other prompts")
    if result.concurrency != config.concurrency:
        raise _unusable(folder, f"it was measured at concurrency {result.concurrency}, not {config.concurrency}")
    if missing := {*config.loads} - {at.concurrency for at in result.at_loads}:
        raise _unusable(folder, f"it was not measured at {' and '.join(map(str, sorted(missing)))} requests together")
    try:
        lines = artifacts.verified(folder, ANSWERS).read_text().splitlines()
        answers = [Answer.model_validate_json(line) for line in lines]
    except (ValidationError, UnicodeDecodeError):
        raise _unusable(folder, f"{ANSWERS} is broken") from None
    return _Baseline(artifacts.read(folder).key, result, {answer.prompt: answer for answer in answers})


def _unusable(folder: Path, what: str) -> StageError:
    return StageError(
        ExitCode.BAD_INPUT, Reason.PROBE_ERROR, f"the measurement of the server without speculation in {folder}: {what}"
    )
