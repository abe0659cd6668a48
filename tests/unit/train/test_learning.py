"""One rank's draft as it learns, on the CPU."""

import math

import pytest
import torch

from eagle3_api.spec import Loss
from eagle3_draft.features import LastState, Sample, TopK
from eagle3_draft.model.factor import Factor, Fp8Factor
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.learning import CLIP, Learning, precision_policy
from eagle3_draft.train.loss import CROSS_ENTROPY
from eagle3_draft.train.portions import Portion, count
from unit.model.test_draft import SWITCHES, config
from unit.train.corpus import step_on
from unit.train.test_loss import LOSSES

pytestmark = pytest.mark.usefixtures("one_rank")

VOCABULARY, STEPS = 96, 3
IDS = torch.arange(0, VOCABULARY)[:64]
HEAD = torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(0))


def new_learning(
    factor: type[Factor] = Factor,
    loss: Loss = CROSS_ENTROPY,
    switches: str = "plain",
    shards: int | None = None,
) -> Learning:
    embedding = torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(2))
    return Learning(
        config(**SWITCHES[switches]),
        torch.device("cpu"),
        embedding=embedding,
        head=HEAD,
        ids=IDS,
        seed=0,
        factor=factor,
        loss=loss,
        shards=shards,
    )


def new_batch(tokens: int = 120, *, stored: int | None = None) -> Batch:
    """A conversation whose states follow from its tokens, so that there is something to learn."""
    torch.manual_seed(1)
    ids = torch.randint(0, 12, (tokens,), dtype=torch.int32)
    of_token = torch.randn(12, 4 * 32)[ids]
    mask = torch.ones(tokens, dtype=torch.uint8)
    last = 3 * of_token[:, 96:]
    logits = last @ HEAD.T
    told = LastState.of(last, logits) if stored is None else TopK.of(logits, stored)
    return pack([Sample(input_ids=ids, loss_mask=mask, hidden=of_token[:, :96], teaching=told)], STEPS)


def losses(learning: Learning, batch: Batch, steps: int) -> list[float]:
    return [step_on(learning, batch, rate=3e-3, notes=torch.zeros(2))[0].item() for _ in range(steps)]


@pytest.mark.parametrize("switches", ["latent attention, yarn, EAGLE-3.1", "all"])
def test_drafts_of_every_kind_learn(switches: str) -> None:
    found = losses(new_learning(switches=switches), new_batch(60), 15)
    assert found[-1] < 0.9 * found[0]


@pytest.mark.parametrize("switches", ["plain", "latent attention, yarn, EAGLE-3.1", "all"])
def test_of_labels_that_the_draft_does_not_know_nothing_is_computed_and_nothing_else_is_learned(switches: str) -> None:
    torch.manual_seed(3)
    told = [LastState.of(last, last @ HEAD.T) for last in torch.randn(3, 20, 32)]
    samples = [
        Sample(
            torch.arange(20, dtype=torch.int32), torch.randint(0, 4, (20,)).clamp(max=1), torch.randn(20, 96), of_one
        )
        for of_one in told
    ]
    results, gradients, computed = [], [], []
    for knows in (None, torch.arange(VOCABULARY) < len(IDS)):
        learning, batch = new_learning(switches=switches), pack(samples, STEPS, knows=knows)
        learning.optimizer.register_step_pre_hook(lambda *_, of=learning: gradients.append(gradients_of(of)))
        portion = Portion(batch, count(samples, learning.teacher.knows, STEPS))
        results.append(learning.step([portion], 1, 1e-3, torch.zeros(0)))
        computed.append(sum(batch.rows.alive))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)
    for skipped, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(skipped, whole, rtol=1e-4, atol=1e-6)
    assert computed[1] < computed[0]


def gradients_of(learning: Learning) -> list[torch.Tensor]:
    """Those of all weights."""
    return [weight.grad.full_tensor() for group in learning.optimizer.param_groups for weight in group["params"]]


