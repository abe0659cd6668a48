"""What is to blame for numbers that are not finite is named, as much of it as a person reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from eagle3_draft.features import Features
from eagle3_draft.train.non_finite import refusal
from unit.train import corpus


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def test_at_most_eight_conversations_are_named_and_the_rest_is_counted(tmp_path: Path) -> None:
    made = corpus.make(tmp_path, train=11, held_out=1)
    samples = Features.open(made.features).train
    told = refusal("step 3", "train", samples, range(11)).message
    assert told.startswith("step 3; the features of the train conversations that made it are finite")
    assert [f"{number} (number {number} of " in told for number in range(11)] == [True] * 8 + [False] * 3
    assert told.endswith("and 3 more")
    assert refusal("step 3", "train", samples, range(8)).message.endswith(")")
