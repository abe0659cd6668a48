"""Questions to a Prometheus: instant queries whose answer is one number, none, or a sentence that says what is wrong.

Nothing is guessed. An empty answer is None, which is neither zero nor a failure. Several series, a matrix, a warning (a
partial answer, of Thanos for one), NaN, a refusal and a server that is away are each a ``MetricsUnavailableError`` with a
text for people: on missing metrics nothing is ever rolled back.
"""

import math
import ssl
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from time import monotonic

import httpx

from eagle3_operator.settings import PrometheusServer

#: Seconds for which a server that let one question time out is not asked again: each would hold a worker as long.
REST_SECONDS = 30.0


class MetricsUnavailableError(Exception):
    """There is no answer that could be relied on."""


class Prometheus:
    """One Prometheus server of the settings. Safe to share between threads.

    Args:
        server: of the settings.
        clock: seconds that only grow.
    """

    def __init__(self, server: PrometheusServer, clock: Callable[[], float] = monotonic) -> None:
        self._server = server
        self._clock = clock
        self._rests_until = -math.inf
        self._lock = threading.Lock()
        #: The connections, and when the file of the authorities that they trust was written.
        self._http: tuple[httpx.Client, int] | None = None

    def values(self, queries: Mapping[str, str], time: datetime) -> dict[str, float | None]:
        """The answers to queries (PromQL by name) as of one time; None where nothing matches."""
        return {name: self._value(name, query, time) for name, query in queries.items()}

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http[0].close()

    def _value(self, name: str, query: str, time: datetime) -> float | None:
        answer = self._ask(query, time)
        where = f"Prometheus at {self._server.url}, query {name}"
        if warnings := answer.get("warnings"):
            raise MetricsUnavailableError(f"{where}: warns: {warnings}")
        data = answer.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "vector" or not isinstance(data.get("result"), list):
            raise MetricsUnavailableError(f"{where}: answered no vector")
        series = data["result"]
        if len(series) > 1:
            raise MetricsUnavailableError(f"{where}: {len(series)} series where one is expected")
        if not series:
            return None
        try:
            value = float(series[0]["value"][1])
        except (KeyError, IndexError, TypeError, ValueError):
            raise MetricsUnavailableError(f"{where}: answered a sample that is not a number") from None
        if not math.isfinite(value):
            raise MetricsUnavailableError(f"{where}: answered {value}")
        return value

    def _ask(self, query: str, time: datetime) -> dict[str, object]:
        where = f"Prometheus at {self._server.url}"
        if self._clock() < self._rests_until:
            raise MetricsUnavailableError(f"{where}: does not answer (timed out, and is asked again in a while)")
        try:
            answer = self._connections().post(
                "/api/v1/query",
                data={"query": query, "time": f"{time.timestamp():.3f}"},
                headers=self._authorization(),
            )
            said = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as failure:
            if isinstance(failure, httpx.TimeoutException):
                self._rests_until = self._clock() + REST_SECONDS
            raise MetricsUnavailableError(f"{where}: does not answer ({failure})") from failure
        except ValueError:
            raise MetricsUnavailableError(f"{where}: status {answer.status_code}, and no JSON") from None
        if not isinstance(said, dict) or answer.status_code != httpx.codes.OK or said.get("status") != "success":
            error = said.get("error") if isinstance(said, dict) else None
            raise MetricsUnavailableError(f"{where}: status {answer.status_code}: {error or 'no reason given'}")
        return said

    def _connections(self) -> httpx.Client:
        """Made when they are first needed, and anew once the authorities' file is another: mounted Secrets are renewed in place.

        Raises:
            MetricsUnavailableError: the file is not there, or holds no certificate.
        """
        server, file = self._server, self._server.ca_file
        with self._lock:
            try:
                written = Path(file).stat().st_mtime_ns if file else 0
                if self._http is None or self._http[1] != written:
                    trusted = ssl.create_default_context(cafile=file) if file else True
                    made = httpx.Client(base_url=server.url, timeout=server.timeout_seconds, verify=trusted)
                    self._http = made, written  # the former is not closed: another thread may be asking by it
            except OSError as failure:
                raise MetricsUnavailableError(
                    f"Prometheus at {server.url}: its authorities' certificates, {file}, cannot be read ({failure})"
                ) from failure
            return self._http[0]

    def _authorization(self) -> dict[str, str]:
        """The token is read anew each time: mounted Secrets are renewed in place."""
        file = self._server.token_file
        return {"Authorization": f"Bearer {Path(file).read_text().strip()}"} if file else {}