def norms_taken(learning: Learning) -> list[float]:
    """The global norm of what the optimizer takes, in each step from now on."""
    taken: list[float] = []

    def measure(*_: object) -> None:
        taken.append(torch.stack([gradient.norm() for gradient in gradients_of(learning)]).norm().item())

    learning.optimizer.register_step_pre_hook(measure)
    return taken


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_drafts_learn_from_stored_probabilities(loss: Loss) -> None:
    found = losses(new_learning(loss=loss), new_batch(60, stored=16), 15)
    assert all(map(math.isfinite, found))
    assert found[-1] < 0.9 * found[0]


def test_all_probabilities_teach_what_the_last_state_does() -> None:
    whole, stored = (losses(new_learning(), new_batch(60, stored=kept), 5) for kept in (None, VOCABULARY))
    assert stored == pytest.approx(whole, rel=2e-3)  # stored in float16


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_with_every_loss_more_is_accepted(loss: Loss) -> None:
    batch, learning = new_batch(60), new_learning(loss=loss)

    def accepted() -> float:
        """The geometric mean over all positions and steps of what a server that samples accepts."""
        learning.loss, trained = Loss(kind="LKAlpha"), learning.loss
        with torch.no_grad():
            sums = learning.unroll_loss(batch, torch.ones(STEPS)).sums
        learning.loss = trained
        return float((-sums.losses.sum() / sums.counted.sum()).exp())

    untrained = accepted()
    found = losses(learning, batch, 15)
    assert found[-1] < found[0]
    assert accepted() > 1.3 * untrained


def test_normalised_weights_leave_the_size_of_a_step_as_it_is_whatever_its_unroll() -> None:
    batch = new_batch()
    plain, normalised = (
        losses(new_learning(loss=Loss(decay=0.8, normalised=flag)), batch, 1)[0] for flag in (False, True)
    )
    assert plain == pytest.approx(normalised * (1 + 0.8 + 0.64))


def test_the_gradient_that_the_optimizer_takes_is_never_longer_than_the_bound_over_all_weights() -> None:
    learning = new_learning()
    taken = norms_taken(learning)
    told = [step_on(learning, new_batch(60), rate=3e-3, notes=torch.zeros(0))[1].item() for _ in range(3)]
    assert min(told) > CLIP  # what is told is the norm before
    assert taken == pytest.approx([CLIP] * 3, rel=1e-4)


def test_gradients_are_added_up_in_float32_where_there_is_more_than_one_rank_to_add_up() -> None:
    for ranks in (2, 8):
        policy = precision_policy(True, ranks)
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert precision_policy(True, 1).reduce_dtype == torch.bfloat16
    for ranks in (1, 2):  # a CPU computes in the masters' own
        policy = precision_policy(False, ranks)
        assert (policy.param_dtype, policy.reduce_dtype) == (None, None)
    assert {weight.dtype for weight in new_learning().model.parameters()} == {torch.float32}


@pytest.mark.stages
def test_in_fp8_it_learns_as_much() -> None:
    batch = new_batch()
    exact, found = (losses(new_learning(factor), batch, 40) for factor in (Factor, Fp8Factor))
    assert found != exact
    assert exact[-1] < 0.7 * exact[0]
    assert found[-1] < exact[-1] + 0.05 * (exact[0] - exact[-1])


def test_what_is_learned_in_fp8_is_measured_as_it_will_be_served() -> None:
    batch = new_batch()
    learning = new_learning(Fp8Factor)
    weights = torch.ones(STEPS)
    with torch.no_grad():
        rounded = learning.unroll_loss(batch, weights).sums.losses
        learning.model.eval()
        measured = learning.unroll_loss(batch, weights).sums.losses
        exact = new_learning(Factor).unroll_loss(batch, weights).sums.losses
    assert not torch.equal(rounded, measured)
    assert torch.equal(measured, exact)
