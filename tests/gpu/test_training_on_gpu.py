"""On a GPU the kernels compute the formulas, and the fast unroll with its loss is the plain one."""

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3_api.spec import Loss
from eagle3_draft.features import LastState, Sample, TopK, mapped
from eagle3_draft.features.likeliest_kernel import likeliest
from eagle3_draft.model.causal import GridKeys, PackedKeys, attend_plainly, first_keys
from eagle3_draft.model.config import DraftConfig, Latent
from eagle3_draft.model.diagonal import Chain, merge_plainly
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.fast import GPU_MULTIPLE, FastDraft
from eagle3_draft.model.rows import needed
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.loss import Teacher, known_mass, known_rows, row_losses, step_sums, total_loss
from eagle3_draft.train.loss_kernel import TeacherLogits, compare, log_sum_exp, unroll_loss
from eagle3_draft.train.waiting import GpuClock, Waiting

GPU = torch.device("cuda", 0)
STEPS, VOCABULARY = 5, 1100
IDS = torch.arange(0, VOCABULARY, 2)[:512]
HEAD = torch.randn(VOCABULARY, 256, generator=torch.Generator().manual_seed(9)) * 0.2
SIZES = DraftConfig(
    hidden_size=256,
    target_hidden_size=256,
    layers=[0, 1, 2],
    intermediate_size=384,
    heads=8,
    kv_heads=2,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    vocabulary_size=VOCABULARY,
    draft_vocabulary_size=len(IDS),
    max_position_embeddings=512,
)

