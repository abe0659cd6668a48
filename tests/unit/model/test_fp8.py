"""Products in FP8: what is rounded, by how much, and what is not."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from eagle3_draft.model import fp8
from eagle3_draft.model.factor import Factor, Fp8Factor
from eagle3_draft.model.fast import FastDraft
from eagle3_draft.model.rows import needed
from unit.model.test_draft import config
from unit.model.test_fast import DOCUMENTS, MASKS, wishes


def rounded(x: Tensor) -> Tensor:
    return fp8.restored(fp8.quantise(x), x.dtype)


@given(st.integers(0, 2**31), st.floats(-20, 30), st.integers(1, 40))
def test_a_number_is_rounded_to_four_bits_whatever_the_size_of_its_row(seed: int, size: float, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, width, generator=generator) * 10**size * torch.logspace(-3, 3, 5)[:, None]
    largest = x.abs().amax(-1, keepdim=True)
    # Half of the last of four bits; below the normal numbers, half of the smallest
    assert ((rounded(x) - x).abs() <= torch.maximum(x.abs() / 16, largest * 2**-17)).all()


@example(20366458, 26.046875)
@given(st.integers(0, 2**31), st.floats(-30, 30))
def test_rounding_again_rounds_nothing_but_the_smallest_of_a_row_that_is_scaled_anew(seed: int, size: float) -> None:
    x = rounded(torch.randn(4, 20, generator=torch.Generator().manual_seed(seed)) * 10**size)
    largest = x.abs().amax(-1, keepdim=True)
    # One that was rounded up to the next power of two has another scale
    as_before = torch.frexp(largest)[0].squeeze(-1) > 0.5
    assert torch.equal(rounded(x)[as_before], x[as_before])
    assert ((rounded(x) - x).abs() <= largest * 2**-17).all()


def test_scales_are_powers_of_two_and_leave_room_at_the_top() -> None:
    values, scales = fp8.quantise(torch.tensor([[448.0, 1.0], [1.0, 0.5], [255.0, 0.0], [0.0, 0.0]]))
    assert set(torch.frexp(scales)[0].flatten().tolist()) == {0.5}
    assert values.float().abs().amax(-1)[:3].tolist() == [224.0, 128.0, 256.0]
    assert values[3].float().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    x = torch.ones(3, 8)
    x[1, 2] = bad
    product = fp8.multiply(fp8.quantise(x), fp8.quantise(torch.ones(4, 8)), torch.float32)
    assert product.isfinite().all(-1).tolist() == [True, False, True]


def test_a_factor_rounds_by_rows_for_the_forward_and_by_columns_for_the_backward() -> None:
    torch.manual_seed(0)
    weight, x, gradient, plus = torch.randn(6, 10), torch.randn(4, 10), torch.randn(4, 6), torch.randn(4, 6)
    factor = Fp8Factor(weight)
    torch.testing.assert_close(factor.forward(x), rounded(x) @ rounded(weight).T)
    torch.testing.assert_close(factor.forward(x, plus.clone()), rounded(x) @ rounded(weight).T + plus)
    torch.testing.assert_close(factor.backward(gradient), rounded(gradient) @ rounded(weight.T).T)


def unrolled(factor: type[Factor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Logits of a small draft, and its gradients."""
    torch.manual_seed(1)
    draft = FastDraft(config())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (parameter.dim() == 1))
    rows = needed(DOCUMENTS, wishes(MASKS["turns"]))

    def logits(states: list[Tensor], head: Factor) -> list[Tensor]:
        return [state[spots] @ head.weight.T for state, spots in zip(states, rows.spots, strict=True)]

    made = draft.loss(torch.randn(30, 96), torch.randn(30, 32), rows, logits, factor)
    torch.stack([(one * torch.randn_like(one)).sum() for one in made]).sum().backward()  # type: ignore[no-untyped-call]
    return made, {name: p.grad for name, p in draft.named_parameters() if p.grad is not None}


def test_an_unroll_in_fp8_is_the_exact_one_but_for_rounding() -> None:
    (exact, gradients), (found, of_found) = unrolled(Factor), unrolled(Fp8Factor)
    for one, other in zip(found, exact, strict=True):
        assert 1e-3 < (one - other).norm() / other.norm() < 0.1
    assert of_found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.cosine_similarity(of_found[name].flatten(), gradient.flatten(), 0) > 0.97, name


@pytest.mark.parametrize(
    ("name", "capability", "nvidia", "words"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), True, "NVIDIA A100-SXM4-80GB has compute capability 8.0"),
        ("AMD Instinct MI300X", (9, 4), False, "not NVIDIA's"),
    ],
)
def test_a_gpu_without_fp8_is_refused_by_name(name: str, capability: tuple[int, int], nvidia: bool, words: str) -> None:
    assert words in (fp8.refusal(name, capability, nvidia=nvidia) or "")


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0)])
def test_ada_hopper_and_newer_multiply_fp8(capability: tuple[int, int]) -> None:
    assert fp8.refusal("NVIDIA", capability) is None
