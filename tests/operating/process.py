"""The operator as it runs in its pod: a process of its own, which a test may stop, kill and start again."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from testcluster.wait import wait_for

METRICS_PREFIX = "eagle3_operator_"


class OperatorProcess:
    """One operator for one namespace, or for all without; as a context manager it is killed at the end.

    Args:
        kubeconfig: of the cluster.
        folder: for its settings and its log.
        namespace: to watch.
        settings: more of ``eagle3_operator.settings``.
    """

    def __init__(self, kubeconfig: Path, folder: Path, *, namespace: str | None = None, **settings: Any) -> None:
        self.metrics_port, self.liveness_port = free_ports(2)
        self._log, self._file = folder / "operator.log", folder / "settings.yaml"
        self._file.write_text(yaml.safe_dump({"metricsPort": self.metrics_port, "namespace": namespace, **settings}))
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def liveness(self) -> str:
        """URL of its liveness probe."""
        return f"http://127.0.0.1:{self.liveness_port}/healthz"

    def start(self) -> None:
        """Start it and do not wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "eagle3_operator", "--settings", self._file, "--liveness", self.liveness],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it at once, wherever it is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, *, within: float) -> int:
        """SIGTERM; its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=within)

    def wait_until_alive(self) -> None:
        """Until it answers its liveness probe."""
        wait_for("the operator to be alive", 60, self._answer, tolerate=(httpx.HTTPError,))

    def log(self) -> list[dict[str, Any]]:
        """Its log so far, of all its lives."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def metric(self, name: str) -> float:
        """A metric of its own; 0 for one that was never counted or while it cannot be reached."""
        return self._samples().get(METRICS_PREFIX + name, 0.0)

    def metrics(self, name: str) -> dict[str, float]:
        """A metric that has labels, by these."""
        whole = METRICS_PREFIX + name
        return {key.removeprefix(whole): value for key, value in self._samples().items() if key.startswith(whole + "{")}

    def _samples(self) -> dict[str, float]:
        try:
            lines = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10).text.splitlines()
        except httpx.HTTPError:
            return {}
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def _answer(self) -> bool:
        return httpx.get(self.liveness, timeout=10).status_code == httpx.codes.OK


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
