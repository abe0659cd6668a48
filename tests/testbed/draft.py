"""An ``Eagle3Draft`` as it is read back, with what tests and the demo ask of it."""

from dataclasses import dataclass
from typing import Any

from eagle3_api.status import Condition, Eagle3DraftStatus, RevisionStatus


@dataclass(frozen=True)
class Draft:
    """One object, as the API server has it now."""

    json: dict[str, Any]

    @property
    def status(self) -> Eagle3DraftStatus:
        return Eagle3DraftStatus.model_validate(self.json.get("status", {}))

    @property
    def current(self) -> bool:
        """The status speaks of the newest spec."""
        return self.status.observed_generation == self.generation

    @property
    def generation(self) -> int:
        """Of the spec."""
        return int(self.json["metadata"]["generation"])

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, or None where it is absent."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    def says(self, kind: str, status: str, reason: str | None = None) -> bool:
        """Whether a condition of the newest generation has this status (and reason)."""
        condition = self.condition(kind)
        return (
            condition is not None
            and condition.observed_generation == self.generation
            and condition.status == status
            and (reason is None or condition.reason == reason)
        )

    @property
    def ready(self) -> bool:
        return self.says("Ready", "True")

    @property
    def stalled(self) -> bool:
        return self.says("Stalled", "True")

    def revision(self, number: int) -> RevisionStatus:
        """One revision; AssertionError when there is none of this number."""
        found = [r for r in self.status.revisions if r.number == number]
        assert found, f"there is no r{number}: {[r.number for r in self.status.revisions]}"
        return found[0]

    def __str__(self) -> str:
        status = self.status
        lines = [f"{c.type}={c.status} {c.reason}: {c.message}" for c in status.conditions]
        return "\n".join([f"{status.phase} {status.revision}", *lines])
