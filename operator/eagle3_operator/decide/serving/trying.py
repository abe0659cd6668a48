"""The candidate: the one revision that still has to prove itself.

The plain revision first, because it is the baseline of every other and what every rollback can fall back to; then the one
with the wanted draft. What serves is never measured: live traffic shares its servers. Where it has to be, because the load
or the prompts of the probe have changed or a person asks, another revision of the same key is, and takes over if it passes.
"""

from dataclasses import replace

from eagle3_api.conditions import Reason
from eagle3_api.status import RevisionStatus
from eagle3_operator.decide.pods.diagnosis import not_begun
from eagle3_operator.decide.pods.waiting import advised
from eagle3_operator.decide.revisions import Revision, Standing, Wanted
from eagle3_operator.decide.serving import place
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.decide.serving.probing import fits, measure
from eagle3_operator.decide.view import Actions, View
from eagle3_operator.decision import Because
from eagle3_operator.manifests import names


def choose(fleet: Fleet, view: View) -> tuple[Fleet, int | None]:
    """The fleet with the revisions that the object wants, and the number of the one to try; None where nothing is to be tried."""
    wanted = fleet.wanted
    if wanted is None:
        return fleet, None
    fleet, plain = _measurable(fleet, view, wanted, None)
    if plain.standing is not Standing.PROVEN:
        return fleet, plain.number if plain.standing is Standing.UNTRIED else None
    fleet, draft = _measurable(fleet, view, wanted, plain)
    return fleet, draft.number if draft.standing is Standing.UNTRIED else None


def driven(fleet: Fleet, number: int, view: View, wanted: Wanted, actions: Actions) -> tuple[Fleet, Because]:
    """The fleet with the candidate one step further, and what to say of it: its server starts, and once ready is measured."""
    candidate = fleet[number]
    kind = "without speculation" if candidate.plain else "with the new draft"
    if candidate.ready == 0 or candidate.replicas == 0 or candidate.edited or _refused(candidate, view):
        return started(fleet, number, view, f"{candidate.name} is starting, {kind}")
    plain = None if candidate.plain else fleet.latest(wanted.plain_key)
    status, step = measure(candidate, plain, view, wanted, fleet.facts, serving=fleet.occupant)
    actions.add(step)
    reason = Reason.MEASURING_BASELINE if candidate.plain else Reason.PROBING
    told = Because(reason, f"{candidate.name} is being measured, {kind}, before it gets traffic")
    if step.status.reason not in (None, Reason.PENDING):
        told = Because(step.status.reason, step.status.message)
    return fleet.having(replace(candidate, status=status)), told


def started(fleet: Fleet, number: int, view: View, said: str) -> tuple[Fleet, Because]:
    """The fleet when a revision that starts has looked for a place, and what to say: ``said``, or what is in the way."""
    revision = fleet[number]
    if _refused(revision, view) is None:
        fleet = place.sought(fleet, view, revision)
    if hindrance := hindered(revision, view):
        return fleet, hindrance
    pods = revision.deployment.without_former_pods.pods if revision.deployment is not None else ()
    failures = revision.status.start_failures
    again = f"; it failed {failures} times: {revision.status.start_problem}" if failures and pods else ""
    return fleet, Because(Reason.SERVER_STARTING, f"{said}{again}")


def hindered(revision: Revision, view: View) -> Because | None:
    """What keeps a revision's pods from being made or started, and what a person can do; None where they are on their way."""
    if refused := _refused(revision, view):
        return refused
    trouble = not_begun(revision.deployment, view.now) if revision.deployment is not None else None
    return advised(trouble) if trouble is not None else None


def _refused(revision: Revision, view: View) -> Because | None:
    """What to say where its Deployment, or the Service that it is probed through, cannot be made or scaled."""
    name = names.revision_name(view.obj.metadata.name, revision.number)
    return view.refused(("Deployment", name), ("Service", name))


def _measurable(fleet: Fleet, view: View, wanted: Wanted, plain: Revision | None) -> tuple[Fleet, Revision]:
    """The revision whose measurement counts: the plain one, or, with ``plain`` measured, the one with the wanted draft."""
    revision = fleet.latest(wanted.draft_key if plain else wanted.plain_key)
    if revision is None:
        return _with_new(fleet, wanted, plain)
    measured = revision.measurement
    # What the watch has left may be judged otherwise by a load that was not measured; while it still serves, nothing is to follow it
    left = revision.dropped and revision.number == fleet.serving
    if measured is not None and not fits(measured, view, wanted) and not left:
        fleet = fleet.changed(revision.number, probe=None, proof=measured, probe_errors=0)
    if revision.number == fleet.serving and fleet[revision.number].measurement is None:
        return _with_new(fleet, wanted, plain)
    if plain is not None and plain.status.covered and fleet[revision.number].standing is Standing.UNTRIED:
        fleet = fleet.changed(revision.number, covered=True, displaces=plain.status.displaces)
    return fleet, fleet[revision.number]


def _with_new(fleet: Fleet, wanted: Wanted, plain: Revision | None) -> tuple[Fleet, Revision]:
    """The fleet with a revision of the next number: a plain one, or with ``plain`` one that serves the wanted draft.

    What the plain one had to displace, and a person's word for it, hold for the other too.
    """
    spec = fleet.spec
    status = RevisionStatus(
        number=fleet.next_number,
        key=wanted.draft_key if plain else wanted.plain_key,
        plain_key=wanted.plain_key,
        target=fleet.facts.target_digest,
    )
    if plain is not None:
        drafted = {
            "draft": wanted.draft.digest,
            "artifact": wanted.artifact,
            "expected_accept_length": wanted.expected(spec),
            "displaces": plain.status.displaces,
            "covered": plain.status.covered,
            "adaptive": spec.serve is not None and spec.serve.speculative.mode == "Auto",
        }
        status = status.model_copy(update=drafted)
    fleet = fleet.having(Revision(status, None, spec))
    return fleet, fleet[status.number]
