"""Approval: once there is traffic to lose, what takes pods away from the public Service waits for a person.

There is once the object has been Ready, or the revision that it wants has been proven and has served.

``eagle3.dev/approve: r<n>@<key8>`` is that person's word for a roll-out, ``train@<key8>`` for a training that the servers
make room for (``convert@<key8>`` where a draft is adopted). It names the key, so that it approves what was read and nothing
that came later. That of a roll-out is used up once its revision serves or is given up (``status.handled``), so that it does
not approve the same on another day. Only the last such word is remembered. The operator never edits the annotation.
"""

from dataclasses import dataclass

from eagle3_api.spec import AutoApply, Eagle3Draft
from eagle3_operator.decide.commands import annotate
from eagle3_operator.manifests.names import KEY_CHARACTERS

APPROVE_ANNOTATION = "eagle3.dev/approve"


@dataclass(frozen=True)
class Approvals:
    """What of one object waits for a person, and what that person said."""

    obj: Eagle3Draft
    #: There is traffic to lose.
    ready_once: bool
    #: The word that was used up last.
    used: str | None = None

    def needed(self, *, outage: bool) -> bool:
        """Whether something waits; ``outage``: the Service would have fewer pods, or none, for a while."""
        policy = self.obj.spec.auto_apply
        waits = policy is AutoApply.NEVER or (policy is AutoApply.WHEN_NO_OUTAGE and outage)
        return waits and self.ready_once

    def given(self, what: str, key: str) -> bool:
        """Whether the annotation names this (``r<n>``, ``train``) with this key."""
        named, _, start = self.word.partition("@")
        fresh = self.word != self.used
        return fresh and named == what and len(start) >= KEY_CHARACTERS and key.startswith(start)

    @property
    def word(self) -> str:
        """What the annotation says."""
        return self.obj.metadata.annotations.get(APPROVE_ANNOTATION, "")

    def command(self, what: str, key: str) -> str:
        """The sentence with which a person is told how to approve this; with more of the key where the shorter word is used up."""
        words = (f"{what}@{key[:characters]}" for characters in (KEY_CHARACTERS, KEY_CHARACTERS + 1))
        fresh = next(word for word in words if word != self.used)
        return f"Approve: {annotate(self.obj.metadata, APPROVE_ANNOTATION, fresh)}"
