"""The watch's PromQL, evaluated by Prometheus itself (promtool) over series as SGLang's pods make them."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eagle3_api.status import Window
from eagle3_operator.judge.promql import queries, window
from testcluster import system

#: Seconds between scrapes, and of a window.
SCRAPE = 15
WINDOW = 300

NAMES = ("tokens", "requests", "verify_calls", "running")

Series = dict[str, str]


def pod(
    *,
    tokens: str,
    requests: str,
    verify_calls: str | None,
    running: str = "2x80",
    steps: str = "3x80",
    instance: str = "10.0.0.1:30000",
    revision: str = "r1",
) -> Series:
    """The series of one pod. A pattern is promtool's: first value, step, repetitions; ``_x10`` are ten missing scrapes."""
    labels = f'eagle3_namespace="llm",eagle3_name="kimi",eagle3_revision="{revision}",instance="{instance}",job="e3d"'
    made = {
        f"sglang:generation_tokens_histogram_sum{{{labels}}}": tokens,
        f"sglang:generation_tokens_histogram_count{{{labels}}}": requests,
        f'sglang:num_running_reqs{{{labels},tp_rank="0"}}': running,
        f'sglang:spec_num_steps{{{labels},tp_rank="0"}}': steps,
    }
    if verify_calls is not None:
        made[f"sglang:spec_verify_calls_total{{{labels}}}"] = verify_calls
    return made


#: 40 tokens and 1 request a scrape at accept length 3: 13 verify calls. 20 scrapes are a window.
STEADY = pod(tokens="8+40x80", requests="1+1x80", verify_calls="5+13x80")


@pytest.fixture
def promtool(tmp_path: Path) -> "Promtool":
    return Promtool(tmp_path)


class Promtool:
    """Asks Prometheus's own engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self, series: Series, expected: dict[str, float | None], *, at: int = 2 * WINDOW) -> None:
        """Fail unless each query yields the expected value, to a thousandth, or nothing where that is None."""
        asked = queries("llm", "kimi", 1, WINDOW)
        assert set(asked) == set(NAMES)
        tests = [
            {
                "expr": f"round(({asked[name]}), 0.001)",
                "eval_time": f"{at}s",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for name, value in expected.items()
        ]
        inputs = [{"series": name, "values": values} for name, values in series.items()]
        group = {"interval": f"{SCRAPE}s", "input_series": inputs, "promql_expr_test": tests}
        # YAML contains JSON
        file = self.folder / "queries.yaml"
        file.write_text(json.dumps({"rule_files": [], "evaluation_interval": f"{SCRAPE}s", "tests": [group]}))
        done = subprocess.run(
            [system.promtool(), "test", "rules", file], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def accept_length(values: dict[str, float | None]) -> float | None:
    """What the judge makes of the answers."""
    end = datetime(2026, 11, 29, 12, 5, tzinfo=UTC)
    made = window(values, end - timedelta(seconds=WINDOW), end)
    assert isinstance(made, Window), made
    return made.accept_length


def test_a_steady_pod_yields_its_increases(promtool: Promtool) -> None:
    expected: dict[str, float | None] = {"tokens": 800, "requests": 20, "verify_calls": 260, "running": 2}
    promtool.check(STEADY, expected)
    assert accept_length(expected) == 3.0


def test_two_pods_are_summed_and_weighted_by_their_traffic(promtool: Promtool) -> None:
    # The second pod: 10 tokens and 1 request a scrape at accept length 1
    other = pod(tokens="8+10x80", requests="1+1x80", verify_calls="5+9x80", running="6x80", instance="10.0.0.2:30000")
    expected: dict[str, float | None] = {"tokens": 1000, "requests": 40, "verify_calls": 440, "running": 5}
    promtool.check(STEADY | other, expected)
    assert accept_length(expected) == pytest.approx(960 / 440)


def test_a_burst_is_judged_at_the_load_that_it_had(promtool: Promtool) -> None:
    """32 requests together for a minute of five: by the clock's mean that was a load of 6, at which a draft may gain."""
    bursts = {**STEADY, **pod(tokens="8+40x80", requests="1+1x80", verify_calls="5+13x80", running="0x29 32x4 0x60")}
    promtool.check(bursts, {"running": 32})
    half = {**STEADY, **pod(tokens="8+40x80", requests="1+1x80", verify_calls="5+13x80", running="0x20 32x9 8x60")}
    promtool.check(half, {"running": (10 * 32**2 + 10 * 8**2) / (10 * 32 + 10 * 8)})


def test_the_load_is_that_of_all_requests_whatever_their_priority(promtool: Promtool) -> None:
    """A server with --enable-priority-scheduling tells the total, and each priority's beside it."""
    (total,) = (name for name in STEADY if "num_running_reqs" in name)
    urgent = {total.replace("tp_rank", f'priority="{priority}",tp_rank'): "1x80" for priority in (0, 1)}
    promtool.check(STEADY | urgent, {"running": 2})


def test_the_metrics_are_found_under_the_names_of_newer_client_libraries(promtool: Promtool) -> None:
    """Asked for OpenMetrics, the servers of the end-to-end tests say ``sglang_...``."""
    renamed = {name.replace("sglang:", "sglang_"): values for name, values in STEADY.items()}
    promtool.check(renamed, {"tokens": 800, "requests": 20, "verify_calls": 260, "running": 2})


