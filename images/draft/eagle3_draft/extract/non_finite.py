"""Conversations that are left out because the target's states over them are not finite: how many are borne."""

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.extract.inputs import Inputs

#: Share of an extraction's conversations. More is no bad sample.
BOUND = 0.01

#: Why they are left out, in the numbers.
WHY = "hidden states not finite"


def require_few(skipped: int, inputs: Inputs) -> None:
    """Raises StageError where too many conversations of the extraction are left out (NonFinite).

    Args:
        skipped: how many, as far as is known: of a run, or of all parts that are finished.
        inputs: of the extraction.
    """
    every = len(inputs.conversations)
    if skipped > BOUND * every:
        raise StageError(
            ExitCode.NON_FINITE,
            Reason.NON_FINITE,
            f"the target's hidden states are not finite in {skipped} of {every} conversations, "
            f"more than {BOUND:.0%}: its weights are broken, or its dtype overflows (--dtype)",
        )
