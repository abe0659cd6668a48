"""A probe whose server, prompts or baseline fail. The server is a stand-in that injects the faults; real SGLang is
probed in tests/sglang.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, LoadResult, Mismatch, ProbeConfig, Report, StageName
from eagle3_api.spec.probe import LOADS
from eagle3_draft import probe
from eagle3_draft.errors import StageError
from eagle3_draft.probe.server import Server
from eagle3_draft.storage import artifacts
from unit.probe.stand_in import DIE, Answer, FaultyServer, serving

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with serving(FaultyServer()) as made:
        yield made


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    lines = [{"messages": [{"role": "user", "content": "hi"}], "input_ids": ids} for ids in PROMPTS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def digest(prompts: Path) -> str:
    return hashlib.sha256((prompts / "prompts.jsonl").read_bytes()).hexdigest()


def config(server: FaultyServer, prompts: Path, **changes: Any) -> ProbeConfig:
    made: dict[str, Any] = {
        "owner": {"namespace": "llm", "name": "kimi", "uid": "u"},
        "key": "k0",
        "folder": str(prompts.parent / "probe" / "k0"),
        "revision": 0,
        "url": server.url,
        "prompts": str(prompts),
        "prompts_digest": digest(prompts),
        "expected_arguments": {"context_length": 1024, "speculative_algorithm": None},
        "concurrency": 1,
        "count": 8,
        "max_tokens": 8,
    }
    return ProbeConfig(**made | changes)


def speculative(server: FaultyServer, prompts: Path, **changes: Any) -> ProbeConfig:
    """The probe of a draft after the plain server's, whose artifact is the baseline."""
    plain = config(server, prompts)
    probe.run(plain)
    server.info["speculative_algorithm"] = "EAGLE3"
    server.verify_steps = 4
    made = {
        "key": "k1",
        "folder": str(prompts.parent / "probe" / "k1"),
        "baseline": plain.folder,
        "expected_arguments": {"speculative_algorithm": "EAGLE3"},
    }
    return config(server, prompts, **made | changes)


def failure(made: ProbeConfig) -> StageError:
    with pytest.raises(StageError) as raised:
        probe.run(made)
    return raised.value


# ------------------------------------------------------------------------------------------------------------ server


def test_a_server_that_cannot_be_reached_is_an_error_of_the_probe_to_be_tried_again() -> None:
    with serving(FaultyServer()) as gone:
        pass
    with pytest.raises(StageError) as raised:
        Server(gone.url, reach_seconds=0.1).wait()
    assert (raised.value.code, raised.value.reason) == (ExitCode.INTERRUPTED, Reason.PROBE_ERROR)
    assert "could not be reached" in raised.value.message


def test_a_server_that_is_not_ready_yet_is_waited_for(server: FaultyServer) -> None:
    answers = [(503, b"starting"), DIE]
    server.fault = lambda method, path, body: answers.pop() if answers else None
    Server(server.url, reach_seconds=5).wait()
    assert not answers


def test_a_server_that_dies_while_measured_is_a_crash_to_be_tried_again(server: FaultyServer, prompts: Path) -> None:
    server.fault = lambda method, path, body: DIE if server.requests >= 4 and path == "/generate" else None
    error = failure(config(server, prompts))
    assert (error.code, error.reason) == (ExitCode.ENGINE_CRASHED, Reason.PROBE_ERROR)
    assert "went away while it was measured" in error.message


def test_a_server_that_fails_a_request_is_a_crash_to_be_tried_again(server: FaultyServer, prompts: Path) -> None:
    server.fault = lambda method, path, body: (500, b"scheduler hit an exception") if path == "/generate" else None
    error = failure(config(server, prompts))
    assert (error.code, error.reason) == (ExitCode.ENGINE_CRASHED, Reason.PROBE_ERROR)
    assert "scheduler hit an exception" in error.message


