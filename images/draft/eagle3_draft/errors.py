"""How a stage ends badly: the one exception that carries an exit code, a reason and a message for a person."""

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName


class StageError(Exception):
    """A stage cannot go on.

    Args:
        code: what it means for the Job (``ExitCode``): 10-19 are not tried again.
        reason: the reason of the condition that a user will see.
        message: what is wrong, where, and what to do. The command to retry is added by the operator, which knows the object.
        retry: the stage to retry then, where it is another than the one that cannot go on.
    """

    def __init__(self, code: ExitCode, reason: Reason, message: str, *, retry: StageName | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry = retry
