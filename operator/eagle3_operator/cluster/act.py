"""A ``Decision`` carried out, and never on what is not ours.

Deletions, applications, scalings, suspensions and owners, then Jobs, and the budget of disruptions last: a quota or a
webhook that refuses a Job stops no move of the Service, and a budget stops nothing at all.

Ours is what names our object as its controller, by UID; a claim that must outlive the object names nobody and is known by
its labels. Before anything is done, every name that is to be applied and was not observed is looked up: a stranger's
object of that name stops the whole decision. Jobs and JobSets need no such look: they are created, which a taken name
refuses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from eagle3_operator.cluster.client import ApiError, Client, ConflictError, Json, NameConflictError
from eagle3_operator.cluster.convert import controller_uid, is_ours
from eagle3_operator.decision import Decision, Event, Manifest

Metadata = Mapping[tuple[str, str], Json]

#: What is created and never changed; everything else is applied.
_CREATED = frozenset({"Job", "JobSet"})

#: What nothing else may wait for.
_BUDGET = "PodDisruptionBudget"

#: Statuses of an answer by which a request is refused, and will be when it is made again.
_REFUSED = frozenset({403, 422})


def act(client: Client, decision: Decision, *, namespace: str, owner: str, seen: Metadata) -> tuple[Event, ...]:
    """Carry out a decision.

    Args:
        client: of the API server.
        decision: what to do.
        namespace: of the object.
        owner: UID of the object.
        seen: metadata of the children as they were observed, by kind and name.

    Returns:
        What to tell of that was left out.

    Raises:
        NameConflictError: a name is somebody else's; nothing was done then, but what comes before a Job or JobSet of that name.
        ConflictError: a child changed since it was seen.
    """
    budgets = [manifest for manifest in decision.apply if manifest["kind"] == _BUDGET]
    made = [manifest for manifest in decision.apply if manifest["kind"] in _CREATED]
    applied = [manifest for manifest in decision.apply if manifest["kind"] not in _CREATED | {_BUDGET}]
    _refuse_strangers(client, replace(decision, apply=(*applied, *made)), owner, seen)
    for deletion in decision.delete:
        if child := seen.get((deletion.kind, deletion.name)):
            client.delete(deletion.kind, namespace, child)
    for manifest in applied:
        client.apply(manifest)
    for scale in decision.scale:
        client.scale(namespace, scale.name, scale.replicas)
    for suspension in decision.suspend:
        client.suspend(suspension.kind, namespace, suspension.name, suspension.suspend)
    for own in decision.own:
        client.merge(
            "PersistentVolumeClaim", namespace, own.claim, {"metadata": {"ownerReferences": [*own.owners] or None}}
        )
    for manifest in made:
        _create(client, manifest, owner)
    return tuple(event for budget in budgets if (event := _left_out(client, budget, owner)) is not None)


def _left_out(client: Client, budget: Manifest, owner: str) -> Event | None:
    """Apply a budget of disruptions; what to tell where it is refused, or its name is somebody else's."""
    name = budget["metadata"]["name"]
    try:
        found = _look_up(client, budget)
        if found and not _ours(found, owner, retained=False):
            raise NameConflictError(budget["kind"], name)
        client.apply(budget)
    except (ApiError, NameConflictError) as error:
        if isinstance(error, ApiError) and error.status not in _REFUSED:
            raise
        text = f"PodDisruptionBudget {name} is left out, and drains are not held to one serving pod at a time: {error}"
        return Event("Warning", "BudgetLeftOut", text)
    return None


def _create(client: Client, manifest: Manifest, owner: str) -> None:
    """Create a Job or a JobSet, unless it is there: they are never changed."""
    try:
        client.create(manifest)
    except ConflictError:
        found = _look_up(client, manifest)
        if found and not _ours(found, owner, retained=False):
            raise NameConflictError(manifest["kind"], manifest["metadata"]["name"]) from None


def _refuse_strangers(client: Client, decision: Decision, owner: str, seen: Metadata) -> None:
    for manifest in decision.apply:
        kind, wanted = manifest["kind"], manifest["metadata"]
        found = seen.get((kind, wanted["name"])) or (None if kind in _CREATED else _look_up(client, manifest))
        if found and not _ours(found, owner, retained="ownerReferences" not in wanted):
            raise NameConflictError(kind, wanted["name"])
    for kind, name in _touched(decision):
        found = seen.get((kind, name))
        if found and not _ours(found, owner, retained=kind == "PersistentVolumeClaim"):
            raise NameConflictError(kind, name)


def _look_up(client: Client, manifest: Manifest) -> Json | None:
    metadata = manifest["metadata"]
    found = client.get(manifest["kind"], metadata["namespace"], metadata["name"])
    return found["metadata"] if found else None


def _touched(decision: Decision) -> Iterator[tuple[str, str]]:
    yield from ((deletion.kind, deletion.name) for deletion in decision.delete)
    yield from (("Deployment", scale.name) for scale in decision.scale)
    yield from ((suspension.kind, suspension.name) for suspension in decision.suspend)


def _ours(metadata: Json, owner: str, *, retained: bool) -> bool:
    return is_ours(metadata, owner) if retained else controller_uid(metadata) == owner
