"""The operator's own metrics, for Prometheus: how many reconciles, how long, how far behind, and where the objects are.

eagle3_operator_reconciles_total{result}     written, settled, gone, conflict, refused, failed
eagle3_operator_reconcile_seconds            histogram
eagle3_operator_errors_total{type}           the exception behind a failed reconcile
eagle3_operator_requests_total{method,resource}   to the API server
eagle3_operator_queue_length                 objects that are due and wait
eagle3_operator_objects{phase}               objects by phase
eagle3_operator_object_phase{eagle3_namespace,eagle3_name,phase}   1, of each object
eagle3_operator_object_available{eagle3_namespace,eagle3_name}     of each that serves: 1, or 0 where no pod of it is ready
"""

from collections import Counter
from collections.abc import Callable, Iterator
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

#: Of each object, by namespace and name: its phase, and whether its clients are answered.
_Known = dict[tuple[str, str], tuple[str, bool | None]]

_PREFIX = "eagle3_operator"
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counted in one registry, so that several can stand in one process. Safe to share between threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        prometheus_client.PlatformCollector(registry=self.registry)
        self._reconciles = prometheus_client.Counter(
            f"{_PREFIX}_reconciles", "Reconciles by result.", ["result"], registry=self.registry
        )
        self._seconds = prometheus_client.Histogram(
            f"{_PREFIX}_reconcile_seconds", "Duration of a reconcile.", buckets=_BUCKETS, registry=self.registry
        )
        self._errors = prometheus_client.Counter(
            f"{_PREFIX}_errors", "Failed reconciles by exception.", ["type"], registry=self.registry
        )
        self._requests = prometheus_client.Counter(
            f"{_PREFIX}_requests", "Requests to the API server.", ["method", "resource"], registry=self.registry
        )
        self._queue = prometheus_client.Gauge(
            f"{_PREFIX}_queue_length", "Objects that are due and wait.", registry=self.registry
        )
        self._known: _Known = {}
        self.registry.register(_Objects(self._known))

    def reconciled(self, result: str, seconds: float) -> None:
        """A reconcile ended so, after so many seconds."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def failed(self, error: Exception) -> None:
        """A reconcile failed with this."""
        self._errors.labels(type(error).__name__).inc()

    def asked(self, method: str, resource: str) -> None:
        """A request was made of the API server."""
        self._requests.labels(method, resource).inc()

    def known(self, namespace: str, name: str, phase: str, *, available: bool | None) -> None:
        """The phase of an object, and whether its clients are answered; None where nobody is to answer."""
        self._known[namespace, name] = phase, available

    def gone(self, namespace: str, name: str) -> None:
        """There is no such object any more."""
        self._known.pop((namespace, name), None)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Ask for the queue's length whenever somebody reads it."""
        self._queue.set_function(length)

    def serve(self, port: int, address: str) -> WSGIServer:
        """Answer GET /metrics on this port of this address, in a thread of its own."""
        server, _ = prometheus_client.start_http_server(port, address, registry=self.registry)
        return server


class _Objects(Collector):
    def __init__(self, known: _Known) -> None:
        self._known = known

    def collect(self) -> Iterator[GaugeMetricFamily]:
        known = sorted(self._known.copy().items())  # which other threads may change meanwhile
        counts = GaugeMetricFamily(f"{_PREFIX}_objects", "Objects by phase.", labels=["phase"])
        for phase, count in sorted(Counter(phase for _, (phase, _) in known).items()):
            counts.add_metric([phase], count)
        yield counts
        # As servers name their object: "namespace" would be that of whoever is scraped
        labels = ["eagle3_namespace", "eagle3_name", "phase"]
        each = GaugeMetricFamily(f"{_PREFIX}_object_phase", "1, with the object's phase.", labels=labels)
        for (namespace, name), (phase, _) in known:
            each.add_metric([namespace, name, phase], 1)
        yield each
        serving = GaugeMetricFamily(
            f"{_PREFIX}_object_available",
            "Of each object that serves: 1, or 0 where no pod of what serves is ready.",
            labels=labels[:2],
        )
        for key, (_, available) in known:
            if available is not None:
                serving.add_metric(key, available)
        yield serving
