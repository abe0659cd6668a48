"""How kopf watches the objects: in which pages, for how long; and that it stores nothing anywhere."""

from typing import Any

import kopf

from eagle3_api import GROUP

#: Objects of one answer: what is decoded at once is what costs memory.
_PAGE = 100


def configure(settings: kopf.OperatorSettings, *, namespaced: bool) -> None:
    """Set kopf up.

    Args:
        settings: of the framework.
        namespaced: one namespace is watched, without rights beyond it.
    """
    # Another operator's peering object must not freeze this one. Two of us, as while a node is lost, work twice, and what one
    # has made to serve or to run is not changed by the other.
    settings.peering.standalone = True
    # No finalizer is ever set; but under its default name kopf would remove those of other operators.
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = NoDiffs()
    settings.posting.enabled = False
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.chunk_size = _PAGE
    settings.queueing.idle_timeout = 1
    settings.scanning.disabled = namespaced
    settings.process.ultimate_exiting_timeout = 30


class NoDiffs(kopf.DiffBaseStorage):
    """Nobody asks what changed in an object. Without this kopf copies each one deeply, several times per event."""

    def build(self, **_: Any) -> Any:
        """Nothing of an object is compared."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Nothing is stored."""
