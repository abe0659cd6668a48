"""Training finds the target's own embedding and head, by the reader that Inspect refuses by."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3_api.jobs import InspectConfig, ObjectReference
from eagle3_draft.inspect import run as inspect
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.target import Target

LAYERS, WORDS, WIDTH = 4, 48, 16
LANGUAGE = {
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "vocab_size": WORDS,
    "max_position_embeddings": 256,
    "intermediate_size": 32,
    "kv_lora_rank": 8,
    "tie_word_embeddings": False,
}


def matrix(value: float) -> Tensor:
    return torch.full((WORDS, WIDTH), value, dtype=torch.bfloat16)


def write(folder: Path, config: dict[str, Any], prefix: str, further: dict[str, Tensor], *, sharded: bool) -> None:
    """A target whose embedding is of ones and whose head is of twos, with further tensors."""
    own = {f"{prefix}model.embed_tokens.weight": matrix(1), f"{prefix}lm_head.weight": matrix(2)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    if not sharded:
        save_file(own | further, folder / "model.safetensors")
        return
    shards = {"model-1.safetensors": own, "model-2.safetensors": further}
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    index = {"weight_map": {tensor: name for name, tensors in shards.items() for tensor in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def inspection(folder: Path) -> InspectConfig:
    owner = ObjectReference(namespace="llm", name="kimi", uid="u")
    return InspectConfig(owner=owner, key="k", target=str(folder), sglang_version="0.5.23", auxiliary_layers=[1, 2])


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize(
    ("architecture", "prefix", "nested", "copies"),
    [
        ("DeepseekV3ForCausalLM", "", False, f"model.layers.{LAYERS}."),
        ("Glm4MoeForCausalLM", "", False, f"model.layers.{LAYERS}."),
        ("KimiK25ForConditionalGeneration", "language_model.", True, f"language_model.model.layers.{LAYERS}."),
        ("Qwen3NextForCausalLM", "", False, "mtp."),
    ],
)
def test_a_target_that_predicts_several_tokens_is_inspected_and_trained_on_with_its_own_embedding_and_head(
    tmp_path: Path, architecture: str, prefix: str, nested: bool, copies: str, sharded: bool
) -> None:
    config = {"architectures": [architecture], **({"text_config": LANGUAGE} if nested else LANGUAGE)}
    further = {f"{copies}{name}.weight": matrix(9) for name in ("embed_tokens", "shared_head.head", "lm_head")}
    write(tmp_path, config, prefix, further, sharded=sharded)
    facts = inspect(inspection(tmp_path))
    target = Target(tmp_path)
    assert (facts.num_layers, facts.vocabulary_size) == (LAYERS, WORDS)
    assert torch.equal(target.embedding(), matrix(1))
    assert torch.equal(target.head(), matrix(2))


def test_sizes_outside_of_the_language_models_part_are_read_alike_by_both_stages(tmp_path: Path) -> None:
    text = {name: value for name, value in LANGUAGE.items() if name not in ("vocab_size", "tie_word_embeddings")}
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "vocab_size": WORDS,
        "tie_word_embeddings": True,
        "text_config": text,
    }
    write(tmp_path, config, "language_model.", {}, sharded=False)
    facts, target = inspect(inspection(tmp_path)), Target(tmp_path)
    draft = draft_config(target.config, layers=facts.auxiliary_layers, draft_vocabulary_size=32)
    assert facts.vocabulary_size == draft.vocabulary_size == WORDS
    assert torch.equal(target.head(), matrix(1))