def test_other_revisions_and_objects_are_not_counted(promtool: Promtool) -> None:
    candidate = pod(tokens="0+99x80", requests="0+9x80", verify_calls="0+90x80", revision="r2")
    longer = {name.replace('"kimi"', '"kimi-k25"'): values for name, values in STEADY.items()}
    promtool.check(STEADY | candidate | longer, {"tokens": 800, "requests": 20, "verify_calls": 260, "running": 2})


def test_a_restarted_container_counts_on_from_zero(promtool: Promtool) -> None:
    # At 450 s the counters begin again, with the warm-up's own 8 tokens, 1 request and 5 verify calls
    restarted = pod(tokens="8+40x29 8+40x50", requests="1+1x29 1+1x50", verify_calls="5+13x29 5+13x50")
    expected: dict[str, float | None] = {"tokens": 768, "requests": 20, "verify_calls": 252}
    promtool.check(restarted, expected)
    length = accept_length(expected | {"running": 2.0})
    assert length == pytest.approx(3.0, abs=0.04)


def test_a_gap_in_the_scrapes_does_not_change_the_accept_length(promtool: Promtool) -> None:
    # 150 s without a scrape: the counters ran on
    gap = pod(tokens="8+40x24 _x10 1408+40x46", requests="1+1x24 _x10 36+1x46", verify_calls="5+13x24 _x10 460+13x46")
    expected: dict[str, float | None] = {"tokens": 800, "requests": 20, "verify_calls": 260}
    promtool.check(gap, expected)
    assert accept_length(expected | {"running": 2.0}) == 3.0


def test_a_gap_at_the_end_of_the_window_does_not_change_the_accept_length(promtool: Promtool) -> None:
    # Nothing from 500 s on: 13 steps were seen, half a scrape is extrapolated
    gap = pod(tokens="8+40x33 _x40", requests="1+1x33 _x40", verify_calls="5+13x33 _x40")
    expected: dict[str, float | None] = {"tokens": 540, "requests": 13.5, "verify_calls": 175.5}
    promtool.check(gap, expected)
    assert accept_length(expected | {"running": 2.0}) == 3.0


def test_a_pod_that_appears_within_the_window_counts_from_its_first_scrape(promtool: Promtool) -> None:
    # The first scrape, at 450 s, finds 408 tokens of 11 requests; what led there is unknown, of all three counters alike.
    # Half a scrape before it is extrapolated, as for any series that begins within the window
    late = pod(tokens="_x30 408+40x50", requests="_x30 11+1x50", verify_calls="_x30 135+13x50")
    expected: dict[str, float | None] = {"tokens": 420, "requests": 10.5, "verify_calls": 136.5}
    promtool.check(late, expected)
    assert accept_length(expected | {"running": 2.0}) == 3.0


def test_an_idle_pod_increases_nothing_whatever_its_gauges_keep(promtool: Promtool) -> None:
    idle = pod(tokens="900x80", requests="30x80", verify_calls="290x80", running="0x80")
    promtool.check(idle, {"tokens": 0, "requests": 0, "verify_calls": 0, "running": None})


def test_a_revision_that_nobody_scrapes_yields_nothing(promtool: Promtool) -> None:
    promtool.check({}, dict.fromkeys(NAMES))


def test_a_pod_that_was_scraped_once_yields_no_increase(promtool: Promtool) -> None:
    new = pod(tokens="_x40 8", requests="_x40 1", verify_calls="_x40 5", running="_x40 0", steps="_x40 0")
    promtool.check(new, {"tokens": None, "requests": None, "running": None})


def test_a_pod_that_is_gone_counts_until_its_last_scrape(promtool: Promtool) -> None:
    stale = pod(tokens="8+40x30 stale", requests="1+1x30 stale", verify_calls="5+13x30 stale")
    promtool.check(stale, {"tokens": 420, "requests": 10.5, "verify_calls": 136.5})


def test_a_server_that_does_not_speculate_yields_zero_verify_calls(promtool: Promtool) -> None:
    # SGLang creates the counter at the first verify call, and its gauge of draft steps stays 0
    plain = pod(tokens="8+40x80", requests="1+1x80", verify_calls=None, steps="0x80")
    promtool.check(plain, {"tokens": 800, "requests": 20, "verify_calls": 0})


def test_a_prometheus_that_drops_the_counter_yields_nothing_instead_of_zero(promtool: Promtool) -> None:
    for steps in ("3x80", "_x80"):
        dropped = pod(tokens="8+40x80", requests="1+1x80", verify_calls=None, steps=steps)
        promtool.check(dropped, {"tokens": 800, "verify_calls": None})


def test_one_speculating_pod_is_enough_for_the_counter_to_be_there(promtool: Promtool) -> None:
    plain = pod(tokens="8+40x80", requests="1+1x80", verify_calls=None, steps="0x80", instance="10.0.0.2:30000")
    promtool.check(STEADY | plain, {"tokens": 1600, "verify_calls": 260})
