"""Findings for people, for programs and for shells."""

from collections.abc import Sequence

from eagle3_api.checkpoints.rules import Finding, Level
from eagle3_api.conditions import Reason
from eagle3_api.exit_codes import ExitCode

_WORDS = {
    Level.PASSED: "ok",
    Level.MENDED: "mended",
    Level.UNKNOWN: "unknown",
    Level.WARNING: "warning",
    Level.REFUSED: "REFUSED",
}

#: A person mends one thing at a time; the rest is counted.
_SHOWN = 3


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level among findings."""
    return max((finding.level for finding in findings), default=Level.PASSED)


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where the draft can be converted, 1 where somebody should read the warnings, 13 where it is refused."""
    level = worst(findings)
    if level is Level.REFUSED:
        return ExitCode.REFUSED
    return 1 if level is Level.WARNING else 0


def refusal(findings: Sequence[Finding]) -> tuple[Reason, str] | None:
    """The reason and the message of a condition; None where nothing is refused."""
    refused = [finding for finding in findings if finding.level is Level.REFUSED]
    if not refused:
        return None
    messages = [finding.message for finding in refused[:_SHOWN]]
    if len(refused) > _SHOWN:
        messages.append(f"and {len(refused) - _SHOWN} more")
    return refused[0].reason or Reason.CONFIG_INVALID, "; ".join(messages)


def warnings(findings: Sequence[Finding]) -> list[str]:
    """What somebody should read although it is converted."""
    return [finding.message for finding in findings if finding.level is Level.WARNING]


def to_json(findings: Sequence[Finding]) -> list[dict[str, str | None]]:
    """Each finding with its rule."""
    return [
        {
            "rule": finding.rule.id,
            "verdict": _WORDS[finding.level].lower(),
            "message": finding.message,
            "reason": finding.reason,
            "what": finding.rule.what,
            "why": finding.rule.why,
            "mend": finding.rule.mend,
        }
        for finding in findings
    ]


def table(findings: Sequence[Finding]) -> str:
    """A line for each finding; below, why the refused ones matter and how to mend them."""
    width = max(len(finding.rule.id) for finding in findings)
    lines = [
        f"{_WORDS[finding.level]:<8} {finding.rule.id:<{width}}  {finding.message or finding.rule.what}"
        for finding in findings
    ]
    bad = {finding.rule.id: finding.rule for finding in findings if finding.level >= Level.WARNING}
    if bad:
        lines.append("")
    lines += [f"{rule.id}: {rule.why}. {rule.mend}" for rule in bad.values()]
    return "\n".join(lines)
