"""What is served is what was measured: the converted draft's proposals are those that its trainer recorded, at the same positions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import HELD_OUT, REPORT, VOCABULARY, WEIGHTS
from eagle3_api.checkpoints import Level
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.convert import run
from eagle3_draft.convert.proposals import Step, against_the_recorded
from eagle3_draft.errors import StageError
from eagle3_draft.features import Sample, sample_of
from eagle3_draft.model.target import Target
from eagle3_draft.storage import artifacts
from eagle3_draft.train import held_out
from eagle3_draft.train.vocabulary import Vocabulary
from unit.convert import drafts
from unit.train import corpus

STEPS = 3
#: Of each conversation every position is asked, so that the test knows which ones are.
CONVERSATIONS, ANSWER = 64, 8


@pytest.fixture(scope="module")
def samples(made: drafts.Made) -> list[Sample]:
    """Conversations, as they lie in the sample, whose states are noise."""
    noise, tokens = torch.Generator().manual_seed(5), 24
    width = held_out.read(made.trained).samples[0].hidden.shape[1]
    return [
        sample_of(
            {
                "input_ids": torch.randint(corpus.VOCABULARY, (tokens,), generator=noise, dtype=torch.int32),
                "loss_mask": (torch.arange(tokens) >= tokens - ANSWER).to(torch.uint8),
                "hidden": torch.randn(tokens, width, generator=noise),
                "top_tokens": torch.zeros(tokens, 1, dtype=torch.int32),
                "top_log_probabilities": torch.zeros(tokens, 1, dtype=torch.float16),
            }
        )
        for _ in range(CONVERSATIONS)
    ]


@pytest.fixture(scope="module")
def own(made: drafts.Made, samples: list[Sample]) -> Tensor:
    """(tokens, steps), what the draft proposes there."""
    return proposed(made, samples)


@pytest.fixture(scope="module")
def faults(made: drafts.Made, samples: list[Sample]) -> dict[str, Tensor]:
    """What would have been recorded of another draft than was written down, or on other states than were kept."""
    rounded = [replace(sample, hidden=sample.hidden.round()) for sample in samples]
    return {
        "another base of the rope": proposed(made, samples, rope_theta=3.0),
        "states that were rounded to whole numbers": proposed(made, rounded),
    }


def proposed(made: drafts.Made, samples: list[Sample], **sizes: object) -> Tensor:
    draft = drafts.draft_of(made.sizes.model_copy(update=sizes), load_file(made.trained / WEIGHTS))
    vocabulary, embedding = Vocabulary.load(made.trained / VOCABULARY), Target(made.target).embedding()
    return corpus.proposed(draft, vocabulary, samples, embedding, STEPS)


def answers(recorded: Tensor, served: Tensor, step: int, there: float, here: float) -> Tensor:
    """(tokens,), tokens of the target by which a step's recorded proposals are right in one share, and those that are served in another.

    Raises:
        AssertionError: too few of the proposals differ.
    """
    asked = (recorded[:, step] != held_out.NONE).nonzero().flatten()
    theirs, ours = recorded[asked, step], served[asked, step]
    same, other = (ours == theirs).nonzero().flatten(), (ours != theirs).nonzero().flatten()
    right, lost = round(here * len(asked)), round(there * len(asked)) - round(here * len(asked))
    assert lost <= len(other)
    assert right <= len(same)
    said = torch.full_like(ours, corpus.VOCABULARY - 1)  # which the draft does not know
    said[same[:right]] = ours[same[:right]]
    said[other[:lost]] = theirs[other[:lost]]
    labels = torch.zeros(len(recorded), dtype=torch.int32)
    labels[asked + 1 + step] = said
    return labels


def trained(
    made: drafts.Made, samples: list[Sample], folder: Path, recorded: Tensor | None, labels: Tensor
) -> drafts.Made:
    """Train's artifact with this held-out sample, a part of what its trainer measured."""
    copied = drafts.copy(made, folder)
    held_out.save(folder / HELD_OUT, samples, torch.float32, recorded)
    columns = load_file(folder / HELD_OUT)
    save_file(columns | {"top_tokens": labels[:, None].contiguous()}, folder / HELD_OUT)
    # Nothing that is measured on a part can be held against this
    drafts.say(folder, accuracy=[0.769, 0.1, 0.1], heldOut=5000)
    return copied


def test_a_draft_that_proposes_what_it_did_in_training_is_converted_and_the_report_says_so(
    made: drafts.Made, samples: list[Sample], own: Tensor, tmp_path: Path
) -> None:
    right = trained(made, samples, tmp_path / "trained", own, answers(own, own, 0, 0.769, 0.769))
    result = run(drafts.convert_config(right, tmp_path / "out"))
    assert result.equal_proposals == [1.0] * STEPS
    told = json.loads((tmp_path / "out" / REPORT).read_text())
    first = told["proposals"][0]
    assert first["positions"] == CONVERSATIONS * ANSWER
    assert first["accuracy"] == first["recorded"] == pytest.approx(0.769, abs=0.001)
    (said,) = [check for check in told["checks"] if check["rule"] == "proposals"]
    assert said["verdict"] == "ok"
    assert "right in 77.0% of 512 held-out positions, and were in 77.0% when it was trained" in said["message"]


