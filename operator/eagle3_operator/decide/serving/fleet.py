"""The fleet: all revisions of one object at one moment, and the questions that a roll-out asks about them.

Every question is a predicate over what is known and seen; none of them does or changes anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eagle3_api.conditions import Reason
from eagle3_api.jobs import Facts
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_operator.decide.keys import revision_key
from eagle3_operator.decide.revisions import Revision, Standing, Wanted
from eagle3_operator.decide.serving.preference import Preference, preference
from eagle3_operator.decision import Because


@dataclass(frozen=True)
class Fleet:
    """All revisions of one object.

    Attributes:
        revisions: by number.
        serving: number of the one that the public Service selects.
        wanted: what the object asks for, once its draft is converted.
        spec: of the object.
        facts: of the target, as it is now.
    """

    revisions: Mapping[int, Revision]
    serving: int | None
    wanted: Wanted | None
    spec: Eagle3DraftSpec
    facts: Facts

    def __getitem__(self, number: int) -> Revision:
        return self.revisions[number]

    def of(self, number: int | None) -> Revision | None:
        """The revision of this number, if it is one's."""
        return self.revisions.get(number) if number is not None else None

    def changed(self, number: int, **changes: object) -> "Fleet":
        """The fleet with these fields of one revision's status changed; itself if none is, with all that is judged of it."""
        revision = self.revisions[number]
        if all(getattr(revision.status, name) == value for name, value in changes.items()):
            return self
        return self.having(replace(revision, status=revision.status.model_copy(update=changes)))

    def having(self, revision: Revision) -> "Fleet":
        """The fleet with this revision, new or in place of the one of its number."""
        return replace(self, revisions={**self.revisions, revision.number: revision})

    def served_by(self, number: int | None) -> "Fleet":
        """The fleet when its public Service selects this revision, or none."""
        return replace(self, serving=number)

    def without(self, numbers: list[int]) -> "Fleet":
        """The fleet without these revisions."""
        return replace(self, revisions={n: r for n, r in self.revisions.items() if n not in numbers})

    @property
    def current(self) -> Revision | None:
        """The revision that serves."""
        return self.of(self.serving)

    @property
    def occupant(self) -> int | None:
        """The revision whose place another one may have to take: what serves, where it can have pods at all."""
        return self.serving if self.current is not None and self.can_run(self.current) else None

    @property
    def next_number(self) -> int:
        """Of the next revision."""
        return max(self.revisions, default=-1) + 1

    def latest(self, key: str) -> Revision | None:
        """The newest revision of this key: where what serves could not be measured again, another one was."""
        matching = [r for r in self.revisions.values() if r.status.key == key]
        return max(matching, key=lambda r: r.number, default=None)

    def can_run(self, revision: Revision) -> bool:
        """It has its Deployment, or that can be made again.

        A Deployment that is gone and was made from another spec cannot be made again: what came up in its name would not be
        what was proven.
        """
        return revision.deployment is not None or self.can_be_made(revision)

    def can_be_made(self, revision: Revision) -> bool:
        """Today's spec makes the very Deployment that it had, as its key says."""
        return revision.status.key == revision_key(self.spec, self.facts, revision.status.draft)

    def disproven(self, revision: Revision) -> bool:
        """The same way of serving was measured again since, and did not pass."""
        newer = (r for r in self.revisions.values() if r.number > revision.number)
        return any(r.status.key == revision.status.key and r.standing is Standing.REJECTED for r in newer)

    def may_serve(self, revision: Revision) -> bool:
        """It is proven, can have pods, and these get ready as far as is known."""
        return revision.may_serve and self._is_able(revision)

    def _is_able(self, revision: Revision) -> bool:
        return revision.startable and self.can_run(revision) and not self.disproven(revision)

    @property
    def to_be_left(self) -> bool:
        """What serves does not deserve its traffic, or cannot answer it: whatever is done now is no roll-out but a rescue.

        A bar that is raised over what serves makes none: it serves as well as before, and a mistyped number must not cost it
        its pods unasked.
        """
        current = self.current
        return current is None or not (self.may_serve(current) or (current.below_the_bar and self._is_able(current)))

    def why_left(self, revision: Revision) -> Because:
        """Why something that served may not any more."""
        newer = self.latest(revision.status.key)
        if newer is not None and self.disproven(revision) and not revision.dropped:
            return newer.judgement()
        if not self.can_run(revision):
            return Because(Reason.UNAVAILABLE, "its Deployment is gone, and the object no longer says how it was made")
        return revision.judgement()

    def replaces(self, revision: Revision) -> bool:
        """It can only start in the place of what serves (``place``)."""
        return revision.replaces(self.occupant)

    def best(self, *, without: int | None = None) -> Revision | None:
        """The revision that is preferred, of those that may serve; None where there is none.

        Args:
            without: a revision to leave out, to see what would be fallen back to.
        """
        candidates = [r for r in self.revisions.values() if r.number != without and self.may_serve(r)]
        return min(candidates, key=self._preference, default=None)

    def _preference(self, revision: Revision) -> Preference:
        return preference(revision, self.wanted, self.facts, self.serving)

    def needed(self, *others: Revision | None) -> set[int]:
        """Numbers that nobody may delete: what serves, is wanted or fallen back to, ``others``, and their baselines.

        Measuring a baseline again may take an outage. The newest number stays, because numbers are not used twice.
        """
        kept = {
            r.number for r in (self.current, self.best(), self.best(without=self.serving), *others) if r is not None
        }
        keys = {self.revisions[number].status.plain_key for number in kept}
        if self.wanted is not None:
            keys |= {self.wanted.plain_key, self.wanted.draft_key}
        return kept | {r.number for key in keys if (r := self.latest(key)) is not None} | {self.next_number - 1}
