"""Refusals: what the API server does not let us do to a child, in its words, and what a person can do about it.

A refusal is an observation like any other, only that it comes after a first decision: what cannot be done is decided once
more, with the knowledge of it, so that nothing is said to be under way that is not, and nothing goes for what does not come.
"""

import re
from dataclasses import replace

from eagle3_api.conditions import Reason, Type
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.decision import Because
from eagle3_operator.observation import Refusal

#: By words of the refusal, the first match: those of Kubernetes' own quotas, admission and authorization, and ours.
_ADVICE = (
    ("quota", "Free some of that quota, or have it raised: kubectl describe quota -n {namespace}."),
    ("calling webhook", "Repair that webhook, or ask whoever runs it."),
    ("denied", "Change what it objects to in this object, or ask whoever set that rule."),
    (" cannot ", "The operator's role lacks that permission: upgrade the chart to the operator's version."),
    ("does not belong to this object", ""),
)
_ELSE = "Correct the field of this object that causes it."

#: What is another at each try. That a day is another one too is told, once a day.
_PASSING = r"""(?xi:
      \S+:\d+->                                                     # one's own end of a connection
    | (?<![\d:]) \d{1,2}:\d\d:\d\d (?:[.,]\d+)?                     # the time of day
    | (?<=\d{8}T) \d{6}
    # Seconds since 1970, or parts of them, where they are called a time: a quota's bytes are as large.
    | \b (?:\w*time|\w*timestamp|ts?|at|now|since|until|after|before) ["']? [ =:]{1,3} ["']?
      1[6-9]\d{8} (?:\d{3}|\d{6}|\d{9})? (?:\.\d+)? \b
    | \b (?:\d+[hm])* \d+ (?:\.\d+)? [ ]? (?:[nuµμm]?s|seconds) \b   # how long something took
    | \b (?:request|trace|correlation) [ _-]? id \W* [:=] \W* [\w-]+
    | (?<![\w-]) [0-9a-f]{8} (?:-[0-9a-f]{4}){3} - [0-9a-f]{12} \b
)"""


#: Characters of a refusal's words that are told: a condition has 4,000, and may tell of three, with what to do about each.
_LONGEST_WORDS = 700


def shortened(words: str) -> str:
    """The words of a refusal as far as they are told: where they are cut, without what is another at each try.

    Where the cut comes must not depend on how long that is: the rest would be another each time.
    """
    lasting = re.sub(_PASSING, "…", words)
    return words if len(lasting) <= _LONGEST_WORDS else f"{lasting[: _LONGEST_WORDS - 1]}…"


def as_before(refused: tuple[Refusal, ...], before: Eagle3DraftStatus) -> tuple[Refusal, ...]:
    """Refusals in the words in which the status tells them already, where these differ only in what is another at each try.

    Words that change are a status that is written, an Event, and by the former another look at once: for ever.

    Args:
        refused: what could not be done just now.
        before: the status.
    """
    told_before = next((c.message for c in before.conditions if c.type == Type.RECONCILING), "")
    return tuple(_as_before(refusal, told_before) for refusal in refused)


def _as_before(refusal: Refusal, told_before: str) -> Refusal:
    lasting = map(re.escape, re.split(_PASSING, refusal.message.rstrip(".")))
    former = re.search(f"{re.escape(refusal.what)}: ({_PASSING.join(lasting)})", told_before)
    return refusal if former is None else replace(refusal, message=former[1])


def told(refusal: Refusal, namespace: str) -> Because:
    """What was refused, why, and what to do."""
    advice = next((advice for words, advice in _ADVICE if words in refusal.message), _ELSE).format(namespace=namespace)
    sentence = str(refusal).rstrip(".")
    return Because(
        Reason.REFUSED, " ".join(filter(None, (f"{sentence}.", advice, "The operator tries it again by itself.")))
    )
