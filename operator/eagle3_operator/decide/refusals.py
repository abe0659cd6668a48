"""Refusals: what the API server does not let us do to a child, in its words, and what a person can do about it.

A refusal is an observation like any other, only that it comes after a first decision: what cannot be done is decided once
more, with the knowledge of it, so that nothing is said to be under way that is not, and nothing goes for what does not come.
"""

from eagle3_api.conditions import Reason
from eagle3_operator.observation import Observation, Refusal

#: By words of the refusal, the first match: those of Kubernetes' own quotas, admission and authorization, and ours.
_ADVICE = (
    ("quota", "Free some of that quota, or have it raised: kubectl describe quota -n {namespace}."),
    ("calling webhook", "Mend that webhook, or ask whoever runs it."),
    ("denied", "Change what it objects to in this object, or ask whoever set that rule."),
    (" cannot ", "The operator's role lacks that right: install the chart again, in the operator's version."),
    ("does not belong to this object", ""),
)
_ELSE = "Correct the field of this object that it stems from."


def told(refusal: Refusal, namespace: str) -> tuple[Reason, str]:
    """What was refused, why, and what to do."""
    advice = next((advice for words, advice in _ADVICE if words in refusal.message), _ELSE).format(namespace=namespace)
    sentence = str(refusal).rstrip(".")
    return Reason.REFUSED, " ".join(filter(None, (f"{sentence}.", advice, "It is tried again by itself.")))


def of(seen: Observation, namespace: str, *children: tuple[str, str]) -> tuple[Reason, str] | None:
    """What to say of the first of these children, by kind and name, to which something could not be done."""
    refusals = (refusal for child in children if (refusal := seen.refusal(*child)) is not None)
    return next((told(refusal, namespace) for refusal in refusals), None)
