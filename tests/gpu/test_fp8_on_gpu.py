"""On a GPU numbers are rounded to FP8, and multiplied, as the formula says."""

import pytest
import torch

from eagle3_draft.model import fp8
from eagle3_draft.model.factor import Factor, Fp8Factor
from gpu.test_training_on_gpu import GPU, away, losses_and_gradients


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [16, 4096, 14336, 5003])
def test_the_kernel_rounds_as_the_formula(width: int, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(300, width) * torch.logspace(-20, 20, 300)[:, None]).to(kind)
    x[7], x[9, 3:] = 0, 1e-25
    found, expected = fp8.quantise(x.to(GPU)), fp8.quantise(x)
    assert torch.equal(found.scales.cpu(), expected.scales)
    assert torch.equal(found.values.cpu().float(), expected.values.float())


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    x = torch.ones(128, 64, device=GPU, dtype=torch.bfloat16)
    x[1, 2] = bad
    product = fp8.multiply(fp8.quantise(x), fp8.quantise(torch.ones_like(x)), x.dtype)
    assert product.isfinite().all(-1).logical_not().nonzero().flatten().tolist() == [1]


@pytest.mark.parametrize("rows", [1, 77, 8192])
def test_a_product_is_that_of_the_rounded_numbers(rows: int) -> None:
    torch.manual_seed(1)
    one = fp8.quantise(torch.randn(rows, 4096, device=GPU, dtype=torch.bfloat16))
    other = fp8.quantise(torch.randn(6144, 4096, device=GPU, dtype=torch.bfloat16))
    expected = fp8.restored(one, torch.float32) @ fp8.restored(other, torch.float32).T
    found = fp8.multiply(one, other, torch.bfloat16)
    print(f"{rows} rows: {away(found, expected):.1e}")
    assert away(found, expected) < 5e-3


def test_an_unroll_in_fp8_is_the_exact_one_but_for_rounding() -> None:
    expected, _, exact = losses_and_gradients(torch.bfloat16, fast=True, factor=Factor)
    losses, _, gradients = losses_and_gradients(torch.bfloat16, fast=True, factor=Fp8Factor)
    print(f"FP8 losses: {away(losses, expected):.1e}")
    assert 1e-6 < away(losses, expected) < 1e-2
    for name, gradient in exact.items():
        print(f"FP8 gradient of {name}: {away(gradients[name], gradient):.1e}")
        assert away(gradients[name], gradient) < 0.2
