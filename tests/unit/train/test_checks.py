"""Features that are not this object's are refused before anything is trained."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.features import LastState, Sample
from eagle3_draft.train import run
from eagle3_draft.train.checks import check_sizes
from unit.model.test_draft import config as draft_of
from unit.train import corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    return corpus.make(tmp_path_factory.mktemp("corpus"), train=2, held_out=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": [-1, 1, 2]}, r"layers is \[0, 1, 2\], expected \[-1, 1, 2\]"),
        ({"features_key": "00" * 32}, "key is fefe"),
    ],
)
def test_features_of_another_object_are_refused(
    made: corpus.Corpus, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(StageError, match=words) as refused:
        run(corpus.train_config(made, tmp_path, **changes))
    assert refused.value.reason == Reason.FEATURE_MISMATCH
    assert refused.value.code == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"last_norm": "none"}, "final norm"),
        ({"vocabulary_size": 151}, "vocabulary size is 151, expected 150"),
        ({"tokenizer_digest": "0" * 64}, "tokenizer is 0000"),
    ],
)
def test_features_of_another_kind_are_refused(
    made: corpus.Corpus, tmp_path: Path, header: dict[str, Any], words: str
) -> None:
    sample = _silent(6)
    other = corpus.Corpus(made.target, tmp_path / "features")
    corpus.write_features(other, [sample], [sample], **header)
    config = corpus.train_config(other, tmp_path)
    with pytest.raises(StageError, match=words) as refused:
        run(config)
    assert refused.value.reason == Reason.FEATURE_MISMATCH


@pytest.mark.parametrize(("train", "held_out"), [(0, 1), (1, 0), (1, 1)], ids=["no train", "no held out", "no answer"])
def test_data_from_which_nothing_can_be_learned_or_measured_is_refused(
    made: corpus.Corpus, tmp_path: Path, train: int, held_out: int
) -> None:
    other = corpus.Corpus(made.target, tmp_path / "features")
    corpus.write_features(other, [_silent(6)] * train, [_silent(5)] * held_out)
    config = corpus.train_config(other, tmp_path)
    with pytest.raises(StageError) as refused:
        run(config)
    assert refused.value.reason == Reason.NO_USABLE_DATA


def test_features_of_another_target_are_refused(made: corpus.Corpus, tmp_path: Path) -> None:
    target = corpus.new_target()
    target.save_pretrained(tmp_path / "target")
    corpus.new_tokenizer().save_pretrained(tmp_path / "target")
    with pytest.raises(StageError, match="target digest is") as refused:
        other = corpus.Corpus(tmp_path / "target", made.features)
        run(corpus.train_config(other, tmp_path))
    assert refused.value.reason == Reason.FEATURE_MISMATCH


@pytest.mark.stages
def test_features_of_which_a_byte_was_flipped_are_refused_by_the_name_of_the_file(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    copy = corpus.Corpus(made.target, tmp_path / "features")
    shutil.copytree(made.features, copy.features)
    shard = copy.features / "train-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StageError, match=r"train-00000[.]safetensors .* was changed since") as refused:
        run(corpus.train_config(copy, tmp_path))
    assert (refused.value.code, refused.value.reason) == (ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT)


def test_a_target_that_was_changed_since_it_was_inspected_is_refused(made: corpus.Corpus, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="changed since it was inspected") as refused:
        run(corpus.train_config(made, tmp_path, target_digest="00" * 32))
    assert refused.value.reason == Reason.TARGET_UNREADABLE


def test_a_target_that_is_not_there_is_named(made: corpus.Corpus, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="nowhere") as refused:
        run(corpus.train_config(made, tmp_path, target=str(tmp_path / "nowhere")))
    assert refused.value.reason == Reason.TARGET_UNREADABLE


def test_fp8_is_refused_where_a_matrix_has_no_size_for_it(made: corpus.Corpus, tmp_path: Path) -> None:
    sizes = draft_of(intermediate_size=72)
    settings = corpus.train_config(made, tmp_path, precision="fp8")
    with pytest.raises(StageError, match=r"gate_proj.weight \(72, 32\), .*set it to bf16") as refused:
        check_sizes(settings, sizes)
    assert refused.value.reason == Reason.INVALID_CONFIGURATION
    check_sizes(settings, draft_of(intermediate_size=64))
    check_sizes(settings.model_copy(update={"precision": "bf16"}), sizes)


def _silent(tokens: int) -> Sample:
    """A conversation without an answer."""
    return Sample(
        input_ids=torch.arange(tokens, dtype=torch.int32),
        loss_mask=torch.zeros(tokens, dtype=torch.uint8),
        hidden=torch.zeros(tokens, len(corpus.LAYERS) * corpus.HIDDEN),
        teaching=LastState.of(torch.zeros(tokens, corpus.HIDDEN), torch.zeros(tokens, corpus.VOCABULARY)),
    )
