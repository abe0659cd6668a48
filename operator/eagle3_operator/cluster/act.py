"""A ``Decision`` carried out, and never on what is not ours.

Deletions, applications, mendings, scalings, suspensions and owners, then Jobs, and the budget of disruptions last, which nothing else
waits for.

Ours is what names our object as its controller, by UID; a claim that must outlive the object names nobody and is known by
its labels. A name that is to be applied and was not observed is looked up before. Jobs and JobSets need no such look: they are
created, which a taken name refuses. What a stranger has is refused like anything else, and stops only what needs it: what
serves is watched, scaled and left all the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from eagle3_operator.cluster.client import ApiError, Client, ConflictError, Json, NameConflictError
from eagle3_operator.cluster.parse import controller_uid, is_ours
from eagle3_operator.decide.refusals import shortened
from eagle3_operator.decision import Decision, Manifest, Own
from eagle3_operator.manifests import names
from eagle3_operator.observation import Refusal

Metadata = Mapping[tuple[str, str], Json]

#: What is created and never changed; everything else is applied.
_CREATED = frozenset({"Job", "JobSet"})

#: What nothing else may wait for.
_BUDGET = "PodDisruptionBudget"

_CLAIM = "PersistentVolumeClaim"

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
        ConflictError: a child changed since it was seen.
        NotFoundError: a child is gone, or the namespace is going.
        ApiError: the API server cannot be asked.
    """
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
            return Refusal(deed.kind, deed.name, deed.verb, str(conflict))
    return None


def _deeds(client: Client, decision: Decision, namespace: str, owner: str, seen: Metadata) -> Iterator[_Deed]:
    """All that is to be done, in order."""
    touching = partial(_touching, owner, seen)
    for deletion in decision.delete:
        if child := seen.get((deletion.kind, deletion.name)):
            # The cluster writes a budget's status whenever a pod becomes ready, and what is kept of it may be older
            unchanged = deletion.kind != _BUDGET
            delete = partial(client.delete, deletion.kind, namespace, child, unchanged=unchanged)
            yield touching("deleted", deletion.kind, deletion.name, delete)
    for manifest in decision.apply:
        if manifest["kind"] not in _CREATED | {_BUDGET}:
            yield _deed("applied", manifest, partial(_apply, client, manifest, owner, seen))
    servers = [("mended", one.name, partial(client.mend, one.manifest)) for one in decision.mend]
    servers += [
        ("scaled", one.name, partial(client.scale, namespace, one.name, one.replicas)) for one in decision.scale
    ]
    for verb, name, do in servers:
        yield touching(verb, "Deployment", name, do)
    for one in decision.suspend:
        verb = "suspended" if one.suspend else "resumed"
        yield touching(verb, one.kind, one.name, partial(client.suspend, one.kind, namespace, one.name, one.suspend))
    for own in decision.own:
        patch = {"metadata": _owned(seen[_CLAIM, own.claim], owner, own)}
        yield _Deed("changed", _CLAIM, own.claim, partial(client.merge, _CLAIM, namespace, own.claim, patch))
    for manifest in decision.apply:
        if manifest["kind"] in _CREATED:
            yield _deed("created", manifest, partial(_create, client, manifest, owner))
    for manifest in decision.apply:
        if manifest["kind"] == _BUDGET:
            yield _deed("applied", manifest, partial(_apply, client, manifest, owner, seen))


def _deed(verb: str, manifest: Manifest, do: Callable[[], object]) -> _Deed:
    return _Deed(verb, manifest["kind"], manifest["metadata"]["name"], do)


def _owned(claim: Json, owner: str, own: Own) -> Json:
    """What a claim's metadata is to say of its owners, if it is as it was seen: others' references are theirs."""
    others = [reference for reference in claim.get("ownerReferences") or () if reference["uid"] != owner]
    unchanged = {"uid": claim["uid"], "resourceVersion": claim["resourceVersion"]}
    return unchanged | {"ownerReferences": [*others, *own.owners] or None}


def _create(client: Client, manifest: Manifest, owner: str) -> None:
    """Create a Job or a JobSet, unless it is there: they are never changed."""
    try:
        client.create(manifest)
    except ConflictError:
        found = _look_up(client, manifest)
        if found and not _ours(found, owner, retained=False):
            raise NameConflictError(manifest["kind"], manifest["metadata"]["name"]) from None


def _apply(client: Client, manifest: Manifest, owner: str, seen: Metadata) -> None:
    """Apply a child, unless its name is somebody else's. A Deployment is created: what serves is never changed by another decision.

    One that came after the look, of another operator in this one's place, is a conflict: it is looked at first. One that no look
    finds, because its label is gone or says another name, gets that back.
    """
    kind, wanted = manifest["kind"], manifest["metadata"]
    before = seen.get((kind, wanted["name"]))
    found = before or _look_up(client, manifest)
    if found and not _ours(found, owner, retained="ownerReferences" not in wanted):
        raise NameConflictError(kind, wanted["name"])
    label = names.NAME_LABEL
    unfindable = found is not None and (found.get("labels") or {}).get(label) != wanted["labels"][label]
    if kind == "Deployment" and before is None and not unfindable:
        client.create(manifest)
    else:
        client.apply(manifest)


def _touching(owner: str, seen: Metadata, verb: str, kind: str, name: str, do: Callable[[], object]) -> _Deed:
    """What is to be done to a child that is there, unless it is somebody else's."""

    def touch() -> None:
        found = seen.get((kind, name))
        if found and not _ours(found, owner, retained=kind == _CLAIM):
            raise NameConflictError(kind, name)
        do()

    return _Deed(verb, kind, name, touch)


def _look_up(client: Client, manifest: Manifest) -> Json | None:
    metadata = manifest["metadata"]
    found = client.get(manifest["kind"], metadata["namespace"], metadata["name"])
    return found["metadata"] if found else None


def _ours(metadata: Json, owner: str, *, retained: bool) -> bool:
    return is_ours(metadata, owner) if retained else controller_uid(metadata) == owner