def test_an_aborted_answer_is_not_taken_for_a_short_one(server: FaultyServer, prompts: Path) -> None:
    meta = {"completion_tokens": 1, "finish_reason": {"type": "abort", "message": "out of memory"}}
    aborted = json.dumps({"output_ids": [1], "meta_info": meta}).encode()
    server.fault = lambda method, path, body: (200, aborted) if path == "/generate" else None
    error = failure(config(server, prompts))
    assert error.code == ExitCode.ENGINE_CRASHED
    assert "out of memory" in error.message


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "the scheduler is gone"}}, ExitCode.ENGINE_CRASHED),
        ({"error": {"message": "overloaded", "code": 503}}, ExitCode.ENGINE_CRASHED),
        ({"error": {"message": "too long", "code": 400}}, ExitCode.BAD_INPUT),
    ],
)
def test_an_error_inside_a_stream_is_what_it_would_be_without_streaming(
    server: FaultyServer, event: dict[str, Any], code: ExitCode
) -> None:
    server.fault = lambda method, path, body: (200, b"data: " + json.dumps(event).encode() + b"\n\n")
    with pytest.raises(StageError, match=event["error"]["message"]) as failed:
        Server(server.url).stream([1, 2], 4)
    assert (failed.value.code, failed.value.reason) == (code, Reason.PROBE_ERROR)


@pytest.mark.parametrize("answer", [(400, b'{"error": "too long"}'), (200, b"<html>a proxy</html>"), (200, b"{}")])
def test_an_answer_that_trying_again_would_not_change_is_not_tried_again(
    server: FaultyServer, prompts: Path, answer: Answer
) -> None:
    server.fault = lambda method, path, body: answer if path == "/generate" else None
    error = failure(config(server, prompts))
    assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.PROBE_ERROR)
    assert answer[1].decode() in error.message


def test_a_connection_that_the_server_closed_while_idle_is_opened_again(server: FaultyServer) -> None:
    client = Server(server.url)
    closed: list[str] = []

    def close_once(method: str, path: str, body: dict[str, Any]) -> Answer | None:
        if path == "/server_info" and not closed:
            closed.append(path)
            return DIE
        return None

    server.fault = close_once
    client.wait()
    assert client.info() == server.info
    assert closed


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(StageError) as raised:
        Server("kimi-r1.llm:30000")
    assert raised.value.code == ExitCode.BAD_CONFIGURATION


# ---------------------------------------------------------------------------------------------------------- measuring


def test_a_finished_probe_is_not_repeated_and_needs_no_server(server: FaultyServer, prompts: Path) -> None:
    made = config(server, prompts)
    first = probe.run(made)
    server.asked.clear()
    assert probe.run(made) == first
    assert server.asked == []


def test_the_stages_report_fits_a_termination_message_whatever_differs(server: FaultyServer, prompts: Path) -> None:
    asked = {f"argument_{i}": "/models/" + "x" * 300 for i in range(20)}
    result = probe.run(config(server, prompts, expected_arguments=asked))
    assert len(result.argument_mismatches) == 8
    most = {"tokens_per_second": 123456.78, "accept_length": 12.3456, "break_even": 12.3456}
    loads = [LoadResult(concurrency=256, baseline_tokens_per_second=123456.78, **most) for _ in range(LOADS)]
    template = "token 12345 of a held-out conversation is 123456 by the server's own chat template and 123456 as it was rendered for training"
    result = result.model_copy(update={"loads": loads, "template_mismatch": template, **most})
    Report(stage=StageName.PROBE, key="k", ok=True, result=result.to_json()).dump()


def test_silently_adjusted_arguments_are_reported_and_the_server_is_measured_all_the_same(
    server: FaultyServer, prompts: Path
) -> None:
    server.info["max_running_requests"] = 48
    result = probe.run(config(server, prompts, expected_arguments={"max_running_requests": 64}))
    assert result.argument_mismatches == [Mismatch(name="max_running_requests", asked="64", got="48")]
    assert result.tokens == 3 * 8


def test_a_draft_is_compared_with_the_server_without_one(server: FaultyServer, prompts: Path) -> None:
    result = probe.run(speculative(server, prompts))
    assert result.speculative
    assert (result.verify_steps, result.accept_length) == (12, (24 - 3) / 12)
    assert (result.compared, result.different, result.ties) == (3, 0, 0)
    assert result.accept_length is not None
    assert result.break_even is not None
    assert result.baseline_tokens_per_second is not None
    speedup = result.tokens_per_second / result.baseline_tokens_per_second
    assert result.accept_length / result.break_even == pytest.approx(speedup, rel=0.01)


