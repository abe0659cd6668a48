"""The examples for other trainers make of our features what those read."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from eagle3_api.spec import Eagle3DraftSpec
from eagle3_draft.features import Features, LastState
from unit.train import corpus

EXAMPLES = Path(__file__).parents[3] / "examples" / "trainers"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def specforge() -> ModuleType:
    return script("specforge_train")


@pytest.fixture(scope="module")
def speculators() -> ModuleType:
    return script("speculators_train")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    return corpus.make(tmp_path_factory.mktemp("corpus"), train=3, held_out=1)


def test_specforge_gets_each_conversation_to_learn_from_once(
    specforge: ModuleType, made: corpus.Corpus, tmp_path: Path
) -> None:
    features = Features.open(made.features)
    specforge.write_features(features, tmp_path)
    files = sorted(tmp_path.rglob("*.ckpt"))
    assert len(files) == len(features.train)
    for path, sample in zip(files, features.train, strict=True):
        held = torch.load(path)
        assert held["input_ids"].tolist() == sample.input_ids.tolist()
        assert held["loss_mask"].tolist() == sample.loss_mask.tolist()
        assert held["hidden_state"].shape == (1, len(sample), corpus.HIDDEN)
        assert torch.equal(held["aux_hidden_state"][0], sample.hidden.bfloat16())
    written = {path: path.stat().st_mtime_ns for path in files}
    specforge.write_features(features, tmp_path)  # another try
    assert {path: path.stat().st_mtime_ns for path in files} == written


def test_specforge_is_asked_for_the_draft_of_the_object(
    specforge: ModuleType, made: corpus.Corpus, tmp_path: Path
) -> None:
    config: dict[str, Any] = json.loads(corpus.train_config(made, tmp_path, processes=4).model_dump_json(by_alias=True))
    draft, run = specforge.draft_config(config), specforge.run_config(config, tmp_path)
    assert (draft["hidden_size"], draft["draft_vocab_size"]) == (corpus.HIDDEN, 64)
    assert run["training"]["ttt_length"] == 3
    assert run["deployment"]["trainer"]["nproc_per_node"] == 4
    assert specforge.resume(tmp_path) == []
    (tmp_path / "runs" / "draft-latest").mkdir(parents=True)
    assert specforge.resume(tmp_path) == [f"training.resume_from={tmp_path}/runs/draft-latest"]


def test_speculators_gets_back_our_last_state_from_the_norm_that_it_applies(
    speculators: ModuleType, made: corpus.Corpus, tmp_path: Path
) -> None:
    features, norm = Features.open(made.features), speculators.final_norm(made.target)
    speculators.write_states(features, norm, tmp_path)
    for number, sample in enumerate(features.train):
        held = load_file(tmp_path / f"hs_{number}.safetensors")
        assert held["token_ids"].tolist() == sample.input_ids.tolist()
        layers, last = held["hidden_states"][:, :-1].float(), held["hidden_states"][:, -1].float()
        torch.testing.assert_close(layers.flatten(1), sample.hidden, rtol=0.01, atol=0.01)
        normed = torch.nn.functional.rms_norm(last, norm.shape, norm, 1e-6)
        assert isinstance(sample.teaching, LastState)
        torch.testing.assert_close(normed, sample.teaching.last, rtol=0.02, atol=0.02)


def test_speculators_is_asked_for_a_draft_that_sglang_serves(
    speculators: ModuleType, made: corpus.Corpus, tmp_path: Path
) -> None:
    config: dict[str, Any] = json.loads(corpus.train_config(made, tmp_path).model_dump_json(by_alias=True))
    flags = speculators.flags(config, tmp_path)
    layers = flags[flags.index("--target-layer-ids") + 1 :][: len(corpus.LAYERS)]
    assert layers == [str(layer + 1) for layer in corpus.LAYERS]
    assert "--no-norm-before-residual" in flags
    counts = speculators.frequencies(list(Features.open(made.features).train))
    assert sum(counts.values()) == sum(int(sample.loss_mask.sum()) for sample in Features.open(made.features).train)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_is_an_object(path: Path) -> None:
    spec = Eagle3DraftSpec.model_validate(yaml.safe_load(path.read_text())["spec"])
    assert spec.train.trainer is not None
    script = Path(spec.train.trainer.command[-1]).name
    assert (EXAMPLES / script).exists()
