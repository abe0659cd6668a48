"""What the target says is taken down once, the same whoever asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from eagle3_draft.features import Sample
from eagle3_draft.train import answers
from eagle3_draft.train.answers import GreedyTokens
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher

CPU = torch.device("cpu")
HEAD = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def conversations() -> list[Sample]:
    torch.manual_seed(1)
    masks = [[0, 0, 1, 1, 0], [0, 1], [1], [0, 0, 0], [0] + [1] * 6]
    return [
        Sample(
            input_ids=torch.zeros(len(mask), dtype=torch.int32),
            loss_mask=torch.tensor(mask, dtype=torch.uint8),
            hidden=torch.zeros(len(mask), 4),
            last=torch.randn(len(mask), 4),
        )
        for mask in masks
    ]


@pytest.mark.parametrize("group", [1, 6, 1000])
def test_a_batch_brings_the_answers_that_the_teacher_would_give_to_it(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "GROUP_TOKENS", group)
    samples, teacher = conversations(), Teacher(HEAD, torch.arange(20))
    greedy = GreedyTokens(tmp_path / ".greedy", [len(sample) for sample in samples])
    told: list[float] = []
    greedy.settle(samples, teacher, CPU, told.append)
    assert told[-1] == 1
    chosen = [4, 0, 1, 2]
    batch = pack([samples[sample] for sample in chosen], 2, greedy=[greedy.of(sample) for sample in chosen])
    assert batch.greedy is not None
    assert batch.greedy.tolist() == teacher.answer(batch.last).greedy.tolist()


def test_answers_that_were_taken_down_are_not_asked_for_again(tmp_path: Path) -> None:
    samples, lengths = conversations(), [5, 2, 1, 3, 7]
    GreedyTokens(tmp_path / ".greedy", lengths).settle(samples, Teacher(HEAD, torch.arange(20)), CPU, lambda _: None)
    again = GreedyTokens(tmp_path / ".greedy", lengths)
    again.settle([], Teacher(HEAD * 0, torch.arange(20)), CPU, lambda _: None)
    assert again.of(4).any()


def test_what_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    samples, teacher = conversations(), Teacher(HEAD, torch.arange(20))

    def killed(_share: float) -> None:
        raise KeyboardInterrupt

    greedy = GreedyTokens(tmp_path / ".greedy", [len(sample) for sample in samples])
    with pytest.raises(KeyboardInterrupt):
        greedy.settle(samples, teacher, CPU, killed)
    assert not (tmp_path / ".greedy").exists()
    greedy.settle(samples, teacher, CPU, lambda _: None)
    assert greedy.of(0)[1:3].tolist() == teacher.answer(samples[0].last[1:3]).greedy.tolist()
