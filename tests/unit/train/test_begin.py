"""A training goes on from a draft as it is: its weights, its vocabulary in its order, its architecture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_api.artifacts import CONFIG
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.model import Draft, DraftConfig
from eagle3_draft.model.target import Target
from eagle3_draft.stage import StageError
from eagle3_draft.train.begin import begin, first_weights
from published.layouts import LAYOUTS, Original
from unit.convert import drafts
from unit.train import corpus

COUNTS = torch.ones(corpus.VOCABULARY, dtype=torch.int64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> drafts.Made:
    return drafts.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def original(made: drafts.Made) -> Original:
    return drafts.original_of(made)


def stage(made: drafts.Made, checkpoint: Path, **changes: Any) -> TrainConfig:
    known = corpus.Corpus(made.target, made.target.parent / "features")
    settings = {"init_from": str(checkpoint), "init_digest": checkpoint_digest(checkpoint)} | changes
    return corpus.train_config(known, checkpoint.parent, **settings)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_weights_are_the_drafts_own_row_by_row(
    made: drafts.Made, original: Original, tmp_path: Path, layout: str
) -> None:
    LAYOUTS[layout](original, tmp_path)
    config, target = stage(made, tmp_path), Target(made.target)
    beginning = begin(config, COUNTS, target)
    weights = first_weights(config, target)
    assert weights is not None
    Draft(beginning.config).load_state_dict(weights)  # nothing is missing, nothing else is there
    expected = DraftConfig.model_validate_json((made.trained / CONFIG).read_bytes())
    assert beginning.config == expected.model_copy(update={"rope_theta": 10000.0})
    assert beginning.vocabulary.ids.sort().values.tolist() == original.ids.tolist()
    order = torch.searchsorted(original.ids, beginning.vocabulary.ids)
    for name, weight in original.weights.items():
        rows = weight[order] if name == "lm_head.weight" else weight
        torch.testing.assert_close(weights[name], rows, atol=2e-3 if layout == "EAGLE official" else 0, rtol=0)


def test_the_order_of_a_vocabulary_by_frequency_is_kept(made: drafts.Made, original: Original, tmp_path: Path) -> None:
    LAYOUTS["ModelOpt"](original, tmp_path)
    ids = begin(stage(made, tmp_path), COUNTS, Target(made.target)).vocabulary.ids
    assert ids.tolist() != original.ids.tolist()
    begun = begin(stage(made, tmp_path), COUNTS, Target(made.target)).vocabulary
    begun.save(tmp_path / "vocabulary.safetensors")
    assert type(begun).load(tmp_path / "vocabulary.safetensors").ids.tolist() == ids.tolist()


def test_its_switches_are_kept(made: drafts.Made, original: Original, tmp_path: Path) -> None:
    switched = drafts.with_switches(made, tmp_path / "trained", {"depth": 2, "fc_norm": True, "output_bias": True})
    other = drafts.original_of(switched)
    (tmp_path / "there").mkdir()
    LAYOUTS["SpecForge"](
        replace(other, sizes=dict(other.sizes) | {"num_hidden_layers": 2, "fc_norm": True}), tmp_path / "there"
    )
    config, target = stage(made, tmp_path / "there"), Target(made.target)
    beginning = begin(config, COUNTS, target)
    assert (beginning.config.depth, beginning.config.fc_norm, beginning.config.output_bias) == (2, True, True)
    Draft(beginning.config).load_state_dict(first_weights(config, target) or {})


def test_a_draft_that_was_changed_since_it_was_inspected_is_refused(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    LAYOUTS["SpecForge"](original, tmp_path)
    config = stage(made, tmp_path)
    spoilt = json.loads((tmp_path / CONFIG).read_text()) | {"rms_norm_eps": 1e-3}
    (tmp_path / CONFIG).write_text(json.dumps(spoilt))
    with pytest.raises(StageError, match=r"draft\.initFrom: .* was changed since it was inspected") as no:
        begin(config, COUNTS, Target(made.target))
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE)


def test_without_one_a_training_begins_afresh(made: drafts.Made) -> None:
    config = corpus.train_config(corpus.Corpus(made.target, made.target), made.target.parent)
    assert first_weights(config, Target(made.target)) is None
    assert len(begin(config, COUNTS, Target(made.target)).vocabulary.ids) == config.vocabulary_size
