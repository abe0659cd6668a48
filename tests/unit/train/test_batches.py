"""Steps do not depend on the number of ranks, and every assistant token is taught once a step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.data.rendering import Renderer
from eagle3_draft.features import LastState, Sample, restored
from eagle3_draft.features.scaled import quantised
from eagle3_draft.train.batches import epoch_steps, idle, pack, passes, share
from eagle3_draft.train.plan import Plan
from unit.data.test_rendering import CHATML, CHATML_MARKED, LLAMA3, MISTRAL, TURNS, VICUNA, answers, bytelevel
from unit.train.test_telemetry import config

TEMPLATES = [CHATML, CHATML_MARKED, LLAMA3, MISTRAL, VICUNA]


def sample(mask: list[int], first: int = 0) -> Sample:
    tokens = len(mask)
    rows = torch.arange(first, first + tokens)
    return Sample(
        input_ids=rows.to(torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.uint8),
        hidden=rows[:, None].float(),
        teaching=LastState(last=rows[:, None].float(), greedy=rows + 100, log_normaliser=rows.float()),
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 100), st.integers(0, 5))
def test_an_epoch_has_every_conversation_once_and_no_step_is_too_long(lengths: list[int], room: int, seed: int) -> None:
    steps = epoch_steps(lengths, room, seed=seed, epoch=0)
    assert sorted(sample for step in steps for sample in step) == list(range(len(lengths)))
    assert all(len(step) == 1 or sum(lengths[sample] for sample in step) <= room for step in steps)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 100), st.integers(0, 5))
def test_the_last_step_of_an_epoch_is_smaller_than_the_one_before_by_a_conversation_at_most(
    lengths: list[int], room: int, seed: int
) -> None:
    *_, before, last = [[], *epoch_steps(lengths, room, seed=seed, epoch=0)]
    assert sum(lengths[i] for i in before) - sum(lengths[i] for i in last) <= max(lengths)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = [7] * 50
    assert epoch_steps(lengths, 70, seed=1, epoch=0) == epoch_steps(lengths, 70, seed=1, epoch=0)
    assert epoch_steps(lengths, 70, seed=1, epoch=0) != epoch_steps(lengths, 70, seed=1, epoch=1)
    assert epoch_steps(lengths, 70, seed=1, epoch=0) != epoch_steps(lengths, 70, seed=2, epoch=0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 6))
def test_ranks_divide_a_step_and_none_gets_much_more_than_its_part(lengths: list[int], ranks: int) -> None:
    step = list(range(len(lengths)))
    shares = share(step, lengths, ranks)
    assert len(shares) == ranks
    assert sorted(sample for some in shares for sample in some) == step
    loads = [sum(lengths[sample] for sample in some) for some in shares]
    assert max(loads) - min(loads) <= max(lengths)


@pytest.mark.parametrize(
    ("lengths", "ranks", "busy"),
    [([10] * 8, 4, 1.0), ([10] * 8, 8, 0.5), ([30, 10], 2, 40 / 60), ([], 2, 1.0)],
    ids=["as many for each", "conversations for half of them", "a long one", "nothing to learn"],
)
def test_a_step_takes_as_long_as_its_fullest_rank(lengths: list[int], ranks: int, busy: float, tmp_path: Path) -> None:
    assert Plan(config(tmp_path, tokens_per_step=40), lengths, 0, ranks).busy == pytest.approx(busy)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.one_of(st.none(), st.integers(16, 80)))
def test_passes_hold_every_sample_once_and_no_more_than_fits(lengths: list[int], room: int | None) -> None:
    parts = passes(range(len(lengths)), lengths, room)
    assert [sample for part in parts for sample in part] == list(range(len(lengths)))
    assert all(parts)
    assert room is not None or len(parts) == 1
    assert all(len(part) == 1 or sum(lengths[sample] for sample in part) <= (room or 2**62) for part in parts)


def test_the_loss_mask_is_that_of_the_predicted_token() -> None:
    # Token:      0  1  2  3  4  5
    # Assistant:           x  x
    batch = pack([sample([0, 0, 0, 1, 1, 0])], steps=3)
    # The target at 2 and 3 says tokens 3 and 4: the answer's first token is taught as well
    assert batch.labelled.tolist() == [2, 3]
    assert isinstance(batch.teaching, LastState)
    assert batch.teaching.last.flatten().tolist() == [2, 3]
    assert batch.teaching.greedy.tolist() == [102, 103]
    # Step i at p proposes token p + 2 + i and is compared with the target at p + 1 + i
    for step, (rows, teachers) in enumerate(zip(batch.wanted, batch.label_rows, strict=True)):
        proposed = (rows + 2 + step).tolist()
        assert proposed == (batch.labelled[teachers] + 1).tolist()
    assert [rows.tolist() for rows in batch.wanted] == [[1, 2], [0, 1], [0]]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template[:24])
def test_what_is_taught_is_what_the_assistant_has_to_say_whatever_the_template(template: str) -> None:
    tokenizer = bytelevel()
    rendered = Renderer(tokenizer, template, 4096).conversation(TURNS)
    one = sample(list(rendered.loss_mask))
    batch = pack([replace(one, input_ids=torch.tensor(rendered.input_ids, dtype=torch.int32))], steps=3)
    said = tokenizer.decode(batch.input_ids[batch.labelled + 1])
    assert said == "".join(answers(Renderer(tokenizer, template, 4096), tokenizer, TURNS))
    assert said.startswith((TURNS[1]["content"], " " + TURNS[1]["content"]))
    for step, (rows, teachers) in enumerate(zip(batch.wanted, batch.label_rows, strict=True)):
        # Each token of every answer is proposed once at each step, from the row that the step's chain began at
        assert (rows + 2 + step).tolist() == (batch.labelled + 1).tolist()
        assert teachers.tolist() == list(range(len(batch.labelled)))


def test_no_row_is_taught_across_the_border_of_two_conversations() -> None:
    batch = pack([sample([0, 1, 1]), sample([0, 1, 1], first=3)], steps=3)
    assert batch.documents == [3, 3]
    assert batch.labelled.tolist() == [0, 1, 3, 4]
    assert [rows.tolist() for rows in batch.wanted] == [[0, 3], [], []]
    assert [rows.tolist() for rows in batch.label_rows] == [[1, 3], [], []]


def test_a_position_whose_label_the_draft_does_not_know_is_not_labelled_in_a_batch_to_learn_from() -> None:
    one = sample([0, 1, 1, 1])  # supervised at 0, 1 and 2, where the target says 100, 101 and 102
    knows = torch.arange(200) != 101
    assert pack([one], steps=1).labelled.tolist() == [0, 1, 2]
    learnt = pack([one], steps=1, knows=knows)
    assert learnt.labelled.tolist() == [0, 2]
    assert learnt.teaching.greedy.tolist() == [100, 102]


def test_an_idle_batch_teaches_nothing() -> None:
    batch = idle(sample([1, 1, 1]), steps=2)
    assert batch.documents == [1]
    assert [len(rows) for rows in batch.wanted] == [0, 0]
    assert len(batch.teaching.greedy) == 0


def test_states_in_fp8_stay_so_until_they_are_asked_for() -> None:
    torch.manual_seed(0)
    states, last = torch.randn(7, 12), torch.randn(7, 4)
    (hidden, scale), (small, last_scale) = quantised(states, 4), quantised(last, 4)
    stored = Sample(
        input_ids=torch.arange(7, dtype=torch.int32),
        loss_mask=torch.tensor([0, 0, 0, 1, 1, 0, 0], dtype=torch.uint8),
        hidden=hidden,
        teaching=LastState(small, torch.arange(7, dtype=torch.int32), torch.zeros(7), last_scale),
        hidden_scale=scale,
    )
    batch = pack([stored, stored], steps=2, multiple=16)
    assert batch.features.dtype == torch.float8_e4m3fn
    assert torch.equal(batch.states(torch.float32)[:14], torch.cat([stored.states(torch.float32)] * 2))
    assert batch.states(torch.float32)[14:].abs().sum() == 0
    assert isinstance(batch.teaching, LastState)
    assert torch.equal(batch.teaching.state(torch.float32)[:2], restored(small, last_scale, torch.float32)[2:4])
    torch.testing.assert_close(batch.states(torch.float32)[:7], states, rtol=2**-4, atol=1e-2)
