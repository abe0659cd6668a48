"""The contract between the planes: configurations, reports, progress lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    FATAL_EXIT_CODES,
    PROGRESS_MARK,
    REPORT_LIMIT,
    RESULTS,
    ConvertResult,
    ExitCode,
    ExtractConfig,
    JobEnvelope,
    Progress,
    Report,
    StageName,
)


def failed(message: str) -> Report:
    return Report(stage=StageName.TRAIN, key="0123456789abcdef", ok=False, reason=Reason.NON_FINITE, message=message)


@given(st.text(max_size=200))
def test_a_report_that_fits_is_read_back_as_it_was(message: str) -> None:
    report = failed(message)
    assert Report.parse(report.dump()) == report


@given(st.text(min_size=1, max_size=40), st.integers(100, 6000))
def test_an_over_long_message_is_cut_to_the_limit_in_any_alphabet(piece: str, times: int) -> None:
    report = failed(piece * times)
    text = report.dump()
    assert len(text.encode()) <= REPORT_LIMIT
    read = Report.parse(text)
    assert read is not None
    assert read.model_copy(update={"message": ""}) == report.model_copy(update={"message": ""})
    if read != report:
        assert read.message.endswith("…")
        assert report.message.startswith(read.message[:-1])
        longer = report.model_copy(update={"message": report.message[: len(read.message)] + "…"})
        assert len(json.dumps(longer.to_json(), separators=(",", ":"), ensure_ascii=False).encode()) > REPORT_LIMIT


def test_a_result_that_cannot_fit_is_an_error_of_the_stage_not_a_lost_report() -> None:
    report = Report(stage=StageName.INSPECT, key="k", ok=True, result={"warnings": ["x" * REPORT_LIMIT]})
    with pytest.raises(ValueError, match="the result of inspect alone takes more than 3072 bytes"):
        report.dump()


@pytest.mark.parametrize(
    "text",
    ["", "Killed", "{", "null", "[]", '{"stage": "train"}', '{"stage": 5, "key": "k", "ok": true}', "\x00\x01"],
)
def test_what_is_no_report_is_read_as_none(text: str) -> None:
    assert Report.parse(text) is None


@given(st.text())
def test_no_termination_message_breaks_the_reader(text: str) -> None:
    assert Report.parse(text) is None


def test_a_report_of_a_newer_version_is_still_read() -> None:
    assert Report.parse('{"stage": "train", "key": "k", "ok": true, "sinceNextYear": 1}') == Report(
        stage=StageName.TRAIN, key="k", ok=True
    )


def test_every_stage_of_ours_has_a_typed_result() -> None:
    assert set(RESULTS) == set(StageName) - {StageName.HOOK}


def test_a_result_is_read_as_its_stages_type() -> None:
    made = ConvertResult(
        digest="d", parameters=1, bytes=2, layers=[1], capture_ids=[1], draft_vocabulary_size=64, prompts=3,
        prompts_digest="p",
    )  # fmt: skip
    assert RESULTS[StageName.CONVERT].model_validate(made.to_json()) == made
    with pytest.raises(ValidationError):
        RESULTS[StageName.TRAIN].model_validate(made.to_json())


def test_a_configuration_names_its_stage_and_is_read_as_its_type() -> None:
    text = json.dumps(
        {
            "config": {
                "stage": "extract",
                "owner": {"namespace": "llm", "name": "kimi", "uid": "u"},
                "key": "k",
                "folder": "/eagle3/features/llm/kimi/extract/k",
                "target": "/models/kimi",
                "targetDigest": "t",
                "data": {"conversations": "/data/train.jsonl", "maxLength": 4096, "holdout": 0.02},
                "dataDigest": "d",
                "layers": [2, 30, 58],
                "dtype": "bf16",
                "sglangVersion": "0.5.23",
            }
        }
    )
    config = JobEnvelope.model_validate_json(text).config
    assert isinstance(config, ExtractConfig)
    assert config.layers == [2, 30, 58]
    with pytest.raises(ValidationError, match="stage"):
        JobEnvelope.model_validate_json(text.replace('"stage": "extract"', '"stage": "cook"'))


def test_exit_codes_say_whether_trying_again_can_help() -> None:
    fatal = {code for code in ExitCode if code in FATAL_EXIT_CODES}
    assert ExitCode.DONE not in fatal
    assert {ExitCode.INTERRUPTED, ExitCode.ENGINE_CRASHED}.isdisjoint(fatal)
    assert fatal == set(ExitCode) - {ExitCode.DONE, ExitCode.INTERRUPTED, ExitCode.ENGINE_CRASHED}


def test_the_last_progress_line_of_a_log_is_found_between_other_lines() -> None:
    first = Progress(done=0.1, message="warming up", time=1.0)
    last = Progress(done=0.62, seconds_left=12240.0, message="step 800 of 1290", time=2.0)
    log = f"loading\n{first.dump()}\nnoise\n2026-01-01 {last.dump()}\n{PROGRESS_MARK}{{cut"
    assert Progress.last(log) == last


def test_a_log_without_progress_has_none() -> None:
    assert Progress.last("loading\nloaded\n") is None
    assert Progress.last(f'{PROGRESS_MARK}{{"done": 7, "time": 0}}') is None


@given(st.floats(0, 1), st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_a_progress_line_is_one_line_whatever_it_says(done: float, message: str) -> None:
    line = Progress(done=done, message=message, time=0.0).dump()
    assert len(line.splitlines()) == 1
    assert Progress.last(f"noise\n{line}\nnoise") == Progress(done=done, message=message, time=0.0)
