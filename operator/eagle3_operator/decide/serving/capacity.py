"""Capacity: how many pods each revision has, and what makes it so."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from eagle3_api.jobs import Facts
from eagle3_operator.decide.revisions import Revision, record
from eagle3_operator.decide.view import View
from eagle3_operator.decision import Manifest, Scale
from eagle3_operator.manifests import names, servers


@dataclass(frozen=True)
class Claimant:
    """A revision that is to get pods.

    Attributes:
        revision: which one.
        takes_place: there are no GPUs for it beside what serves.
    """

    revision: Revision
    takes_place: bool


def replicas(
    revisions: Collection[int],
    *,
    count: int,
    serving: int | None,
    baking: Mapping[int, int],
    goal: Claimant | None,
    candidate: Claimant | None,
) -> dict[int, int]:
    """Pods for what serves, what is kept warm, what shall serve and what is tried. In this order: the later one wins.

    Args:
        revisions: the numbers of all of them; the others get none.
        count: pods of a revision that serves.
        serving: the revision that the public Service selects.
        baking: those that are still kept warm, and the pods that each has: what serves grows, and not they.
        goal: what shall serve.
        candidate: what has to prove itself; one pod is enough for that.
    """
    want = dict.fromkeys(revisions, 0)
    if serving is not None:
        want[serving] = count
    want |= {number: min(count, pods) for number, pods in baking.items()}
    if goal is not None:
        want = _given(want, goal, count, serving)
    if candidate is not None:
        want = _given(want, candidate, max(1, min(count, candidate.revision.replicas)), serving)
    return want


def _given(want: Mapping[int, int], claimant: Claimant, count: int, serving: int | None) -> dict[int, int]:
    """One pod of what serves goes for the first that takes its place, and one more for each that is ready there."""
    number, kept = claimant.revision.number, dict(want)
    if claimant.takes_place:
        kept = dict.fromkeys(want, 0)
        if serving is not None:
            kept[serving] = max(0, want[serving] - max(1, claimant.revision.ready))
    return kept | {number: count}


def enough(former: Revision | None, count: int) -> int:
    """Ready pods with which a revision takes over: then no fewer answer than before, and at least one."""
    return max(1, min(count, former.ready if former is not None else 0))


def made(revision: Revision, count: int, view: View, facts: Facts) -> Manifest:
    """The Deployment of a revision that can be made."""
    return servers.deployment(
        view.obj,
        view.settings,
        facts,
        number=revision.number,
        key=revision.status.key,
        replicas=count,
        draft=revision.status.artifact,
        record=record(revision.status),
        one_node=view.seen.one_node_claims,
    )


def bring(revision: Revision, count: int, view: View, facts: Facts) -> tuple[list[Manifest], list[Scale]]:
    """What gives a revision so many pods: its Deployment and Service where they are missing, or a scaling.

    Without a Deployment it can run, is to have pods, and its name is free.
    """
    name, number, deployment = view.obj.metadata.name, revision.number, revision.deployment
    if deployment is None:
        return [made(revision, count, view, facts), servers.service(view.obj, number=number)], []
    missing = names.revision_name(name, number) not in view.seen.services
    services = [servers.service(view.obj, number=number)] if missing else []
    return services, [Scale(deployment.name, count)] if deployment.replicas != count else []
