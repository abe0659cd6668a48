"""Questions to a real Prometheus, which scrapes counters of this process."""

import http.server
import shutil
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from kubernetes.client import Configuration

from eagle3_api import times
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import Eagle3DraftStatus, RevisionStatus
from eagle3_operator.cluster.client import Client
from eagle3_operator.cluster.observe import Observer
from eagle3_operator.cluster.prometheus import MetricsUnavailableError, Prometheus
from eagle3_operator.observation import ServerMetrics
from eagle3_operator.settings import PrometheusServer
from operating import CountingServer, counting, serving_http
from testcluster import wait_for
from unit.samples import SPEC, merged

TOKEN = "only the test knows"

WINDOW = timedelta(seconds=5)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[CountingServer, int]]:
    """The counters and the port on which they are scraped."""
    with counting() as made:
        yield made


@pytest.fixture(scope="module")
def url(servers: tuple[CountingServer, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes them five times a second."""
    program = shutil.which("prometheus")
    assert program is not None, "there is no prometheus: apt-get install prometheus"
    folder: Path = tmp_path_factory.mktemp("prometheus")
    job = {"job_name": "servers", "static_configs": [{"targets": [f"127.0.0.1:{servers[1]}"]}]}
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "200ms"}, "scrape_configs": [job]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = [f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    try:
        found = f"http://{address}"
        asked = Prometheus(PrometheusServer(url=found))
        wait_for("a scrape", 60, lambda: ask(asked, "max(up)") == 1, tolerate=(MetricsUnavailableError,))
        yield found
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def prometheus(url: str) -> Iterator[Prometheus]:
    asked = Prometheus(PrometheusServer(url=url))
    yield asked
    asked.close()


def ask(prometheus: Prometheus, query: str, at: datetime | None = None) -> float | None:
    return prometheus.values({"asked": query}, at or datetime.now(UTC))["asked"]


def test_one_number_is_the_answer(prometheus: Prometheus) -> None:
    assert prometheus.values({"two": "vector(2)", "up": "max(up)"}, datetime.now(UTC)) == {"two": 2.0, "up": 1.0}


def test_where_nothing_matches_the_answer_is_none_and_not_zero(prometheus: Prometheus) -> None:
    assert ask(prometheus, "sum(increase(no_such_metric[1m]))") is None
    assert ask(prometheus, "vector(0)") == 0.0


def test_the_time_of_the_question_counts_and_not_that_of_the_asking(prometheus: Prometheus) -> None:
    then = datetime(2026, 1, 2, tzinfo=UTC)
    assert ask(prometheus, "vector(time())", then) == then.timestamp()
    assert ask(prometheus, "max(up)", then) is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("of_each_pod", "query asked: 2 series where one is expected"),
        ("not_a_number", "query asked: answered nan"),
        ("vector(1) / 0", "query asked: answered inf"),
        ("1", "query asked: answered no vector"),
        ("up[1m]", "query asked: answered no vector"),
        ("sum(", "status 400: .*parse error"),
    ],
)
def test_whatever_is_not_one_number_is_a_problem_with_a_text(prometheus: Prometheus, query: str, words: str) -> None:
    with pytest.raises(MetricsUnavailableError, match=words):
        ask(prometheus, query)


class Guard(http.server.BaseHTTPRequestHandler):
    """Lets through who has the token, as the proxies in front of a Prometheus do."""

    upstream = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._answer(401, b"who are you?")
        found = httpx.post(
            self.upstream + self.path, content=body, headers={"Content-Type": self.headers["Content-Type"]}
        )
        return self._answer(found.status_code, found.content)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_the_token_is_read_anew_for_each_question(url: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("an old one\n")
    with serving_http(type("GuardOfThisPrometheus", (Guard,), {"upstream": url})) as port:
        asked = Prometheus(PrometheusServer(url=f"http://127.0.0.1:{port}", token_file=str(token)))
        with pytest.raises(MetricsUnavailableError, match="status 401"):
            ask(asked, "vector(1)")
        token.write_text(f"{TOKEN}\n")
        assert ask(asked, "vector(1)") == 1.0
        token.unlink()
        with pytest.raises(MetricsUnavailableError, match="token"):
            ask(asked, "vector(1)")


def test_the_window_of_a_serving_revision_is_read_when_it_has_ended(
    servers: tuple[CountingServer, int], url: str, prometheus: Prometheus
) -> None:
    counted, _ = servers
    obj, promoted = watching(), datetime.now(UTC).replace(microsecond=0)
    observer = Observer(Client(Configuration()), {"default": Prometheus(PrometheusServer(url=url))}, poll_seconds=10)
    status = serving_since(promoted)
    assert observer.metrics(obj, status, {}, promoted + WINDOW / 2) is None
    # What grows before the first scrape of a window is not seen to grow in it
    scraped = "max(timestamp(sglang:num_running_reqs))"
    wait_for("a scrape in the window", 4, lambda: (ask(prometheus, scraped) or 0.0) > promoted.timestamp())
    counted.traffic(requests=200)
    seen = wait_for("the end of the window", 30, lambda: observer.metrics(obj, status, {}, datetime.now(UTC)))
    assert seen is not None
    assert (seen.revision, seen.problem) == (1, "")
    assert seen.window is not None
    assert (times.parse(seen.window.start), times.parse(seen.window.end)) == (promoted, promoted + WINDOW)
    assert seen.window.accept_length == pytest.approx(2.0, rel=0.01)
    assert seen.window.requests == pytest.approx(200, rel=0.3)
    assert seen.window.running == 3


def test_a_prometheus_that_the_settings_do_not_know_is_a_problem_and_no_crash(url: str) -> None:
    observer = Observer(Client(Configuration()), {}, poll_seconds=10)
    seen = observer.metrics(watching(), serving_since(datetime.now(UTC) - WINDOW), {}, datetime.now(UTC))
    assert seen == ServerMetrics(1, problem='the chart\'s values name no Prometheus "default"')


def watching() -> Eagle3Draft:
    metadata = {"name": "kimi", "namespace": "llm", "uid": "1"}
    spec = merged(SPEC, {"watch": {"window": f"{WINDOW.total_seconds():.0f}s"}})
    return Eagle3Draft.model_validate({"metadata": metadata, "spec": spec})


def serving_since(promoted: datetime) -> Eagle3DraftStatus:
    revision = RevisionStatus(number=1, key="k", plain_key="p", draft="d", promoted_at=times.text(promoted))
    return Eagle3DraftStatus(serving_revision=1, revisions=[revision])
