"""Objects of a kind as they were a moment ago: what many looks want, and what hardly changes once it is there."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from eagle3_operator.cluster.client import Client, Json


class Kept:
    """Objects of a kind, each asked for once in a while. One that is not there is asked for each time.

    Args:
        client: of the API server.
        kind: of the objects.
        seconds: how old what is told may be.
        clock: monotonic seconds.
    """

    def __init__(
        self, client: Client, kind: str, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._kind = kind
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Until when each is told, the oldest first.
        self._kept: OrderedDict[tuple[str, str], tuple[float, Json]] = OrderedDict()

    def get(self, namespace: str, name: str, *, anew: bool = False) -> Json | None:
        """An object, or None.

        Args:
            namespace, name: its.
            anew: do not tell what is kept.
        """
        now = self._clock()
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[0] <= now:
                self._kept.popitem(last=False)
            if not anew and (known := self._kept.get((namespace, name))):
                return known[1]
        # Whoever sees too late that it was made only makes it once more.
        found = self._client.get(self._kind, namespace, name, cached=True)
        with self._lock:
            self._kept.pop((namespace, name), None)
            if found is not None:
                self._kept[namespace, name] = (now + self._seconds, found)
        return found

    def forget(self, namespace: str, name: str) -> None:
        """Ask for an object anew at the next look: it is about to change."""
        with self._lock:
            self._kept.pop((namespace, name), None)