@pytest.mark.parametrize(
    ("fault", "here"), [("another base of the rope", 0.747), ("states that were rounded to whole numbers", 0.6)]
)
@pytest.mark.parametrize("step", range(STEPS))
def test_a_draft_that_is_served_with_another_accuracy_than_it_was_trained_to_is_refused_with_the_step(
    made: drafts.Made,
    samples: list[Sample],
    own: Tensor,
    faults: dict[str, Tensor],
    tmp_path: Path,
    step: int,
    fault: str,
    here: float,
) -> None:
    """Row 20: 74.7 % at serving for 76.9 % in training, which two samples of 64 conversations would hide."""
    recorded = own.clone()
    recorded[:, step] = faults[fault][:, step]
    labels = answers(recorded, own, step, 0.769, here)
    wrong = trained(made, samples, tmp_path / "trained", recorded, labels)
    with pytest.raises(StageError, match="is refused") as no:
        run(drafts.convert_config(wrong, tmp_path / "out"))
    assert (no.value.code, no.value.reason) == (ExitCode.REFUSED, Reason.PARITY_MISMATCH)
    there, here = (round(share * 512) / 512 for share in (0.769, here))
    assert f"at step {step + 1} the converted draft is right in {here:.1%} of 512 held-out" in no.value.message
    assert f"it was right in {there:.1%} when it was trained" in no.value.message
    assert artifacts.finished(tmp_path / "out", drafts.KEY) is None


def test_a_draft_of_a_trainer_that_recorded_nothing_is_held_against_its_numbers_as_before(
    made: drafts.Made, samples: list[Sample], own: Tensor, tmp_path: Path
) -> None:
    older = trained(made, samples, tmp_path / "trained", None, answers(own, own, 0, 0.747, 0.747))
    result = run(drafts.convert_config(older, tmp_path / "out"))
    assert result.equal_proposals is None
    checks = json.loads((tmp_path / "out" / REPORT).read_text())["checks"]
    assert [check["verdict"] for check in checks if check["rule"] in ("proposals", "accuracy")] == ["ok"]
    drafts.say(older.trained, accuracy=[0.99] * STEPS)
    with pytest.raises(StageError, match=r"of the trained one they were in 99\.0%") as no:
        run(drafts.convert_config(older, tmp_path / "again"))
    assert no.value.reason == Reason.PARITY_MISMATCH


def test_what_was_recorded_in_float32_is_what_is_served_in_bfloat16_up_to_ties(tmp_path: Path) -> None:
    result = run(drafts.convert_config(drafts.make(tmp_path / "made", torch.bfloat16), tmp_path / "out"))
    assert result.equal_proposals is not None
    assert min(result.equal_proposals) > 0.9


@pytest.mark.parametrize(
    ("step", "differs"),
    [
        (Step(512, 0.769, 0.769, 1.0, 0.0), False),
        (Step(512, 0.765, 0.769, 0.98, 0.02), False),  # coins
        (Step(512, 0.747, 0.769, 0.978, 0.022), True),  # ties, and all of them lost: no coin does that
        (Step(512, 0.769, 0.747, 0.978, 0.022), True),  # nor are all won
        (Step(512, 0.769, 0.769, 0.95, 0.02), True),  # as often right, elsewhere
        (Step(40, 0.775, 0.75, 0.925, 0.05), False),  # one odd one
        (Step(40, 0.775, 0.75, 0.9, 0.05), True),
        (Step(40, 0.775, 0.75, 0.975, 0.0), False),  # and an odd one that was right
        (Step(40, 0.8, 0.75, 0.95, 0.0), True),
        (Step(24, 0.7, 0.75, 0.92, 0.08), False),  # one of two coins
        (Step(1, 0.0, 0.0, 1.0, 0.0), False),
    ],
)
def test_ties_are_coins_and_little_else_may_differ(step: Step, differs: bool) -> None:
    (found,) = against_the_recorded([step])
    assert (found.level is Level.REFUSED) == differs
    assert (found.reason == Reason.PARITY_MISMATCH) == differs


def test_the_first_step_that_differs_is_named_and_those_that_ask_nothing_are_passed_over() -> None:
    nothing, same = Step(0, 0.0, 0.0, 0.0, 0.0), Step(100, 0.5, 0.5, 1.0, 0.0)
    other, worse = Step(100, 0.4, 0.5, 0.7, 0.1), Step(100, 0.1, 0.5, 0.1, 0.1)
    (found,) = against_the_recorded([same, nothing, other, worse])
    assert found.message.startswith("at step 3 the converted draft is right in 40.0% of 100 held-out positions")
    (found,) = against_the_recorded([nothing])
    assert found.level is Level.UNKNOWN
