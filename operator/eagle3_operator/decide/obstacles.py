"""What stands in the way before anything is started: what an object may not have, a name that is taken, claims that are not there."""

from eagle3_api.conditions import Reason
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.decide.pipeline import retention
from eagle3_operator.decide.stages import sglang_version
from eagle3_operator.decide.telling.conditions import Said
from eagle3_operator.decide.view import Actions, View
from eagle3_operator.decision import Because, Manifest, Own
from eagle3_operator.manifests import claims, names
from eagle3_operator.observation import Claim
from eagle3_operator.settings import Settings

_ONE_POD = "ReadWriteOncePod"


def forbidden(obj: Eagle3Draft, settings: Settings) -> Said | None:
    """What an object may not have. Nothing new is made of it, because a pod with a service account acts in its name."""
    spec = obj.spec
    sections = {"": spec, "extract.": spec.extract, "train.": spec.train, "serve.": spec.serve}
    for path, section in sections.items():
        placement = section.placement if section is not None else None
        name = placement.service_account_name if placement is not None else None
        if name is not None and name not in settings.allowed_service_accounts:
            text = (
                f"{path}placement.serviceAccountName: {name!r} is not allowed; whoever installed the operator can "
                "allow it in the chart's values (allowedServiceAccounts)"
            )
            return Said("False", Reason.INVALID_CONFIGURATION, text)
    try:
        sglang_version(spec)
    except ValueError as error:  # admitted before there was a rule against it
        return Said("False", Reason.INVALID_CONFIGURATION, f"image: {error}")
    return None


def taken_name(view: View) -> Said | None:
    """The public Service's name, if it is somebody else's: no draft is made for days that could not be served then."""
    name = view.obj.metadata.name
    public = view.seen.services.get(name)
    if view.obj.spec.serve is None or public is None or public.owned:
        return None
    text = (
        f"Service {name} exists and does not belong to this object, which needs that name for its own Service. It is left as it is. "
        "Delete it, or give this object another name"
    )
    return Said("False", Reason.NAME_CONFLICT, text)


def unknown_prometheus(view: View, before: Eagle3DraftStatus) -> Said | None:
    """A Prometheus that nobody has: told before the first stage, not when a draft serves after days and nothing judges it.

    Later an edit of the chart's values stops nothing: ``DraftHealthy`` says that there are no metrics.
    """
    watch, servers = view.obj.spec.watch, view.settings.prometheus
    if watch is None or watch.prometheus is None or watch.prometheus.name in servers or before.stages:
        return None
    known = ", ".join(sorted(servers)) or "none"
    text = (
        f"watch.prometheus.name: the chart's values name no Prometheus {watch.prometheus.name!r} (prometheus.servers: {known}). "
        "Correct the name, have it added there, or leave watch.prometheus out, and the operator reads the serving pods directly"
    )
    return Said("False", Reason.INVALID_CONFIGURATION, text)


def without_claims(view: View, before: Eagle3DraftStatus, actions: Actions) -> Said | None:
    """Make the claims that are ours to make, which go with the object or outlive it as ``deletionPolicy`` says now.

    That of features which have gone, and it with them, is made when a stage wants it (``retention``). A draft that is adopted needs
    none: no claim for features is made for it, nor missed.

    Without a user's claim, with one that is being deleted or that its pods cannot share, or where a stranger's has the name of ours, nothing starts.
    """
    made: list[Manifest] = []
    for root in names.roots(view.obj.spec):
        name = names.claim_name(view.obj, root)
        ours = getattr(view.obj.spec.storage, root).claim is None
        if root == "features" and view.obj.spec.draft.checkpoint is not None and not _is_ours(view, name, ours):
            continue
        if (found := view.seen.claims.get(name)) is not None:
            if wrong := _wrong(view, root, found, ours):
                return wrong
            if ours and not found.terminating:
                owners = tuple(claims.claim(view.obj, root)["metadata"].get("ownerReferences", ()))
                if found.owned != bool(owners):  # deletionPolicy was edited since
                    actions.own.append(Own(name, owners))
            continue
        if root == "features" and retention.claim_has_gone(view, before):
            continue
        if not ours:
            return _missing(view, root, name)
        made.append(claims.claim(view.obj, root))
    actions.apply += made
    said = view.refused_of(made) or Because(Reason.PENDING, "the claims are being created")
    return Said("Unknown", said.reason, said.message) if made else None


def _is_ours(view: View, name: str, ours: bool) -> bool:
    """Whether there is a claim of this name that the operator made for the object."""
    found = view.seen.claims.get(name)
    return ours and found is not None and found.owned is not None


def _wrong(view: View, root: names.RootName, claim: Claim, ours: bool) -> Said | None:
    """Why nothing can be kept on a claim that is there. One of ours that is being deleted is waited for, and made anew."""
    if ours and claim.owned is None:
        return _taken(root, claim)
    if claim.terminating:
        return None if ours else _going(root, claim)
    return _not_shared(view.obj, root, claim)


def _missing(view: View, root: names.RootName, name: str) -> Said:
    text = (
        f"storage.{root}: there is no PersistentVolumeClaim {name!r} in namespace {view.obj.metadata.namespace}. Create it, correct "
        f"its name, or set storage.{root}.size instead, for the operator to create one"
    )
    return Said("False", Reason.STORAGE_UNAVAILABLE, text)


def _taken(root: names.RootName, claim: Claim) -> Said:
    """Nothing is written to a claim that nobody named and somebody else made: it may hold anything."""
    text = (
        f"storage.{root}: claim {claim.name!r} exists and does not belong to this object. Because storage.{root}.size is set, the operator "
        f"creates one of that name. Delete it or give the object another name; to use it, set storage.{root}.claim in a new object"
    )
    return Said("False", Reason.NAME_CONFLICT, text)


def _going(root: names.RootName, claim: Claim) -> Said:
    """No pod that is made now gets it, and with the last one that has it, what lies on it goes."""
    text = (
        f"storage.{root}: PersistentVolumeClaim {claim.name!r} is being deleted and will disappear when the last pod that "
        "mounts it ends. Copy its contents, then recreate it"
    )
    return Said("False", Reason.STORAGE_UNAVAILABLE, text)


def _not_shared(obj: Eagle3Draft, root: names.RootName, claim: Claim) -> Said | None:
    """Training on several nodes writes to both claims from all of them; and where one pod alone may mount a claim, no two work."""
    nodes = obj.spec.train.nodes
    served = obj.spec.serve is not None and root != "features"
    if _ONE_POD in claim.access_modes and (served or obj.spec.extract.shards > 1):
        text = (
            f'storage.{root}: claim "{claim.name}" is {_ONE_POD}, which lets one pod at a time mount it; servers, their probes and '
            "the next draft's Jobs mount it together. Use a ReadWriteMany claim, or a ReadWriteOnce one where one node is enough"
        )
        return Said("False", Reason.STORAGE_NOT_SHARED, text)
    if nodes == 1 or obj.spec.draft.checkpoint is not None or "ReadWriteMany" in claim.access_modes:
        return None
    modes = ", ".join(claim.access_modes) or "unknown"
    text = (
        f'storage.{root}: claim "{claim.name}" is {modes}, which binds all pods that mount it to one node; train.nodes is '
        f"{nodes}. Use a ReadWriteMany claim, or set train.nodes to 1 and train.gpus to what one node has"
    )
    return Said("False", Reason.STORAGE_NOT_SHARED, text)