#: DeepSeek's sizes of a head.
LATENT = Latent(q_lora_rank=96, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def latent(**changes: bool) -> DraftConfig:
    return SIZES.model_copy(update={"kv_heads": 8, "head_dim": 192, "latent": LATENT.model_copy(update=changes)})


#: What has a way of its own through the fast unroll.
KINDS = {
    "EAGLE-3": SIZES,
    "EAGLE-3.1, two layers": SIZES.model_copy(update={"fc_norm": True, "norm_output": True, "depth": 2}),
    "biases, norm before fc": SIZES.model_copy(update={"fc_bias": True, "output_bias": True, "norm_before_fc": True}),
    "latent": latent(),
    "latent, halves rotated": latent(rope_interleave=False),
}


def away(found: Tensor, expected: Tensor) -> float:
    """Relative distance."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def new_batch() -> Batch:
    torch.manual_seed(0)
    masks = [[0] * 40 + [1] * 90 + [0] * 60 + [1] * 30, [0] * 5 + [1] * 200, [1] * 3, [0] * 50 + [1] * 9]
    samples = [
        Sample(
            input_ids=torch.randint(0, VOCABULARY, (len(mask),), dtype=torch.int32),
            loss_mask=torch.tensor(mask, dtype=torch.uint8),
            hidden=torch.randn(len(mask), 3 * 256),
            teaching=LastState.of(last, last @ HEAD.T),
        )
        for mask in masks
        for last in [torch.randn(len(mask), 256) * 2]
    ]
    return pack(samples, STEPS, multiple=GPU_MULTIPLE).to(GPU)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 2, 64), (6, 2, 80), (3, 3, 128), (4, 4, 256)])
def test_the_merge_kernel_is_its_formula(heads: int, kv_heads: int, head_dim: int) -> None:
    torch.manual_seed(1)
    chain = Chain(3, torch.empty(1, kv_heads, head_dim, device=GPU), 50)
    leaves = [torch.randn(37, heads, head_dim, device=GPU, requires_grad=True) for _ in range(2)]
    leaves.append(torch.randn(37, heads, device=GPU, requires_grad=True))
    pairs = [torch.randn(2, 50 - 4 * step, kv_heads, head_dim, device=GPU, requires_grad=True) for step in range(3)]
    for pair in pairs:
        chain.append(pair[0], pair[1])
    merged = chain.merge(*leaves)
    plain = merge_plainly(*leaves, *(torch.stack([pair[half, :37] for pair in pairs]) for half in (0, 1)))
    assert away(merged, plain) < 1e-5
    gradient = torch.randn_like(plain)
    for found, expected in zip(
        torch.autograd.grad(merged, [*leaves, *pairs], gradient),
        torch.autograd.grad(plain, [*leaves, *pairs], gradient),
        strict=True,
    ):
        assert away(found, expected) < 1e-5


def test_flex_attention_sees_what_the_formula_sees() -> None:
    torch.manual_seed(2)
    documents = [220, 205, 3, 59, 25]
    wanted = [torch.tensor([*range(30, 120), *range(230, 400), 424, 426])]
    rows = needed(documents, wanted, GPU_MULTIPLE).to(GPU)
    keys, values = (torch.randn(512, 2, 64, device=GPU, requires_grad=True) for _ in range(2))
    query = torch.randn(len(rows.rows), 8, 64, device=GPU, requires_grad=True)
    found = PackedKeys(keys, values, rows).causal(query)
    expected = attend_plainly(query, keys, values, rows.starts[rows.rows], rows.rows)
    gradients = [torch.randn_like(part) for part in expected]
    for one, other in zip(found, expected, strict=True):
        assert away(one, other) < 1e-3
    for one, other in zip(
        torch.autograd.grad(found, [query, keys, values], gradients),
        torch.autograd.grad(expected, [query, keys, values], gradients),
        strict=True,
    ):
        assert away(one, other) < 1e-3


def test_attention_on_a_grid_with_its_chain_is_as_near_to_the_formula_as_the_packed_one() -> None:
    torch.manual_seed(5)
    documents = [250, 256, 240, 150]
    wanted = [torch.tensor([*range(30, 120), *range(230, 400), 600, 800])] * 3
    rows = needed([*documents, 128], wanted, GPU_MULTIPLE).to(GPU)
    alive = len(rows.rows)
    wide = [
        torch.randn(1024, 2, 64),
        torch.randn(1024, 2, 64),
        torch.randn(alive, 8, 64),
        torch.randn(2, 2, alive, 2, 64),
    ]
    direction = torch.randn(alive, 8, 64, device=GPU)

    def attend(how: type[GridKeys] | type[PackedKeys], kind: torch.dtype) -> list[Tensor]:
        leaves = [leaf.to(GPU, kind).requires_grad_() for leaf in wide]
        keys, values, query, later = leaves
        chain = Chain(2, keys, alive)
        for step in range(2):
            chain.append(later[step, 0], later[step, 1])
        out = how(keys, values, rows).attend(query, chain)
        return [out.detach(), *torch.autograd.grad(out, leaves, direction.to(kind))]

    exact = attend(PackedKeys, torch.float32)
    packed, grid = attend(PackedKeys, torch.bfloat16), attend(GridKeys, torch.bfloat16)
    for expected, one, other in zip(exact, packed, grid, strict=True):
        assert away(other, expected) < 1.5 * away(one, expected) + 1e-3


def gradients_of_attention(how: type[GridKeys] | type[PackedKeys]) -> list[Tensor]:
    """Of a long document's queries, keys and values, in bfloat16."""
    torch.manual_seed(7)
    tokens = 4096
    rows = needed([tokens], [torch.arange(tokens)], GPU_MULTIPLE).to(GPU)
    leaves = [
        torch.randn(tokens, heads, 128, device=GPU, dtype=torch.bfloat16, requires_grad=True) for heads in (32, 8, 8)
    ]
    query, keys, values = leaves
    out = how(keys, values, rows).attend(query, Chain(0, keys, 0))
    return list(torch.autograd.grad(out, leaves, torch.randn_like(out)))


def test_a_deterministic_training_has_no_attention_that_adds_up_in_no_fixed_order() -> None:
    """How often cuDNN's gradients are others than the first time is printed: no promise of ours holds it to any of it."""
    times = 20
    for how in (GridKeys, PackedKeys):
        first = gradients_of_attention(how)
        others = [gradients_of_attention(how) for _ in range(times)]
        unlike = sum(not all(map(torch.equal, other, first)) for other in others)
        print(f"{how.__name__}: gradients unlike the first ones in {unlike} of {times} times")
    assert unlike == 0, "flex attention's"
    keys = torch.zeros(256, 8, 128, device=GPU, dtype=torch.bfloat16)
    rows = needed([256], [torch.arange(256)], GPU_MULTIPLE).to(GPU)
    assert isinstance(first_keys(keys, keys, rows), GridKeys)
    torch.use_deterministic_algorithms(True)
    try:
        assert isinstance(first_keys(keys, keys, rows), PackedKeys)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_clock_of_a_gpu_measures_how_long_it_stood_still() -> None:
    matrix = torch.randn(4096, 4096, device=GPU)
    waiting: Waiting[torch.cuda.Event] = Waiting(GpuClock())
    matrix @ matrix
    waiting.begin()
    torch.cuda.synchronize()  # a batch that comes long after the work before is done
    began = time.perf_counter()
    while time.perf_counter() - began < 0.2:
        pass
    waiting.came()
    matrix @ matrix
    torch.cuda.synchronize()
    assert 0.1 < waiting.take() < 0.4
    waiting.begin()
    for _ in range(200):  # and one that comes while there is work left
        matrix @ matrix
    waiting.begin()
    waiting.came()
    torch.cuda.synchronize()
    assert waiting.take() < 0.01


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_the_likeliest_token_and_the_normaliser_are_the_formulas(kind: torch.dtype) -> None:
    torch.manual_seed(2)
    logits = (torch.randn(64, 49152, device=GPU) * 3).to(kind)
    token, normaliser = likeliest(logits)
    on_host, expected = likeliest(logits.cpu())
    assert torch.equal(logits.gather(-1, token[:, None].long()), logits.gather(-1, on_host[:, None].long().to(GPU)))
    assert away(normaliser, expected.to(GPU)) < 1e-6


@pytest.mark.parametrize("vocabulary", [512, 4097, 32000])
@pytest.mark.parametrize("kind", ["CrossEntropy", "KL", "LKAlpha", "LKLambda"])
def test_the_loss_kernel_is_its_formula(vocabulary: int, kind: Any) -> None:
    torch.manual_seed(3)
    logits, teacher = torch.randn(9, vocabulary, device=GPU) * 3, torch.randn(4, vocabulary, device=GPU) * 3
    rows, weights = torch.tensor([0, 1, 1, 2, 3, 3, 0, 2, 1], device=GPU), torch.rand(9, device=GPU)
    normaliser = log_sum_exp(teacher)
    assert away(normaliser, teacher.logsumexp(-1)) < 1e-5
    expected = logits.clone().requires_grad_()
    mass, loss = torch.rand(4, device=GPU), Loss(kind=kind, eta=2.0)
    losses = row_losses(expected, teacher[rows], mass[rows], loss)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), expected)
    far, best = compare(logits, TeacherLogits(teacher, normaliser, mass), rows, weights, loss, gradient=True)
    assert torch.equal(best, expected.argmax(-1))
    assert away(far, losses) < 1e-5
    assert away(logits, gradient) < 1e-4


