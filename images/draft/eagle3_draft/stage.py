"""How a stage ends badly: the one exception that carries an exit code, a reason and a message for a person."""

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode


class StageError(Exception):
    """A stage cannot go on.

    Args:
        code: what it means for the Job (``ExitCode``): 10-19 are not tried again.
        reason: the reason of the condition that a user will see.
        message: what is wrong, where, and what to do.
    """

    def __init__(self, code: ExitCode, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
