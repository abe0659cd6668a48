"""Answers that no healthy Prometheus gives: from a stand-in that says what a test wants. The rest is in tests/cluster."""

import http.server
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eagle3_operator.cluster.prometheus import REST_SECONDS, MetricsUnavailableError, Prometheus
from eagle3_operator.settings import PrometheusServer
from operating.web import Certificate, certify, serving_http

NOW = datetime(2026, 11, 29, tzinfo=UTC)


@contextmanager
def stand_in(body: str, status: int, certificate: Certificate | None = None) -> Iterator[str]:
    """The URL of a server that answers every question so."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with serving_http(Answer, certificate=certificate) as port:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"


def vector(*series: Any, **more: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}, **more})


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (vector({"value": [0, "2"]}, warnings=["one store did not answer"]), 200, "warns: .*one store did not answer"),
        (vector({"metric": {}}), 200, "a sample that is not a number"),
        (vector({"value": [0, "many"]}), 200, "a sample that is not a number"),
        ('{"status": "success", "data": null}', 200, "answered no vector"),
        ('{"status": "error", "error": "query timed out"}', 200, "query timed out"),
        ('{"status": "error", "error": "out of memory"}', 503, "status 503: out of memory"),
        ("[]", 200, "no reason given"),
        ("<html>Bad Gateway</html>", 502, "status 502, and no JSON"),
        ("", 302, "status 302, and no JSON"),
    ],
)
def test_an_answer_that_cannot_be_relied_on_is_a_problem_that_names_the_server(
    body: str, status: int, words: str
) -> None:
    with stand_in(body, status) as url, pytest.raises(MetricsUnavailableError, match=words) as refused:
        Prometheus(PrometheusServer(url=url)).values({"tokens": "vector(1)"}, NOW)
    assert url in str(refused.value)


def test_a_server_that_is_away_is_a_problem() -> None:
    with pytest.raises(MetricsUnavailableError, match="does not answer"):
        Prometheus(PrometheusServer(url="http://127.0.0.1:1")).values({"tokens": "vector(1)"}, NOW)


def test_a_server_that_never_answers_is_waited_for_no_longer_than_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MetricsUnavailableError, match="does not answer"):
            Prometheus(PrometheusServer(url=url, timeout_seconds=0.1)).values({"tokens": "vector(1)"}, NOW)


def test_a_server_that_let_a_question_time_out_is_left_alone_for_a_while_and_then_asked_again() -> None:
    now = 0.0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server = Prometheus(PrometheusServer(url=url, timeout_seconds=0.1), clock=lambda: now)
        tries = ((0.0, r"\(timed out\)"), (REST_SECONDS - 1, "again in a while"), (REST_SECONDS, r"\(timed out\)"))
        for seconds, words in tries:
            now = seconds
            with pytest.raises(MetricsUnavailableError, match=words):
                server.values({"tokens": "vector(1)"}, NOW)


def test_a_certificate_is_trusted_that_the_settings_name_the_authority_of(tmp_path: Path) -> None:
    certificate = certify(tmp_path)
    with stand_in(vector({"value": [0, "2"]}), 200, certificate) as url:
        trusting = Prometheus(PrometheusServer(url=url, ca_file=str(certificate.file)))
        assert trusting.values({"two": "2"}, NOW) == {"two": 2.0}
        with pytest.raises(MetricsUnavailableError, match="certificate verify failed"):
            Prometheus(PrometheusServer(url=url)).values({"two": "2"}, NOW)


def test_an_authority_that_is_no_certificate_is_a_problem_until_the_file_is_written_anew(tmp_path: Path) -> None:
    certificate = certify(tmp_path)
    authority = tmp_path / "ca.crt"
    with stand_in(vector({"value": [0, "2"]}), 200, certificate) as url:
        server = Prometheus(PrometheusServer(url=url, ca_file=str(authority)))
        with pytest.raises(MetricsUnavailableError, match=r"ca\.crt, cannot be read"):
            server.values({"two": "2"}, NOW)
        authority.write_text("PASTE THE CERTIFICATE HERE")
        with pytest.raises(MetricsUnavailableError, match=r"ca\.crt, cannot be read"):
            server.values({"two": "2"}, NOW)
        authority.write_bytes(certificate.file.read_bytes())
        assert server.values({"two": "2"}, NOW) == {"two": 2.0}


def test_an_authority_that_is_replaced_is_trusted_from_then_on(tmp_path: Path) -> None:
    for folder in (tmp_path / "former", tmp_path / "new"):
        folder.mkdir()
    former, new = certify(tmp_path / "former"), certify(tmp_path / "new")
    authority = tmp_path / "ca.crt"
    authority.write_bytes(former.file.read_bytes())
    os.utime(authority, (1, 1))
    with stand_in(vector({"value": [0, "2"]}), 200, new) as url:
        server = Prometheus(PrometheusServer(url=url, ca_file=str(authority)))
        with pytest.raises(MetricsUnavailableError, match="certificate verify failed"):
            server.values({"two": "2"}, NOW)
        authority.write_bytes(new.file.read_bytes())
        assert server.values({"two": "2"}, NOW) == {"two": 2.0}