@pytest.mark.parametrize("kind", ["CrossEntropy", "KL", "LKAlpha", "LKLambda"])
def test_the_loss_kernel_is_its_formula_for_stored_probabilities(kind: Any) -> None:
    """In float16, where a token that was not stored has a logit that leaves it no probability."""
    torch.manual_seed(6)
    teacher = Teacher(HEAD, IDS).to(GPU, torch.float32)
    stored = mapped(TopK.of(torch.randn(4, VOCABULARY) * 3, 64), lambda tensor: tensor.to(GPU))
    told = teacher.logits(stored)
    assert told.dtype == torch.float16
    logits, rows = torch.randn(6, len(IDS), device=GPU) * 3, torch.tensor([0, 1, 1, 2, 3, 3], device=GPU)
    weights, normaliser = torch.rand(6, device=GPU), log_sum_exp(told)
    mass, loss = known_mass(normaliser, stored), Loss(kind=kind, eta=2.0)
    expected = logits.clone().requires_grad_()
    losses = row_losses(expected, told[rows], mass[rows], loss)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), expected)
    far, best = compare(logits, TeacherLogits(told, normaliser, mass), rows, weights, loss, gradient=True)
    assert far.isfinite().all()
    assert torch.equal(best, expected.argmax(-1))
    assert away(far, losses) < 1e-5
    assert away(logits, gradient) < 1e-4


