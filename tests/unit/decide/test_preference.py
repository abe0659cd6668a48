"""Which of the revisions that may serve should: the whole order, one revision for each place in it."""

import random
from typing import Any

import pytest

from eagle3_api.jobs import StageName
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_api.status import RevisionStatus
from eagle3_operator.decide.revisions import Revision, Wanted
from eagle3_operator.decide.serving.preference import preference
from unit.samples import FACTS, RESULTS, SPEC

WANTED = Wanted("plain", "draft", "/eagle3/drafts/a", RESULTS[StageName.CONVERT])


def revision(number: int, key: str, *, served: str | None = None, target: str = FACTS.target_digest) -> Revision:
    draft: dict[str, Any] = {} if key.startswith("plain") else {"draft": "d" * 64}
    status = RevisionStatus(number=number, key=key, plain_key="plain", target=target, promoted_at=served, **draft)
    return Revision(status, None, Eagle3DraftSpec.model_validate(SPEC))


#: The best first. r5 serves.
ORDER = (
    revision(9, "draft"),
    revision(2, "draft", served="2026-11-29T12:00:00Z"),
    revision(3, "draft of yesterday", served="2026-11-28T12:00:00Z"),
    revision(8, "draft of last week", served="2026-11-22T12:00:00Z"),
    revision(5, "plain"),
    revision(7, "plain"),
    revision(6, "plain"),
    revision(4, "plain, otherwise", served="2026-11-22T12:00:00Z"),
    revision(11, "plain, otherwise still"),
    revision(12, "draft that never served"),
    revision(10, "draft that never served either"),
    revision(1, "draft of another target", served="2026-11-29T13:00:00Z", target="another"),
    revision(0, "plain of another target", target="another"),
)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_the_one_that_is_written_down(seed: int) -> None:
    shuffled = random.Random(seed).sample(ORDER, len(ORDER))
    ordered = sorted(shuffled, key=lambda one: preference(one, WANTED, FACTS, serving=5))
    assert [one.name for one in ordered] == [one.name for one in ORDER]


def test_what_is_wanted_is_of_this_target_also_where_an_earlier_version_did_not_note_it() -> None:
    noted, not_noted = revision(1, "draft of yesterday"), revision(2, "plain", target="")
    assert preference(not_noted, WANTED, FACTS, serving=None) < preference(noted, WANTED, FACTS, serving=None)