def test_each_load_is_compared_with_the_server_without_a_draft_at_that_load(
    server: FaultyServer, prompts: Path
) -> None:
    plain = config(server, prompts, loads=[2, 4, 6])
    baseline = probe.run(plain)
    assert [(at.accept_length, at.break_even, at.speedup) for at in baseline.at_loads] == [(None, None, None)] * 4
    server.info["speculative_algorithm"] = "EAGLE3"
    server.verify_steps = 4
    asked = {"baseline": plain.folder, "key": "k1", "folder": str(prompts.parent / "probe" / "k1"), "loads": [2, 6]}
    result = probe.run(config(server, prompts, expected_arguments={"speculative_algorithm": "EAGLE3"}, **asked))
    speeds = {at.concurrency: at.tokens_per_second for at in baseline.at_loads}
    assert [at.concurrency for at in result.at_loads] == [1, 2, 6]
    for at in result.at_loads:
        assert at.baseline_tokens_per_second == speeds[at.concurrency]
        assert at.accept_length == (8 - 1) / 4
        assert at.break_even is not None
        assert at.accept_length / at.break_even == pytest.approx(at.speedup, rel=0.01)


def test_answers_that_speculation_changed_are_counted(server: FaultyServer, prompts: Path) -> None:
    made = speculative(server, prompts)

    def another_token(method: str, path: str, body: dict[str, Any]) -> Answer | None:
        if body.get("input_ids") != PROMPTS[1]:
            return None
        text = json.loads(server._generate(body | {"stream": False}))
        text["output_ids"][3] = 99
        line = json.dumps(text).encode()
        return 200, b"data: " + line + b"\n\n" if body.get("stream") else line

    server.fault = another_token
    result = probe.run(made)
    assert (result.compared, result.different) == (3, 1)
    report = json.loads(artifacts.verified(Path(made.folder), "report.json").read_text())
    assert report["deviations"] == [{"prompt": 1, "position": 3, "kind": "different"}]


def test_answers_are_tied_as_far_as_the_server_without_speculation_moves_its_own_logits(
    server: FaultyServer, prompts: Path
) -> None:
    server.rounding = 0.4
    result = probe.run(speculative(server, prompts))
    assert result.rounding == pytest.approx(0.4)
    assert result.tie == pytest.approx(0.4)


def test_a_server_that_tells_of_fewer_positions_than_it_was_asked_for_is_named_with_the_numbers(
    server: FaultyServer, prompts: Path
) -> None:
    def short(method: str, path: str, body: dict[str, Any]) -> Answer | None:
        if "logprob_start_len" not in body:
            return None
        text = json.loads(server._generate(body))
        del text["meta_info"]["input_top_logprobs"][2:]
        return 200, json.dumps(text).encode()

    server.fault = short
    error = failure(config(server, prompts))
    assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.PROBE_ERROR)
    assert "answered for 2 positions of a prompt, but 8 were asked for" in error.message


def test_requests_of_somebody_else_are_counted_and_such_a_measurement_is_not_kept(
    server: FaultyServer, prompts: Path
) -> None:
    made = config(server, prompts)

    def disturb(method: str, path: str, body: dict[str, Any]) -> Answer | None:
        if body.get("stream") and not disturbed:
            disturbed.append(path)
            server.serve_somebody_else()
            server.serve_somebody_else()
        return None

    disturbed: list[str] = []
    server.fault = disturb
    assert probe.run(made).foreign_requests == 2
    assert artifacts.finished(Path(made.folder), made.key) is None
    assert probe.run(made).foreign_requests == 0
    assert artifacts.finished(Path(made.folder), made.key) is not None


def test_refused_requests_of_somebody_else_do_not_disturb(server: FaultyServer, prompts: Path) -> None:
    """SGLang counts a request that it refuses as one of one token."""

    def refuse(method: str, path: str, body: dict[str, Any]) -> Answer | None:
        if body.get("stream"):
            server.serve_somebody_else(tokens=1)
        return None

    server.fault = refuse
    assert probe.run(config(server, prompts)).foreign_requests == 0


def test_without_metrics_foreign_requests_are_not_made_up(server: FaultyServer, prompts: Path) -> None:
    server.fault = lambda method, path, body: (404, b"") if path == "/metrics" else None
    assert probe.run(config(server, prompts)).foreign_requests == 0


def test_another_chat_template_is_reported_with_both_lengths(server: FaultyServer, prompts: Path) -> None:
    server.chat_tokens = 7
    assert probe.run(config(server, prompts)).template_mismatch == (
        "a held-out conversation has 7 tokens by the server's own chat template and 3 as it was rendered for training"
    )


