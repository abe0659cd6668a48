"""A rank's portions of a step hold what the loss counts in all of it, and no more features than a few passes have."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.features import Features, LastState, Sample
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher, known_rows
from eagle3_draft.train.plan import Pass, Plan
from eagle3_draft.train.portions import Portion, Portions, count
from eagle3_draft.train.prefetch import AHEAD, prefetched
from gpu import store
from unit.model.test_draft import config
from unit.train import corpus
from unit.train.test_learning import STEPS, new_learning

VOCABULARY = 12
TEACHER = Teacher(torch.randn(VOCABULARY, 2), torch.tensor([1, 2, 3, 5, 8]))
KNOWS = torch.arange(config().vocabulary_size) % 3 > 0
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    return store.make(tmp_path_factory.mktemp("store"), config(), train=[20] * 48, held_out=[20], alphabet=16)


def portions_of(made: corpus.Corpus, ranks: int = 1, rank: int = 0) -> tuple[Plan, Portions]:
    samples = Features.open(made.features).train
    plan = Plan(
        corpus.train_config(made, made.features, tokens_per_step=480, tokens_per_pass=40),
        samples.lengths.tolist(),
        rank,
        ranks,
    )
    return plan, Portions(samples, plan, KNOWS, unroll_steps=STEPS, multiple=1, pin=False)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=4), st.integers(0, 2**16))
def test_what_is_counted_on_the_host_is_what_the_loss_and_the_accuracy_count(
    masks: list[list[bool]], seed: int
) -> None:
    torch.manual_seed(seed)
    samples = [
        Sample(
            input_ids=torch.zeros(len(mask), dtype=torch.int32),
            loss_mask=torch.tensor(mask, dtype=torch.uint8),
            hidden=torch.zeros(len(mask), 6),
            teaching=LastState.of(torch.zeros(len(mask), 2), torch.randn(len(mask), VOCABULARY)),
        )
        for mask in masks
    ]
    batch = pack(samples, STEPS)
    counted = known_rows(TEACHER.labels(batch.teaching), batch.label_rows)
    assert count(samples, TEACHER.knows, STEPS).tolist() == [*counted.tolist(), len(batch.label_rows[0])]


def test_every_portion_tells_the_rows_of_the_whole_step_and_a_rank_without_conversations_counts_none(
    made: corpus.Corpus,
) -> None:
    plan, portions = portions_of(made)
    whole = [portions.make(one) for one in plan.passes(0)[: plan.steps[0].passes]]
    assert len(whole) > 4 * AHEAD
    counts = count([Features.open(made.features).train[i] for i in plan.own(plan.steps[0])], KNOWS, STEPS)
    assert all(torch.equal(one.counts, counts) for one in whole)
    assert sum(len(one.batch.wanted[0]) for one in whole) == counts[0] < counts[-1]
    assert sum(sum(one.batch.documents) for one in whole) == plan.steps[0].tokens
    plan, portions = portions_of(made, ranks=99, rank=98)
    idle = portions.make(plan.passes(0)[0])
    assert not idle.counts.any()
    assert not len(idle.batch.labelled)


@pytest.mark.usefixtures("one_rank")
def test_a_step_holds_the_features_of_a_few_passes_however_many_it_has(made: corpus.Corpus) -> None:
    plan, portions = portions_of(made)
    features: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def make(one: Pass) -> Portion:
        portion = portions.make(one)
        features.append(weakref.ref(portion.batch.features))
        alive.append(sum(one() is not None for one in features))
        return portion

    step, learning = plan.steps[0], new_learning()
    with prefetched(make, plan.passes(0)[: step.passes], CPU) as ready:
        learning.step(ready, step.passes, 1e-3, torch.zeros(2))
    assert len(alive) == step.passes > 4 * AHEAD
    assert max(alive) <= AHEAD + 2
