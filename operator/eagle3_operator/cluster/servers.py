"""The servers' own metrics, read from their pods, where the watch has no Prometheus.

By the pods' addresses: that needs no right at all, while reading through the API server (``pods/proxy``) would let the
operator send requests to every port of every pod. Where a network policy keeps the operator out, the problem says so.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx

from eagle3_api import times
from eagle3_api.status import PODS_READ, PodReading, Reading
from eagle3_operator.cluster.prometheus import MetricsUnavailableError
from eagle3_operator.judge.counters import counted
from eagle3_operator.observation import Pod

#: Pods are near: what does not answer soon is kept from us, and a reconcile waits for it. One packet may be lost.
_TIMEOUT = httpx.Timeout(3.0, connect=1.5)
_AT_A_TIME = 8

#: What a pod says is its image's to choose: neither the size nor the length of an answer may be without bounds.
_LARGEST = 16 * 2**20
_LONGEST_SECONDS = 10.0
_HEADERS = {"Accept": "text/plain", "Accept-Encoding": "identity"}


class Servers:
    """Reads what pods count. Safe to share between threads."""

    def __init__(self) -> None:
        # A proxy of the environment is for the world outside, not for pods.
        self._http = httpx.Client(timeout=_TIMEOUT, trust_env=False)

    def read(self, pods: Sequence[Pod], now: datetime) -> Reading:
        """What these pods have counted, those of them that answer.

        Of very many pods some are left out, always the same: the accept length is a quotient, and theirs is as good.

        Raises:
            MetricsUnavailableError: none answers.
        """
        chosen = sorted(pods, key=lambda pod: pod.name)[:PODS_READ]
        with ThreadPoolExecutor(min(_AT_A_TIME, len(chosen))) as threads:
            answers = list(threads.map(self._ask, chosen))
        found = [answer for answer in answers if not isinstance(answer, str)]
        if not found:
            raise MetricsUnavailableError("; ".join(str(answer) for answer in answers[:3]))
        return Reading(time=times.text(now), pods=found)

    def _ask(self, pod: Pod) -> PodReading | str:
        """What one pod says, or why it says nothing."""
        host = f"[{pod.address}]" if ":" in (pod.address or "") else pod.address
        url = f"http://{host}:{pod.port}/metrics"
        where = f"pod {pod.name}, {url}"
        try:
            with self._http.stream("GET", url, headers=_HEADERS) as answer:
                said = counted(_text(answer), pod=pod.name, restarts=pod.restarts) if answer.is_success else None
        except httpx.HTTPError as failure:
            return f"{where}: does not answer ({failure}); check that network policies let the operator reach it"
        except ValueError as error:
            return f"{where}: its answer is not a list of counters ({error})"
        if said is None:
            return f"{where}: status {answer.status_code}, and no counters of SGLang's"
        return said


def _text(answer: httpx.Response) -> str:
    """The body of an answer; ValueError if it is too large, too slow or no text."""
    end, data = time.monotonic() + _LONGEST_SECONDS, bytearray()
    for part in answer.iter_raw():
        data += part
        if len(data) > _LARGEST or time.monotonic() > end:
            raise ValueError(f"more than {_LARGEST >> 20} MiB, or longer than {_LONGEST_SECONDS:.0f} s")
    return data.decode()
