"""The loss is the paper's."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from eagle3_api.spec import Loss
from eagle3_draft.features import LastState, Sample, TopK
from eagle3_draft.train import loss
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher, known_rows, row_losses, step_sums, total_loss

VOCABULARY, HIDDEN, STEPS = 40, 6, 3
IDS = torch.tensor([0, 3, 4, 7, 11, 12, 20, 21, 22, 30, 33, 39])


def conversation(mask: list[int], head: Tensor) -> Sample:
    last = torch.randn(len(mask), HIDDEN) * 2
    return Sample(
        input_ids=torch.randint(0, VOCABULARY, (len(mask),), dtype=torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.uint8),
        hidden=torch.randn(len(mask), 3 * HIDDEN),
        teaching=LastState.of(last, last @ head.T),
    )


KINDS: tuple[Literal["KL", "LKAlpha", "LKLambda"], ...] = ("KL", "LKAlpha", "LKLambda")
LOSSES = [
    Loss(),
    Loss(kind="KL", decay=0.5),
    Loss(kind="LKAlpha", normalised=True),
    Loss(kind="LKLambda", eta=3.0),
]


def of_a_position(target_logits: Tensor, logits: Tensor, loss: Loss) -> Tensor:
    """arXiv 2503.01840 (cross-entropy) and 2602.23881, from the target's logits of its vocabulary and the draft's of its own."""
    teacher, own = torch.softmax(target_logits[IDS], 0), torch.softmax(logits, 0)
    if loss.kind == "CrossEntropy":
        return -(teacher * own.log()).sum()
    divergence = (teacher * (teacher / own).log()).sum()
    if loss.kind == "KL":
        return divergence
    told = torch.softmax(target_logits, 0)[IDS]
    accepted = sum((torch.minimum(p, q) for p, q in zip(told, own, strict=True)), torch.zeros(()))
    if loss.kind == "LKAlpha":
        return -accepted.log()
    leading = torch.exp(-loss.eta * accepted).detach()
    return leading * divergence + (1 - leading) * (1 - accepted)


def by_the_paper(sample: Sample, head: Tensor, proposals: list[Tensor], loss: Loss) -> Tensor:
    """arXiv 2503.01840, one position after the other.

    At step i, position p proposes token p + 2 + i. Its loss is the distance from the target's distribution there, over the
    draft's vocabulary. Steps count 1, 0.8, 0.64, ...

    Args:
        proposals: logits of each step, (positions, draft vocabulary).
    """
    assert isinstance(sample.teaching, LastState)
    total, sum_of_weights = torch.zeros(()), 0.0
    for step, logits in enumerate(proposals):
        losses = []
        for position in range(len(sample.input_ids)):
            predicted = position + 2 + step
            if predicted >= len(sample.input_ids) or not sample.loss_mask[predicted]:
                continue
            target_logits = head @ sample.teaching.last[predicted - 1]
            if int(target_logits.argmax()) not in IDS.tolist():
                continue
            losses.append(of_a_position(target_logits, logits[position], loss))
        sum_of_weights += loss.decay**step
        if losses:
            total = total + loss.decay**step * torch.stack(losses).mean()
    return total / sum_of_weights if loss.normalised else total


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "ROW_CHUNK", 4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_it_is_the_papers_loss_with_its_gradient(seed: int, loss: Loss) -> None:
    torch.manual_seed(seed)
    head = torch.randn(VOCABULARY, HIDDEN)
    sample = conversation([0, 0, 1, 1, 1, 0, 0] + [1] * 20, head)
    proposals = [torch.randn(len(sample.input_ids), len(IDS), requires_grad=True) for _ in range(STEPS)]

    batch = pack([sample], STEPS)
    labels = Teacher(head, IDS).soft_labels(batch.teaching)
    logits = [of_step[rows] for of_step, rows in zip(proposals, batch.wanted, strict=True)]
    sums = step_sums(logits, labels, batch.label_rows, IDS, loss)
    ours = total_loss(sums.losses, known_rows(labels, batch.label_rows), loss)

    theirs = by_the_paper(sample, head, proposals, loss)
    assert theirs > 0
    torch.testing.assert_close(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, proposals), torch.autograd.grad(theirs, proposals), strict=True
    ):
        torch.testing.assert_close(mine, expected)


def test_each_loss_is_least_where_the_draft_says_what_the_target_says() -> None:
    teacher = torch.randn(3, len(IDS), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    mass = torch.ones(3, dtype=torch.float64)
    for kind in KINDS:
        same = row_losses(teacher + 7, teacher, mass, Loss(kind=kind))
        torch.testing.assert_close(same, torch.zeros_like(same))
        for seed in range(6, 14):
            other = torch.randn(3, len(IDS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            assert (row_losses(other, teacher, mass, Loss(kind=kind)) > 0).all()


def test_the_gradient_of_kl_is_that_of_cross_entropy() -> None:
    logits = torch.randn(3, len(IDS), requires_grad=True)
    teacher, mass = torch.randn(3, len(IDS)), torch.ones(3)
    losses = [Loss(kind="KL"), Loss()]
    one, other = (torch.autograd.grad(row_losses(logits, teacher, mass, loss).sum(), logits)[0] for loss in losses)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["LKAlpha", "LKLambda"])
def test_descending_on_it_raises_what_is_accepted_to_all_that_the_draft_can_propose(
    kind: Literal["LKAlpha", "LKLambda"],
) -> None:
    torch.manual_seed(7)
    teacher, mass = torch.randn(1, len(IDS)) * 4, torch.tensor([0.9])
    logits = torch.zeros(1, len(IDS), requires_grad=True)

    def accepted() -> float:
        return torch.exp(-row_losses(logits, teacher, mass, Loss(kind="LKAlpha"))).item()

    assert accepted() < 0.3
    optimizer = torch.optim.SGD([logits], lr=1.0)
    for _ in range(300):
        optimizer.zero_grad()
        row_losses(logits, teacher, mass, Loss(kind=kind)).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert 0.88 < accepted() <= 0.9 + 1e-5


def test_a_token_that_the_draft_does_not_know_gives_no_loss_and_counts_as_wrong() -> None:
    head = torch.eye(4)
    teacher = Teacher(head, torch.tensor([0, 1, 2]))
    last = torch.tensor([[9.0, 0, 0, 0], [0, 0, 0, 9.0]])  # it would say 0, and 3, which is unknown
    labels = teacher.soft_labels(LastState.of(last, last @ head.T))
    assert labels.known.tolist() == [True, False]
    logits = torch.tensor([[5.0, 0, 0], [5.0, 0, 0]], requires_grad=True)
    sums = step_sums([logits], labels, [torch.tensor([0, 1])], torch.tensor([0, 1, 2]))
    assert (sums.right.item(), sums.labelled.item(), sums.counted.item()) == (1, 2, 1)
    (gradient,) = torch.autograd.grad(sums.losses.sum(), logits)
    assert gradient[0].abs().sum() > 0
    assert gradient[1].abs().sum() == 0


@pytest.mark.parametrize("k", [VOCABULARY, 5])
def test_the_most_likely_tokens_teach_what_the_state_teaches_of_them(k: int) -> None:
    torch.manual_seed(3)
    head = torch.randn(VOCABULARY, HIDDEN)
    last = torch.randn(50, HIDDEN) * 2
    state = Teacher(head, IDS).soft_labels(LastState.of(last, last @ head.T))
    top = Teacher(head, IDS).soft_labels(TopK.of(last @ head.T, k))
    assert torch.equal(top.greedy, state.greedy)
    assert torch.equal(top.known, state.known)
    kept = (last @ head.T).topk(k).indices
    inside = (kept[:, :, None] == IDS).any(1)  # (rows, draft vocabulary)
    expected = state.logits.masked_fill(~inside, float("-inf")).softmax(-1)
    found = top.logits.float().softmax(-1)
    told = inside.any(-1)
    torch.testing.assert_close(found[told], expected[told], rtol=2e-2, atol=1e-4)
    assert bool(found[~told].isfinite().all())  # nothing is known of them, and they do not count


def test_a_rank_without_rows_has_a_loss_of_zero_that_can_be_differentiated() -> None:
    empty = torch.zeros(0, len(IDS), requires_grad=True)
    nothing = LastState.of(torch.zeros(0, HIDDEN), torch.zeros(0, VOCABULARY))
    labels = Teacher(torch.randn(VOCABULARY, HIDDEN), IDS).soft_labels(nothing)
    rows = torch.zeros(0, dtype=torch.int64)
    sums = step_sums([empty], labels, [rows], IDS)
    value = total_loss(sums.losses, sums.counted)
    assert value.item() == 0
    assert torch.autograd.grad(value, empty)[0].shape == (0, len(IDS))
