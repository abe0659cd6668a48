"""Wake-up calls: whatever happens to an object's children makes that object be looked at.

Only two words of a child matter, its namespace and the label that names its object: the look itself reads everything anew.
So only metadata is watched, of what carries our labels, and nothing is kept. One thread per kind waits for the API server.

What was there before a watch began is not told; at the start every object is looked at anyway. A watch that is interrupted
goes on from where it was. One that cannot (the API server remembers only so much) has missed nobody knows what, so every
object is looked at once.
"""

import logging
import threading
from collections.abc import Callable

from eagle3_api import KIND
from eagle3_operator.cluster.client import ApiError, Client, GoneError, StoppingError
from eagle3_operator.cluster.queue import Key
from eagle3_operator.manifests.names import FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL

logger = logging.getLogger(__name__)

#: The kinds whose changes may matter to the object that their label names.
KINDS = ("Job", "Deployment", "Pod", "Service")

_LABELS = f"{MANAGED_BY_LABEL}={FIELD_MANAGER},{NAME_LABEL}"
_RETRY_SECONDS = 2.0


class Wakeups:
    """The watches of the children of all objects.

    Args:
        client: of the API server.
        namespace: to watch; all of them without.
        wake: told the key of each object that is to be looked at, from any thread.
    """

    def __init__(self, client: Client, namespace: str | None, wake: Callable[[Key], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._wake = wake
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to watch. What happens after this returned is told."""
        for kind in KINDS:
            # Daemons: a thread that waits for the API server must not keep the process from ending.
            arguments = (kind, self._first_version(kind))
            threading.Thread(target=self._follow, args=arguments, name=f"watch {kind}", daemon=True).start()

    def stop(self) -> None:
        """Tell nothing more."""
        self._stopped.set()

    def _first_version(self, kind: str) -> str | None:
        try:
            return self._client.version(kind, self._namespace)
        except ApiError as error:
            logger.warning("the watch of every %s begins later: %s", kind, error)
            return None

    def _follow(self, kind: str, version: str | None) -> None:
        while not self._stopped.is_set():
            try:
                if version is None:
                    latest = self._client.version(kind, self._namespace)
                    self._wake_all()
                    version = latest
                for metadata in self._client.changes(kind, self._namespace, _LABELS, version):
                    version = metadata["resourceVersion"]
                    if name := (metadata.get("labels") or {}).get(NAME_LABEL):
                        self._tell(Key(metadata["namespace"], name))
            except GoneError as error:
                logger.info("changes of a %s may have been missed, so every object is looked at: %s", kind, error)
                version = None
                self._stopped.wait(_RETRY_SECONDS)
            except StoppingError:
                return
            except Exception as error:  # whatever it was: that a watch has ended would be noticed by nobody
                if self._stopped.is_set():
                    return
                logger.warning("the watch of every %s was interrupted and goes on: %s", kind, error)
                self._stopped.wait(_RETRY_SECONDS)

    def _wake_all(self) -> None:
        for metadata in self._client.metadata(KIND, self._namespace):
            self._tell(Key(metadata["namespace"], metadata["name"]))

    def _tell(self, key: Key) -> None:
        if not self._stopped.is_set():
            self._wake(key)
