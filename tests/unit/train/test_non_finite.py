"""What is to blame for numbers that are not finite is named, as much of it as a person reads."""

from pathlib import Path

import pytest

from eagle3_draft.features import Features
from eagle3_draft.train.non_finite import refusal
from unit.train import corpus

pytestmark = pytest.mark.usefixtures("one_rank")


def test_at_most_eight_conversations_are_named_and_the_rest_is_counted(tmp_path: Path) -> None:
    made = corpus.make(tmp_path, train=11, held_out=1)
    samples = Features.open(made.features).train
    told = refusal("step 3", "train", samples, range(11)).message
    assert told.startswith("step 3; the features of the train conversations that made it are finite")
    assert [f"{number} (number {number} of " in told for number in range(11)] == [True] * 8 + [False] * 3
    assert told.endswith("and 3 more")
    assert refusal("step 3", "train", samples, range(8)).message.endswith(")")
