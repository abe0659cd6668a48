"""The candidate: the one revision that still has to prove itself.

The plain revision first, because it is the baseline of every other and what every rollback can fall back to; then the one
with the wanted draft. What serves is never measured: live traffic shares its servers. Where it has to be, because the load
or the prompts of the probe have changed or a person asks, another revision of the same key is, and takes over if it passes.
"""

from eagle3_api.status import RevisionStatus
from eagle3_operator.decide.chain import View
from eagle3_operator.decide.fleet import Fleet
from eagle3_operator.decide.probing import fits
from eagle3_operator.decide.revisions import Revision, Standing, Wanted


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


def _measurable(fleet: Fleet, view: View, wanted: Wanted, plain: Revision | None) -> tuple[Fleet, Revision]:
    """The revision whose measurement counts: the plain one, or, with ``plain`` measured, the one with the wanted draft."""
    revision = fleet.latest(wanted.draft_key if plain else wanted.plain_key)
    if revision is None:
        return _with_new(fleet, wanted, plain)
    probe = revision.status.probe
    if probe is not None and not fits(probe, view, wanted) and not revision.dropped:
        fleet = fleet.changed(revision.number, probe=None, proof=probe, probe_errors=0)
    if revision.number == fleet.serving and fleet[revision.number].status.probe is None:
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
