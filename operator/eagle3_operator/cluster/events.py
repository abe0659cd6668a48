"""Events: what happened, for people who look with ``kubectl describe``. They are lost without harm, and never fail a reconcile."""

import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime

from eagle3_api import API_VERSION, KIND, times
from eagle3_operator.cluster.client import ApiError, Client, ConflictError, Json
from eagle3_operator.decision import Event
from eagle3_operator.manifests.names import FIELD_MANAGER

logger = logging.getLogger(__name__)

#: The API server takes no longer messages.
_LONGEST = 1024


def post(client: Client, obj: Json, events: Iterable[Event], now: datetime) -> None:
    """Post Events about an object. One that was posted before is counted up.

    Args:
        client: of the API server.
        obj: the object.
        events: what happened.
        now: the time.
    """
    for event in events:
        try:
            _post(client, _event(obj, event, now), now)
        except ApiError as error:
            logger.warning("the event %s could not be posted: %s", event.reason, error)


def _post(client: Client, event: Json, now: datetime) -> None:
    try:
        client.create(event)
    except ConflictError:
        name, namespace = event["metadata"]["name"], event["metadata"]["namespace"]
        # The answer to a patch says what reading would say; the operator has no right to read Events.
        posted = client.merge("Event", namespace, name, {"lastTimestamp": times.text(now)})
        client.merge("Event", namespace, name, {"count": (posted.get("count") or 1) + 1})


def _event(obj: Json, event: Event, now: datetime) -> Json:
    metadata = obj["metadata"]
    # The same words about the same object make the same name: the API server finds the repetition, also after a restart.
    same = "\0".join((metadata["uid"], event.type, event.reason, event.message))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(same.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message if len(event.message) <= _LONGEST else f"{event.message[: _LONGEST - 1]}…",
        "count": 1,
        "firstTimestamp": times.text(now),
        "lastTimestamp": times.text(now),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
    }
