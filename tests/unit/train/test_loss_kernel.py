"""The loss that trains, chunk by chunk with its gradient, is the one that is read."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eagle3_api.features import TeacherKind
from eagle3_api.spec import Loss
from eagle3_draft.features import LastState, Sample, Teaching, TopK
from eagle3_draft.model.factor import Factor
from eagle3_draft.train import loss_kernel
from eagle3_draft.train.batches import Batch, idle, pack
from eagle3_draft.train.loss import (
    CROSS_ENTROPY,
    SoftLabels,
    StepSums,
    Teacher,
    known_rows,
    step_sums,
    step_weights,
    total_loss,
)
from unit.train.test_loss import LOSSES

VOCABULARY, HIDDEN, STEPS = 40, 6, 3
IDS = torch.tensor([0, 3, 4, 7, 11, 12, 20, 21, 22, 30, 33, 39])
TARGET = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture(autouse=True)
def exact_numbers() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def conversation(mask: list[int], kind: TeacherKind = "LastState") -> Sample:
    last = torch.randn(len(mask), HIDDEN) * 2
    logits = last @ TARGET.T
    return Sample(
        input_ids=torch.randint(0, VOCABULARY, (len(mask),), dtype=torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.uint8),
        hidden=torch.randn(len(mask), 3 * HIDDEN),
        teaching=LastState.of(last, logits) if kind == "LastState" else TopK.of(logits, 8),
    )


def states_of(batch: Batch) -> list[Tensor]:
    """Made up, for each step those rows that are unrolled."""
    return [torch.randn(alive, HIDDEN, requires_grad=True) for alive in batch.rows.alive]


def plainly(
    states: list[Tensor], head: Tensor, batch: Batch, labels: SoftLabels, loss: Loss = CROSS_ENTROPY
) -> tuple[Tensor, StepSums]:
    logits = [state[spots] @ head.T for state, spots in zip(states, batch.rows.spots, strict=True)]
    sums = step_sums(logits, labels, batch.label_rows, IDS, loss)
    return total_loss(sums.losses, known_rows(labels, batch.label_rows), loss), sums


@pytest.mark.parametrize("kind", ["LastState", "TopK"])
@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_loss_gradient_and_marks_are_those_of_the_plain_loss(
    chunk: int, kind: TeacherKind, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_kernel, "CHUNK", chunk)
    torch.manual_seed(1)
    head = torch.randn(len(IDS), HIDDEN, requires_grad=True)
    masks = ([0, 0, 1, 1, 1, 0, 0] + [1] * 9, [0, 1, 1, 0], [1])
    batch = pack([conversation(mask, kind) for mask in masks], STEPS)
    labels = Teacher(TARGET, IDS).soft_labels(batch.teaching)
    assert 0 < labels.known.sum() < len(labels.known)
    states = states_of(batch)
    expected, sums = plainly(states, head, batch, labels, loss)
    gradients = torch.autograd.grad(3 * expected, [head, *states])

    weights = step_weights(known_rows(labels, batch.label_rows), loss)
    result = loss_kernel.unroll_loss(states, Factor(head), batch, labels, Teacher(TARGET, IDS), weights, loss)
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(result.sums.losses, sums.losses)
    for name in ("counted", "right", "labelled"):
        assert getattr(result.sums, name).tolist() == getattr(sums, name).tolist()
    found = torch.autograd.grad(3 * result.loss, [head, *states])
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("gradient", [True, False], ids=["training", "evaluation"])
def test_the_logits_that_exist_at_a_time_are_bounded_also_for_a_draft_that_knows_all_tokens(
    gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_kernel, "LOGITS", 4 * VOCABULARY)
    shapes: list[tuple[int, ...]] = []
    of_teacher, of_draft = Teacher.logits, Factor.forward

    def taught(teacher: Teacher, teaching: Teaching) -> Tensor:
        logits = of_teacher(teacher, teaching)
        shapes.append(tuple(logits.shape))
        return logits

    def proposed(head: Factor, x: Tensor) -> Tensor:
        logits = of_draft(head, x)
        shapes.append(tuple(logits.shape))
        return logits

    monkeypatch.setattr(Teacher, "logits", taught)
    monkeypatch.setattr(Factor, "forward", proposed)
    torch.manual_seed(4)
    head = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    teacher = Teacher(TARGET, torch.arange(VOCABULARY))
    batch = pack([conversation([0] + [1] * 20)], STEPS)
    with torch.set_grad_enabled(gradient):
        result = loss_kernel.unroll_loss(
            states_of(batch), Factor(head), batch, teacher.labels(batch.teaching), teacher, torch.ones(STEPS)
        )
    assert result.sums.counted.tolist() == [len(rows) for rows in batch.label_rows]
    assert len(batch.labelled) == 20
    assert {vocabulary for _, vocabulary in shapes} == {VOCABULARY}
    assert max(rows for rows, _ in shapes) == 4


def test_a_chunk_has_fewer_rows_where_the_draft_knows_more_tokens() -> None:
    assert loss_kernel.chunk_rows(64) == loss_kernel.chunk_rows(32_000) == 8192
    assert loss_kernel.chunk_rows(128_256) * 128_256 <= 8192 * 32_000 < (loss_kernel.chunk_rows(128_256) + 1) * 128_256
    assert loss_kernel.chunk_rows(10**12) == 1


def test_without_gradient_it_measures_the_same() -> None:
    torch.manual_seed(2)
    head = torch.randn(len(IDS), HIDDEN, requires_grad=True)
    batch = pack([conversation([0, 1, 1, 1, 0, 1, 1])], STEPS)
    labels = Teacher(TARGET, IDS).soft_labels(batch.teaching)
    states, weights = states_of(batch), torch.ones(STEPS)
    learnt = loss_kernel.unroll_loss(states, Factor(head), batch, labels, Teacher(TARGET, IDS), weights)
    with torch.no_grad():
        measured = loss_kernel.unroll_loss(states, Factor(head), batch, labels, Teacher(TARGET, IDS), weights)
    assert torch.equal(measured.sums.losses, learnt.sums.losses)
    assert all(torch.equal(one, other) for one, other in zip(measured.right, learnt.right, strict=True))


def test_a_rank_without_samples_has_a_gradient_of_zero_for_every_state() -> None:
    head = torch.randn(len(IDS), HIDDEN, requires_grad=True)
    batch = idle(conversation([1, 1]), STEPS)
    labels = Teacher(TARGET, IDS).soft_labels(batch.teaching)
    states = states_of(batch)
    result = loss_kernel.unroll_loss(states, Factor(head), batch, labels, Teacher(TARGET, IDS), torch.ones(STEPS))
    for gradient in torch.autograd.grad(result.loss, [head, *states]):
        assert gradient.abs().sum() == 0