def test_the_tools_of_a_conversation_are_offered_to_the_server_too(server: FaultyServer, prompts: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    lines = [json.loads(line) for line in (prompts / "prompts.jsonl").read_text().splitlines()]
    lines = [{**line, "input_ids": lines[0]["input_ids"]} for line in lines]
    lines[0]["tools"] = tools
    (prompts / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    server.chat_tokens = len(lines[0]["input_ids"])
    offered = []

    def listen(method: str, path: str, body: dict[str, Any]) -> None:
        if path == "/v1/chat/completions":
            offered.append(body.get("tools"))

    server.fault = listen
    assert probe.run(config(server, prompts)).template_mismatch == ""
    assert offered == [tools] + [None] * (len(offered) - 1)
    assert len(offered) > 1


def test_another_chat_template_of_the_same_length_is_reported_with_the_token(
    server: FaultyServer, prompts: Path
) -> None:
    server.chat_tokens, server.chat_ids = 3, [PROMPTS[0][0], 9, PROMPTS[0][2]]
    assert probe.run(config(server, prompts)).template_mismatch == (
        "token 1 of a held-out conversation is 9 by the server's own chat template and "
        f"{PROMPTS[0][1]} as it was rendered for training"
    )


def test_the_ids_that_a_server_tells_are_believed_whatever_it_counts(server: FaultyServer, prompts: Path) -> None:
    server.chat_tokens, server.chat_ids = len(PROMPTS[0]), [*PROMPTS[0], 9]
    assert (
        "has 4 tokens by the server's own chat template and 3" in probe.run(config(server, prompts)).template_mismatch
    )


@pytest.mark.parametrize(("asked", "before"), [({"concurrency": 3}, 0), ({"loads": [3]}, 2 + 3 + 3)])
def test_a_server_is_warmed_up_by_as_many_requests_together_as_are_timed(
    server: FaultyServer, prompts: Path, asked: dict[str, Any], before: int
) -> None:
    """Also for a further load, after the requests one by one that are warm-up, timed and streamed."""
    together = threading.Barrier(3, timeout=30)
    number, first = count(), range(before, before + together.parties)

    def wait_for_the_others(path: str) -> None:
        if path == "/generate" and next(number) in first:
            together.wait()

    server.arrived = wait_for_the_others
    probe.run(config(server, prompts, **asked))
    assert next(number) > first[-1]
    assert not together.broken


@pytest.mark.parametrize("load", [2, 5])
def test_each_further_load_is_warmed_up_and_kept_until_its_requests_are_through(
    server: FaultyServer, prompts: Path, load: int
) -> None:
    """All prompts are sent, and at least twice as many requests as there are at a time."""
    before = probe.run(config(server, prompts))
    alone = server.asked.count("POST /generate")
    server.asked.clear()
    folder = prompts.parent / "probe" / "k2"
    result = probe.run(config(server, prompts, key="k2", folder=str(folder), loads=[load]))
    assert [at.concurrency for at in result.loads] == [load]
    assert result.loads[0].tokens_per_second > 0
    assert (result.requests, result.tokens, result.foreign_requests) == (before.requests, before.tokens, 0)
    assert server.asked.count("POST /generate") - alone == load + max(len(PROMPTS), 2 * load), (
        "so long it takes, no longer"
    )
    assert server.asked.count("POST /flush_cache") == 3


LONG = [*range(100)]
#: Of the same number of tokens or not, and said in two places.
OTHER_DAYS = [
    [*LONG[:30], 900, *LONG[31:]],
    [*LONG[:30], 900, 901, 902, *LONG[31:]],
    [*LONG[:20], 900, *LONG[21:80], 901, *LONG[81:]],
]
OTHER_TEMPLATES = [
    [*range(200, 300)],
    [*LONG[:30], 900, *LONG[31:60], *range(200, 250)],
    [*LONG[:10], *range(200, 220), *LONG[10:]],
    LONG[:80],
]


def dated(prompts: Path) -> None:
    """As a template that says what day it is rendered them."""
    lines = [json.loads(line) for line in (prompts / "prompts.jsonl").read_text().splitlines()]
    lines = [line | {"day": "2026-06-15", "input_ids": LONG} for line in lines]
    (prompts / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(("tokens", "ids"), [(len(LONG) + 4, None), *((len(ids), ids) for ids in OTHER_DAYS)])
def test_a_template_that_says_what_day_it_is_is_no_other_one_because_it_is_another_day_today(
    server: FaultyServer, prompts: Path, tokens: int, ids: list[int] | None
) -> None:
    server.chat_tokens, server.chat_ids = tokens, ids
    dated(prompts)
    made = config(server, prompts)
    assert probe.run(made).template_mismatch == ""
    report = json.loads(artifacts.verified(Path(made.folder), "report.json").read_text())
    assert "which was 2026-06-15 for training" in report["templateUnknown"]


@pytest.mark.parametrize(("tokens", "ids"), [(len(LONG) + 40, None), *((len(ids), ids) for ids in OTHER_TEMPLATES)])
def test_another_template_is_another_one_though_it_says_what_day_it_is(
    server: FaultyServer, prompts: Path, tokens: int, ids: list[int] | None
) -> None:
    server.chat_tokens, server.chat_ids = tokens, ids
    dated(prompts)
    assert "as it was rendered for training" in probe.run(config(server, prompts)).template_mismatch


def test_a_server_without_a_chat_template_has_none_to_differ(server: FaultyServer, prompts: Path) -> None:
    made = config(server, prompts)
    assert probe.run(made).template_mismatch == ""
    report = json.loads(artifacts.verified(Path(made.folder), "report.json").read_text())
    assert "Cannot use chat template functions" in report["templateUnknown"]


# ------------------------------------------------------------------------------------------------- prompts, baseline


def test_changed_prompts_are_refused(server: FaultyServer, prompts: Path) -> None:
    made = config(server, prompts)
    with (prompts / "prompts.jsonl").open("a") as file:
        file.write("\n")
    error = failure(made)
    assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT)
    assert "the file was changed" in error.message


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no prompt"), ('{"messages": []}\n', "Field required"), ("not JSON\n", "Invalid JSON")],
)
def test_broken_prompts_are_refused(server: FaultyServer, prompts: Path, text: str, words: str) -> None:
    (prompts / "prompts.jsonl").write_text(text)
    error = failure(config(server, prompts))
    assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT)
    assert words in error.message


