"""A training goes on from a draft as it is: its weights, its vocabulary in its order, its architecture."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_api.artifacts import CONFIG, VOCABULARY
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features, Samples
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.model.config import DraftConfig, LinearScaling, Llama3Scaling, LongScaling, YarnScaling
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from eagle3_draft.train.begin import begin, first_weights, own_embedding, prepare
from eagle3_draft.train.vocabulary import USAGE_FILE, Usage, Vocabulary
from published.kinds import KINDS, Kind
from published.layouts import LAYOUTS, Original, specforge
from unit.convert import drafts
from unit.train import corpus

COUNTS = torch.ones(corpus.VOCABULARY, dtype=torch.int64)
USAGE = Usage(COUNTS, COUNTS)


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
    beginning = begin(config, USAGE, target)
    weights = first_weights(config, target)
    assert weights is not None
    Draft(beginning.config).load_state_dict(weights)  # nothing is missing, nothing else is there
    expected = made.sizes
    assert beginning.config == expected.model_copy(update={"rope_theta": 10000.0})
    assert beginning.vocabulary.ids.sort().values.tolist() == original.ids.tolist()
    order = torch.searchsorted(original.ids, beginning.vocabulary.ids)
    for name, weight in original.weights.items():
        rows = weight[order] if name == "lm_head.weight" else weight
        torch.testing.assert_close(weights[name], rows, atol=2e-3 if layout.startswith("EAGLE official") else 0, rtol=0)


TRAINABLE = KINDS | {
    f"{scaling.rope_type} rope": Kind(specforge, {"rope_scaling": scaling})
    for scaling in (
        LinearScaling(rope_type="linear", factor=4.0),
        Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
        YarnScaling(rope_type="yarn", factor=8.0, original_max_position_embeddings=16),
        LongScaling(
            rope_type="longrope",
            short_factor=[1.0, 1.5, 2.0, 3.0],
            long_factor=[4.0] * 4,
            original_max_position_embeddings=64,
        ),
    )
}


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_first_weights_of_a_draft_of_another_kind_are_its_own(made: drafts.Made, tmp_path: Path, name: str) -> None:
    kind = TRAINABLE[name]
    original, draft = drafts.original_of_kind(made, kind)
    there = tmp_path / "there"
    there.mkdir()
    kind.layout(original, there)
    of = (
        made
        if kind.architecture == "LlamaForCausalLM"
        else drafts.for_architecture(made, tmp_path / "of", kind.architecture)
    )
    config, target = stage(of, there, layers=list(original.layers)), Target(of.target)
    beginning = begin(config, USAGE, target)
    weights = first_weights(config, target)
    assert weights is not None
    Draft(beginning.config).load_state_dict(weights)
    assert beginning.config.rope_scaling == draft.config.rope_scaling
    assert beginning.config.latent == draft.config.latent
    order = torch.searchsorted(original.ids, beginning.vocabulary.ids)
    assert original.ids[order].tolist() == beginning.vocabulary.ids.tolist()
    own = own_embedding(config)
    if draft.config.hidden_size == draft.config.target_hidden_size:
        assert own is None  # though it may bring a copy of the target's
    else:
        assert own is not None
        assert original.embedding is not None
        assert torch.equal(own, original.embedding)
    for tensor, weight in draft.state_dict().items():
        rows = weight[order] if tensor == "lm_head.weight" else weight
        torch.testing.assert_close(weights[tensor], rows, atol=0, rtol=0)


def test_the_order_of_a_vocabulary_by_frequency_is_kept(made: drafts.Made, original: Original, tmp_path: Path) -> None:
    LAYOUTS["ModelOpt"](original, tmp_path)
    ids = begin(stage(made, tmp_path), USAGE, Target(made.target)).vocabulary.ids
    assert ids.tolist() != original.ids.tolist()
    begun = begin(stage(made, tmp_path), USAGE, Target(made.target)).vocabulary
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
    beginning = begin(config, USAGE, target)
    assert (beginning.config.depth, beginning.config.fc_norm, beginning.config.output_bias) == (2, True, True)
    Draft(beginning.config).load_state_dict(first_weights(config, target) or {})


def test_one_of_longrope_is_not_gone_on_from_with_longer_texts_than_it_turns_in_one_way(
    made: drafts.Made, tmp_path: Path
) -> None:
    known = corpus.make(tmp_path, train=4, held_out=1)
    features = Features.open(known.features)
    longest = max(int(samples.lengths.max()) for samples in (features.train, features.held_out))

    def prepared(original: int) -> None:
        scaling = LongScaling(
            rope_type="longrope",
            short_factor=[1.0] * 4,
            long_factor=[4.0] * 4,
            original_max_position_embeddings=original,
        )
        there, out = tmp_path / f"{original} there", tmp_path / str(original)
        for folder in (there, out / "draft"):
            folder.mkdir(parents=True)
        specforge(drafts.original_of_kind(made, Kind(specforge, {"rope_scaling": scaling}))[0], there)
        digest = checkpoint_digest(there)
        config = corpus.train_config(known, out, init_from=str(there), init_digest=digest)
        prepare(config, features, Target(known.target))

    prepared(longest)
    with pytest.raises(StageError, match=f"turns texts of up to {longest - 1} tokens in one way") as refused:
        prepared(longest - 1)
    assert (refused.value.code, refused.value.reason) == (ExitCode.REFUSED, Reason.UNSUPPORTED_DRAFT)
    found = f"The longest conversation has {longest} tokens. Set data.maxLength to {longest - 1} at most"
    assert found in refused.value.message  # and no number as maxLength's that nobody set


def test_a_draft_that_was_changed_since_it_was_inspected_is_refused(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    LAYOUTS["SpecForge"](original, tmp_path)
    config = stage(made, tmp_path)
    spoilt = json.loads((tmp_path / CONFIG).read_text()) | {"rms_norm_eps": 1e-3}
    (tmp_path / CONFIG).write_text(json.dumps(spoilt))
    with pytest.raises(StageError, match=r"draft\.initFrom: .* has changed since it was inspected") as no:
        begin(config, USAGE, Target(made.target))
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE)


def test_without_one_a_training_begins_afresh(made: drafts.Made) -> None:
    config = corpus.train_config(corpus.Corpus(made.target, made.target), made.target.parent)
    assert first_weights(config, Target(made.target)) is None
    assert len(begin(config, USAGE, Target(made.target)).vocabulary.ids) == config.vocabulary_size


def test_where_the_target_does_not_say_its_positions_a_draft_has_the_context_that_is_served(made: drafts.Made) -> None:
    """The training refused what Inspect had taken for good."""
    config = corpus.train_config(corpus.Corpus(made.target, made.target), made.target.parent, context_length=48)
    target = Target(made.target)
    target.config["max_position_embeddings"] = None
    assert begin(config, USAGE, target).config.max_position_embeddings == 48


@pytest.fixture
def learnt(tmp_path: Path) -> corpus.Corpus:
    return corpus.make(tmp_path, train=3, held_out=1)


def test_the_next_try_keeps_the_vocabulary_that_checkpoints_have_learnt(learnt: corpus.Corpus, tmp_path: Path) -> None:
    config = corpus.train_config(learnt, tmp_path)
    folder = Path(config.folder)
    folder.mkdir()
    features, target = Features.open(learnt.features), Target(learnt.target)
    prepare(config, features, target)
    chosen = Vocabulary.load(folder / VOCABULARY)
    assert len(chosen.ids) == 64
    others = torch.tensor([token for token in range(corpus.VOCABULARY) if not chosen.members[token]])[:64]
    Vocabulary(others, corpus.VOCABULARY).save(folder / VOCABULARY)  # as a former version might have chosen it
    prepare(config, features, target)
    assert torch.equal(Vocabulary.load(folder / VOCABULARY).ids, others)


def test_the_words_are_counted_once_for_all_tries_and_it_is_told_meanwhile(
    learnt: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = corpus.train_config(learnt, tmp_path)
    folder = Path(config.folder)
    folder.mkdir()
    features, target = Features.open(learnt.features), Target(learnt.target)
    expected = Usage.of(features.train.texts(), corpus.VOCABULARY)
    prepare(config, features, target)
    assert "conversations read for the vocabulary" in capsys.readouterr().out
    monkeypatch.delattr(Samples, "texts")
    (folder / CONFIG).unlink()
    prepare(config, features, target)
    found = Usage.load(folder / USAGE_FILE)
    assert torch.equal(found.supervised, expected.supervised)
    assert torch.equal(found.overall, expected.overall)


def test_a_try_that_ended_while_it_chose_leaves_nothing_behind_that_counts(
    learnt: corpus.Corpus, tmp_path: Path
) -> None:
    config = corpus.train_config(learnt, tmp_path)
    folder = Path(config.folder)
    folder.mkdir()
    Vocabulary(torch.arange(64), corpus.VOCABULARY).save(folder / VOCABULARY)  # and no sizes: they come after it
    prepare(config, Features.open(learnt.features), Target(learnt.target))
    assert Vocabulary.load(folder / VOCABULARY).ids.tolist() != list(range(64))
    assert DraftConfig.model_validate_json((folder / CONFIG).read_bytes()).draft_vocabulary_size == 64


def test_a_vocabulary_that_is_too_small_for_the_special_tokens_is_refused(
    learnt: corpus.Corpus, tmp_path: Path
) -> None:
    reserved = [{"id": token, "content": f"w{token}", "special": True} for token in range(3, 103)]
    tokenizer = json.loads((learnt.target / "tokenizer.json").read_text())
    (learnt.target / "tokenizer.json").write_text(json.dumps(tokenizer | {"added_tokens": reserved}))
    config = corpus.train_config(learnt, tmp_path)
    with pytest.raises(
        StageError, match=r"draft\.vocabularySize: .* 10\d tokens cannot all be in a vocabulary of 64"
    ) as no:
        begin(config, USAGE, Target(learnt.target))
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)
