"""Pods' own metrics, read from servers of this machine: each address of its loopback network is a pod's."""

import contextlib
import http.server
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from eagle3_api.status import PODS_READ
from eagle3_operator.cluster.prometheus import MetricsUnavailableError
from eagle3_operator.cluster.servers import Servers
from eagle3_operator.observation import Pod
from operating.counting import counting
from operating.web import serving_http

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def pod(number: int, port: int, *, restarts: int = 0) -> Pod:
    name, address = f"kimi-r1-{number:02}", f"127.0.0.{number}"
    return Pod(name, NOW, "Running", address=address, port=port, ready=True, restarts=restarts)


def test_every_pod_is_read() -> None:
    with counting("127.0.0.1") as (one, port), counting("127.0.0.2", port) as (two, _):
        two.traffic(requests=200)
        reading = Servers().read([pod(2, port, restarts=1), pod(1, port)], NOW)
    assert reading.time == "2026-11-29T12:00:00Z"
    assert [(r.pod, r.restarts, r.tokens, r.requests, r.verify_calls) for r in reading.pods] == [
        ("kimi-r1-01", 0, 20_000, 1000, 9500),
        ("kimi-r1-02", 1, 24_000, 1200, 11_400),
    ]
    assert one is not two


def test_a_pod_that_does_not_answer_is_left_out() -> None:
    with counting() as (_, port):
        reading = Servers().read([pod(1, port), pod(2, port)], NOW)
    assert [one.pod for one in reading.pods] == ["kimi-r1-01"]


def test_where_none_answers_the_problem_names_them_and_the_network() -> None:
    with counting("127.0.0.9") as (_, port), pytest.raises(MetricsUnavailableError) as problem:
        Servers().read([pod(1, port), pod(2, port)], NOW)
    assert f"pod kimi-r1-01, http://127.0.0.1:{port}/metrics: does not answer" in str(problem.value)
    assert "network policies" in str(problem.value)


class SomethingElse(http.server.BaseHTTPRequestHandler):
    """A server that has metrics, but is not SGLang."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"process_cpu_seconds_total 1.5\n")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_server_without_sglangs_counters_is_a_problem_that_says_so() -> None:
    with serving_http(SomethingElse) as port, pytest.raises(MetricsUnavailableError, match="no counters of SGLang's"):
        Servers().read([pod(1, port)], NOW)


class WithoutAnEnd(SomethingElse):
    """A server whose answer does not end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):  # the reader has had enough
            while True:
                self.wfile.write(b"# nothing\n" * 1000)


def test_an_answer_without_an_end_is_not_listened_to_for_ever() -> None:
    with serving_http(WithoutAnEnd) as port, pytest.raises(MetricsUnavailableError, match="more than 16 MiB"):
        Servers().read([pod(1, port)], NOW)


def test_of_very_many_pods_a_bounded_number_is_read_and_always_the_same() -> None:
    with counting() as (_, port):
        one = replace(pod(1, port), address="127.0.0.1")
        many = [replace(one, name=f"kimi-r1-{n:03}") for n in range(PODS_READ + 9)]
        reading = Servers().read(list(reversed(many)), NOW)
    assert [one.pod for one in reading.pods] == [one.name for one in many[:PODS_READ]]
