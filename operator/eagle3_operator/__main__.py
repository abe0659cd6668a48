"""``python -m eagle3_operator``: the operator, until SIGTERM."""

import argparse
import asyncio
from pathlib import Path

import kopf

from eagle3_operator import handlers, logs
from eagle3_operator.cluster.client import Client
from eagle3_operator.cluster.observe import Observer
from eagle3_operator.cluster.prometheus import Prometheus
from eagle3_operator.cluster.queue import Queue
from eagle3_operator.cluster.reconcile import Reconciler
from eagle3_operator.cluster.wakeups import KINDS, Wakeups
from eagle3_operator.decide import decide
from eagle3_operator.metrics import Metrics
from eagle3_operator.settings import Settings

SETTINGS_FILE = Path("/etc/eagle3/settings.yaml")


def main() -> None:
    """Wire the parts together and run them."""
    parser = argparse.ArgumentParser(prog="eagle3_operator", description=__doc__)
    parser.add_argument("--settings", type=Path, default=SETTINGS_FILE, help="YAML; defaults where it does not exist")
    parser.add_argument("--liveness", help="where liveness probes are answered; default port 8080")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    arguments = parser.parse_args()
    logs.configure(arguments.log_level)
    settings = Settings.load(arguments.settings)
    asyncio.run(run(settings, liveness=arguments.liveness or settings.liveness))


async def run(settings: Settings, *, liveness: str) -> None:
    """Run the operator in this event loop.

    Args:
        settings: of the operator.
        liveness: URL at which liveness probes are answered.
    """
    metrics = Metrics()
    client = Client.connect(connections=settings.workers + len(KINDS), asked=metrics.asked)
    servers = {name: Prometheus(server) for name, server in settings.prometheus.items()}
    observer = Observer(client, servers, poll_seconds=settings.poll_seconds)
    reconciler = Reconciler(client, observer, settings, decide=decide, metrics=metrics)
    queue = Queue(
        reconciler.reconcile,
        workers=settings.workers,
        resync=reconciler.keys,
        resync_seconds=settings.resync_seconds,
    )
    metrics.watch_queue(queue.backlog)
    metrics.serve(settings.metrics_port, settings.listen)
    await kopf.operator(
        clusterwide=settings.namespace is None,
        namespaces=[settings.namespace] if settings.namespace else [],
        liveness_endpoint=liveness,
        memo=handlers.Operator(settings, reconciler, queue, Wakeups(client, settings.namespace, queue.wake)),
    )


if __name__ == "__main__":
    main()
