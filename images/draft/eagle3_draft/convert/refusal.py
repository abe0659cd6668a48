"""Findings of the rules, as refusals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3_api.checkpoint_rules import Finding, Target, check_config, check_tensors, check_vocabulary_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.convert.weights import Source, read_map
from eagle3_draft.stage import StageError

#: A person mends one thing at a time; the rest is counted.
_SHOWN = 3


def check(config: Mapping[str, Any], source: Source, target: Target, where: Path) -> None:
    """Apply every rule that needs no look at the weights' values.

    Args:
        config: config.json, as SGLang will read it.
        source: the tensors, as SGLang will read them.
        target: what the draft is to serve, and how.
        where: for the message.

    Raises:
        StageError: the first finding's reason, and all of them in words.
    """
    refuse(where, check_config(config, target))
    refuse(where, check_tensors(config, source.headers, target))
    offsets, members = read_map(source)
    if offsets is not None:
        refuse(where, check_vocabulary_map(offsets, target, members))


def refuse(where: Path, findings: Sequence[Finding]) -> None:
    """Refuse the draft if something was found."""
    if not findings:
        return
    messages = [finding.message for finding in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        messages.append(f"and {len(findings) - _SHOWN} more")
    raise refused(findings[0].reason, f"the draft in {where} is refused: {'; '.join(messages)}")


def refused(reason: Reason, message: str) -> StageError:
    """A refusal."""
    return StageError(ExitCode.REFUSED, reason, message)
