"""The GPU's kernels compute the formulas that stand beside them: by Triton's interpreter, on a few hundred numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3_api.spec import Loss
from eagle3_draft.features import likeliest_kernel
from eagle3_draft.model import diagonal_kernel, elementwise_kernel, fp8, fp8_kernel
from eagle3_draft.model.diagonal import merge_plainly
from eagle3_draft.model.fast import gated
from eagle3_draft.train import loss_kernel
from eagle3_draft.train.loss import row_losses


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 20), (3, 3, 16), (4, 1, 8)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_merge_and_its_gradients_are_the_formula(heads: int, kv_heads: int, head_dim: int, causal: bool) -> None:
    torch.manual_seed(0)
    alive, steps = 7, 2
    query, read = (torch.randn(alive, heads, head_dim, requires_grad=True) for _ in range(2))
    lse = torch.randn(alive, heads, requires_grad=True)
    stored = torch.randn(3, 2, 9, kv_heads, head_dim)
    chain = stored[:steps, :, :alive].clone().requires_grad_()
    expected = merge_plainly(query, read, lse, chain[:, 0], chain[:, 1])
    gradient = torch.randn_like(expected)
    of_query, of_read, of_lse, of_chain = torch.autograd.grad(expected, [query, read, lse, chain], gradient)

    given = [part.detach() for part in (query, read, lse)]
    out, total = diagonal_kernel.merge(given[0], given[1], given[2], stored, steps)
    near(out, expected.detach())
    found_read, found_lse = torch.empty_like(given[1]), torch.empty_like(given[2])
    more = (given[1], given[2], found_read, found_lse) if causal else None
    found_query, found_chain = diagonal_kernel.merge_backward(gradient, given[0], out, total, stored, steps, more)
    near(found_query, of_query)
    near(found_chain, of_chain)
    if causal:
        near(found_read, of_read)
        near(found_lse, of_lse)


def test_the_gates_gradient_is_the_formula() -> None:
    torch.manual_seed(1)
    wide = torch.randn(3, 2 * 37, requires_grad=True)
    gradient = torch.randn(3, 37)
    (expected,) = torch.autograd.grad(gated(wide), wide, gradient)
    near(elementwise_kernel.gate_backward(gradient, wide.detach()), expected)


def test_rows_are_added_put_and_scaled_where_they_belong() -> None:
    torch.manual_seed(2)
    rows = torch.tensor([4, 0, 3])
    table, values = torch.randn(6, 50), torch.randn(3, 50)
    added, put, scaled = table.clone(), table.clone(), table.clone()
    elementwise_kernel.add_rows(added, rows, values)
    elementwise_kernel.set_rows(put, rows, values)
    elementwise_kernel.scale(scaled, torch.tensor(0.25))
    near(added, table.index_add(0, rows, values))
    assert torch.equal(put, table.index_copy(0, rows, values))
    assert torch.equal(scaled, table * 0.25)


@pytest.mark.parametrize("vocabulary", [64, 9000])
def test_the_likeliest_token_is_the_first_of_the_highest_and_what_is_no_number_shows(vocabulary: int) -> None:
    torch.manual_seed(5)
    logits = torch.randn(5, vocabulary).to(torch.bfloat16)
    logits[1, [7, vocabulary - 1]] = 9.0
    logits[2, vocabulary - 2] = float("-inf")
    logits[3, 5] = float("nan")
    logits[4, 5] = float("inf")
    token, normaliser = likeliest_kernel._by_kernel(logits)
    assert token[:3].tolist() == logits[:3].float().argmax(-1).tolist()
    assert token[1] == 7
    near(normaliser[:3], logits[:3].float().logsumexp(-1))
    assert not normaliser[3:].isfinite().any()


@pytest.mark.parametrize("vocabulary", [64, 5000])
@pytest.mark.parametrize("kind", ["CrossEntropy", "KL", "LKAlpha", "LKLambda"])
def test_the_losses_and_their_gradients_are_the_formulas(vocabulary: int, kind: Any) -> None:
    torch.manual_seed(3)
    logits, teacher = torch.randn(4, vocabulary) * 3, torch.randn(3, vocabulary) * 3
    rows, weights, mass = torch.tensor([0, 2, 2, 1]), torch.rand(4), torch.rand(3)
    normaliser, loss = teacher.logsumexp(-1), Loss(kind=kind, eta=2.0)
    expected = logits.clone().requires_grad_()
    distances = row_losses(expected, teacher[rows], mass[rows], loss)
    (gradient,) = torch.autograd.grad((distances * weights).sum(), expected)
    far, best = loss_kernel._compare_by_kernel(
        logits, loss_kernel.TeacherLogits(teacher, normaliser, mass), rows, weights, loss, gradient=True
    )
    assert torch.equal(best, expected.argmax(-1))
    near(far, distances.detach())
    near(logits, gradient)


@pytest.mark.parametrize("width", [16, 5000])
def test_rows_get_their_power_of_two_and_numbers_of_four_bits_stay(width: int) -> None:
    torch.manual_seed(4)
    # What FP8 holds exactly: Triton's interpreter, unlike a GPU, rounds halves up
    x = fp8.restored(fp8.quantise(torch.randn(4, width) * torch.logspace(-20, 20, 4)[:, None]), torch.float32)
    x[1] = 0
    values, scales = fp8_kernel.quantise(x, fp8.SMALLEST)
    assert torch.equal(scales, fp8.quantise(x).scales)
    assert torch.equal(values.to(torch.float32) * scales, x)