def test_missing_prompts_are_refused(server: FaultyServer, prompts: Path) -> None:
    made = config(server, prompts)
    (prompts / "prompts.jsonl").unlink()
    assert failure(made).reason is Reason.CORRUPT_ARTIFACT


def test_prompts_that_the_server_has_no_room_for_are_left_out(server: FaultyServer, prompts: Path) -> None:
    server.info["context_length"] = 18
    result = probe.run(config(server, prompts, expected_arguments={}))
    assert result.requests == 2


def test_a_server_with_room_for_no_prompt_is_named_with_the_numbers(server: FaultyServer, prompts: Path) -> None:
    server.info["context_length"] = 16
    error = failure(config(server, prompts))
    assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.PROBE_ERROR)
    assert "the shortest of 3 held-out prompts has 2 tokens; the server has room for 1" in error.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"concurrency": 2}, "measured at concurrency 1, not 2"),
        ({"loads": [8, 32]}, "it was not measured at 8 and 32 requests together"),
        ({"prompts_digest": "f" * 64}, "other prompts"),
    ],
)
def test_a_baseline_of_another_load_or_other_prompts_is_refused(
    server: FaultyServer, prompts: Path, change: dict[str, Any], words: str
) -> None:
    made = speculative(server, prompts)
    stored = Path(made.baseline or "") / "report.json"
    if "prompts_digest" in change:
        # The baseline's, rather than this probe's own
        report = json.loads(stored.read_text())
        report["result"]["promptsDigest"] = change.pop("prompts_digest")
        stored.write_text(json.dumps(report))
        artifacts.publish(stored.parent, stage="probe", key="k0", made_from={}, numbers={}, provenance={})
    error = failure(made.model_copy(update=change))
    assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.PROBE_ERROR)
    assert words in error.message


def test_a_baseline_that_was_changed_or_is_gone_is_corrupt(server: FaultyServer, prompts: Path) -> None:
    made = speculative(server, prompts)
    baseline = Path(made.baseline or "")
    (baseline / "answers.jsonl").write_bytes(b"x" * (baseline / "answers.jsonl").stat().st_size)
    assert failure(made).reason is Reason.CORRUPT_ARTIFACT
    assert failure(made.model_copy(update={"baseline": str(baseline / "gone")})).reason is Reason.CORRUPT_ARTIFACT
