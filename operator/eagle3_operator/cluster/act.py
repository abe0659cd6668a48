"""A ``Decision`` carried out, and never on what is not ours.

Deletions, applications, scalings, suspensions and owners, then Jobs, and the budget of disruptions last, which nothing else
waits for.

Ours is what names our object as its controller, by UID; a claim that must outlive the object names nobody and is known by
its labels. Before anything is done, every name that is to be applied and was not observed is looked up: a stranger's
object of that name stops the whole decision. Jobs and JobSets need no such look: they are created, which a taken name
refuses. A stranger's budget stops nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from eagle3_operator.cluster.client import ApiError, Client, ConflictError, Json, NameConflictError
from eagle3_operator.cluster.parse import controller_uid, is_ours
from eagle3_operator.decide.refusals import shortened
from eagle3_operator.decision import Decision, Manifest
from eagle3_operator.observation import Refusal

Metadata = Mapping[tuple[str, str], Json]

#: What is created and never changed; everything else is applied.
_CREATED = frozenset({"Job", "JobSet"})

#: What nothing else may wait for.
_BUDGET = "PodDisruptionBudget"

#: A deed, by what it does and to which child.
Deeds = set[tuple[str, str, str]]


@dataclass(frozen=True)
class _Deed:
    """One thing to do to one child."""

    verb: str
    kind: str
    name: str
    do: Callable[[], object]


def act(
    client: Client, decision: Decision, *, namespace: str, owner: str, seen: Metadata, tried: Deeds
) -> Refusal | None:
    """Carry out a decision, up to the first thing that is refused.

    What else follows from a refusal is to be decided first: where a server cannot be made, none may go for it. The new decision
    is then carried out in the same way; nothing is tried twice.

    Args:
        client: of the API server.
        decision: what to do.
        namespace: of the object.
        owner: UID of the object.
        seen: metadata of the children as they were observed, by kind and name.
        tried: what has been tried since they were; what is tried now is added.

    Returns:
        What was refused; None once all is done.

    Raises:
        NameConflictError: a name is somebody else's; nothing was done then, but what comes before a Job or JobSet of that name.
        ConflictError: a child changed since it was seen.
        NotFoundError: a child is gone, or the namespace is going.
        ApiError: the API server cannot be asked.
    """
    _refuse_strangers(client, decision, owner, seen)
    for deed in _deeds(client, decision, namespace, owner, seen):
        if (deed.verb, deed.kind, deed.name) in tried:
            continue
        tried.add((deed.verb, deed.kind, deed.name))
        try:
            deed.do()
        except ApiError as error:
            if not error.refused:
                raise
            return Refusal(deed.kind, deed.name, deed.verb, shortened(error.message))
        except NameConflictError as conflict:
            if deed.kind != _BUDGET:
                raise
            return Refusal(deed.kind, deed.name, deed.verb, str(conflict))
    return None


def _deeds(client: Client, decision: Decision, namespace: str, owner: str, seen: Metadata) -> Iterator[_Deed]:
    """All that is to be done, in order."""
    for deletion in decision.delete:
        if child := seen.get((deletion.kind, deletion.name)):
            # The cluster writes a budget's status whenever a pod becomes ready, and what is kept of it may be older
            unchanged = deletion.kind != _BUDGET
            delete = partial(client.delete, deletion.kind, namespace, child, unchanged=unchanged)
            yield _Deed("deleted", deletion.kind, deletion.name, delete)
    for manifest in decision.apply:
        if manifest["kind"] not in _CREATED | {_BUDGET}:
            yield _deed("applied", manifest, partial(client.apply, manifest))
    for scale in decision.scale:
        yield _Deed("scaled", "Deployment", scale.name, partial(client.scale, namespace, scale.name, scale.replicas))
    for one in decision.suspend:
        verb = "suspended" if one.suspend else "resumed"
        yield _Deed(verb, one.kind, one.name, partial(client.suspend, one.kind, namespace, one.name, one.suspend))
    for own in decision.own:
        kind, owners = "PersistentVolumeClaim", {"metadata": {"ownerReferences": [*own.owners] or None}}
        yield _Deed("changed", kind, own.claim, partial(client.merge, kind, namespace, own.claim, owners))
    for manifest in decision.apply:
        if manifest["kind"] in _CREATED:
            yield _deed("created", manifest, partial(_create, client, manifest, owner))
    for manifest in decision.apply:
        if manifest["kind"] == _BUDGET:
            yield _deed("applied", manifest, partial(_apply_budget, client, manifest, owner, seen))


def _deed(verb: str, manifest: Manifest, do: Callable[[], object]) -> _Deed:
    return _Deed(verb, manifest["kind"], manifest["metadata"]["name"], do)


def _create(client: Client, manifest: Manifest, owner: str) -> None:
    """Create a Job or a JobSet, unless it is there: they are never changed."""
    try:
        client.create(manifest)
    except ConflictError:
        found = _look_up(client, manifest)
        if found and not _ours(found, owner, retained=False):
            raise NameConflictError(manifest["kind"], manifest["metadata"]["name"]) from None


def _apply_budget(client: Client, budget: Manifest, owner: str, seen: Metadata) -> None:
    """Apply a budget of disruptions, unless its name is somebody else's."""
    name = budget["metadata"]["name"]
    found = seen.get((_BUDGET, name)) or _look_up(client, budget)
    if found and not _ours(found, owner, retained=False):
        raise NameConflictError(_BUDGET, name)
    client.apply(budget)


def _refuse_strangers(client: Client, decision: Decision, owner: str, seen: Metadata) -> None:
    for manifest in decision.apply:
        kind, wanted = manifest["kind"], manifest["metadata"]
        if kind == _BUDGET:
            continue
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
