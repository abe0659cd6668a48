"""A stand-in for SGLang's servers that counts: what the watch reads, under the names and labels of the real ones."""

import http.server
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from operating.web import serving_http

#: What the operator has SGLang's servers stamp on their metrics.
LABELS = {"eagle3_namespace": "llm", "eagle3_name": "kimi", "eagle3_revision": "r1"}


class CountingServer:
    """What a server of revision r1 of llm/kimi counts, and things that no query should get as an answer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = list(LABELS)
        answers = Histogram("sglang:generation_tokens_histogram", "Tokens.", names, registry=self.registry)
        calls = Counter("sglang:spec_verify_calls", "Verify calls.", names, registry=self.registry)
        self._answers, self._calls = answers.labels(**LABELS), calls.labels(**LABELS)
        Gauge("sglang:num_running_reqs", "Running.", names, registry=self.registry).labels(**LABELS).set(3)
        Gauge("not_a_number", "NaN.", registry=self.registry).set(float("nan"))
        pods = Gauge("of_each_pod", "Two series.", ["pod"], registry=self.registry)
        for pod in ("a", "b"):
            pods.labels(pod).set(1)
        self.traffic(requests=1000)

    def traffic(self, *, requests: int, accept_length: float = 2.0) -> None:
        """Answers of 20 tokens each: the first comes from prefill, the rest from verify calls."""
        for _ in range(requests):
            self._answers.observe(20)
        self._calls.inc(19 * requests / accept_length)

    def text(self) -> bytes:
        """Its /metrics."""
        return prometheus_client.generate_latest(self.registry)


@contextmanager
def counting(address: str = "127.0.0.1", port: int = 0) -> Iterator[tuple[CountingServer, int]]:
    """A counting server and the port on which it tells what it counts."""
    counted = CountingServer()

    class Exporter(http.server.BaseHTTPRequestHandler):
        """The plain text format whatever is asked for: prometheus_client 0.26's OpenMetrics spells ':' as '_'."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(counted.text())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with serving_http(Exporter, address, port) as found:
        yield counted, found