def losses_and_gradients(
    kind: torch.dtype, *, fast: bool, sizes: DraftConfig = SIZES, factor: type[Factor] = Factor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Of one unroll: the steps' losses, what is right, and the gradients."""
    batch = new_batch()
    torch.manual_seed(4)
    draft = FastDraft(sizes).to(GPU)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05 + (parameter.dim() == 1))
    draft = draft.to(kind)
    embedding = torch.randn(VOCABULARY, 256, device=GPU)
    ids = IDS.to(GPU)
    teacher = Teacher(HEAD, IDS).to(GPU, torch.float32)
    labels = teacher.soft_labels(batch.teaching)  # the same for all kinds of numbers
    counted = known_rows(labels, batch.label_rows)
    features, embeds = batch.features.to(kind), embedding[batch.input_ids].to(kind)
    if fast:
        weights = 0.8 ** torch.arange(STEPS, device=GPU) / counted
        criterion = partial(unroll_loss, batch=batch, labels=labels, teacher=teacher, weights=weights)
        result = draft.loss(features, embeds, batch.rows, criterion, factor)
        loss, sums = result.loss, result.sums
    else:
        logits = draft(features, embeds, batch.documents, batch.wanted)
        sums = step_sums(logits, labels, batch.label_rows, ids)
        loss = total_loss(sums.losses, counted)
    loss.backward()  # type: ignore[no-untyped-call]
    return (
        sums.losses.detach(),
        sums.right,
        {name: p.grad for name, p in draft.named_parameters() if p.grad is not None},
    )


@pytest.mark.parametrize("name", KINDS)
def test_in_float32_losses_and_gradients_are_those_of_the_plain_unroll(name: str) -> None:
    losses, right, gradients = losses_and_gradients(torch.float32, fast=True, sizes=KINDS[name])
    expected, expected_right, expected_gradients = losses_and_gradients(torch.float32, fast=False, sizes=KINDS[name])
    assert away(losses, expected) < 1e-5
    assert torch.equal(right, expected_right)
    assert gradients.keys() == expected_gradients.keys()
    distances = {matrix: away(gradients[matrix], expected_gradients[matrix]) for matrix in gradients}
    print(f"float32, {name}: losses {away(losses, expected):.1e}, gradients at most {max(distances.values()):.1e}")
    assert max(distances.values()) < 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_in_bfloat16_it_is_as_near_to_float32_as_the_plain_unroll_is(name: str) -> None:
    expected, _, exact = losses_and_gradients(torch.float32, fast=False, sizes=KINDS[name])
    plain_losses, _, plain = losses_and_gradients(torch.bfloat16, fast=False, sizes=KINDS[name])
    fast_losses, _, fast = losses_and_gradients(torch.bfloat16, fast=True, sizes=KINDS[name])
    print(f"bfloat16, {name}, losses: plain {away(plain_losses, expected):.1e}, fast {away(fast_losses, expected):.1e}")
    for matrix, gradient in exact.items():
        distance, reference = away(fast[matrix], gradient), away(plain[matrix], gradient)
        print(f"bfloat16 gradient of {matrix}: plain {reference:.1e}, fast {distance:.1e}")
        assert distance < 1.5 * reference + 1e-3
    assert away(fast_losses, expected) < 2 * away(plain_losses, expected) + 1e-3
