"""The one status write of a reconcile, and the conditions that the shell itself has to say."""

from datetime import datetime

from eagle3_api import KIND, times
from eagle3_api.conditions import ORDER, Reason, Status, Type
from eagle3_api.status import Condition, Phase
from eagle3_operator.cluster.client import Client, Json


def write(client: Client, seen: Json, status: Json) -> bool:
    """Write a status if it differs from the one that was seen.

    Args:
        client: of the API server.
        seen: the object as it was read at the beginning of the reconcile.
        status: the whole new status.

    Returns:
        Whether anything was written.

    Raises:
        ConflictError: the object has changed since; look at it again.
    """
    if seen.get("status") == status:
        return False
    client.replace_status(KIND, seen, status)
    return True


def condition(status: Json, type_: Type) -> Json:
    """What a status says of one condition; empty where it says nothing."""
    return next((one for one in status.get("conditions") or () if one["type"] == type_), {})


def available(status: Json) -> bool | None:
    """Whether what serves has a ready pod; None where it is to have none: nothing serves, or it is scaled to nothing."""
    said = condition(status, Type.SERVER_AVAILABLE)
    if said.get("status") not in ("True", "False") or said["reason"] in (Reason.SCALED_TO_ZERO, Reason.MAKING_ROOM):
        return None
    return bool(status.get("replicas"))


def told_stalled(seen: Json, reason: Reason) -> str:
    """What the status that was seen tells of this generation's being stalled for a reason; nothing if it does not."""
    said = condition(seen.get("status") or {}, Type.STALLED)
    told = said.get("status"), said.get("reason"), said.get("observedGeneration")
    return str(said["message"]) if told == ("True", reason, seen["metadata"].get("generation", 1)) else ""


#: What is told of servers: that all is well nobody knows who has not looked at them.
_OF_SERVERS = (Type.SERVER_AVAILABLE, Type.SPECULATION_ACTIVE, Type.DRAFT_HEALTHY)


def stalled(seen: Json, reason: Reason, message: str, now: datetime) -> Json:
    """The status that was seen, with Ready, Reconciling and Stalled telling that nothing can be done and why; what is well with its
    servers is not known.

    It is the one status that no decision makes: of an object that cannot be read (``InvalidConfiguration``), or about which
    deciding fails (``InternalError``): no former Ready may stand then. Everything that the status remembers stays as it is.

    Args:
        seen: the object as it was read.
        reason: why.
        message: what is wrong, and what to do.
        now: the time.
    """
    status: Json = dict(seen.get("status") or {})
    generation = seen["metadata"].get("generation", 1)
    stored = {condition["type"]: condition for condition in status.get("conditions") or ()}
    said = dict(stored)
    told: list[tuple[Type, Status]] = [(Type.READY, "False"), (Type.RECONCILING, "False"), (Type.STALLED, "True")]
    told += [(type_, "Unknown") for type_ in _OF_SERVERS if stored.get(type_, {}).get("status") == "True"]
    for type_, value in told:
        same = type_ in stored and stored[type_]["status"] == value
        said[type_] = Condition(
            type=type_,
            status=value,
            reason=reason,
            message=message,
            observed_generation=generation,
            last_transition_time=stored[type_]["lastTransitionTime"] if same else times.text(now),
        ).to_json()
    status["conditions"] = [said[type_] for type_ in ORDER if type_ in said]
    return status | {"observedGeneration": generation, "phase": Phase.STALLED.value}
