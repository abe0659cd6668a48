"""A target that two GPUs share has the states of one, each row written once: a rank has half of the heads and of the vocabulary.

It runs in an environment with SGLang for CUDA and needs no model: the target is a Llama of random weights that two can share.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from eagle3_api.sglang import default_layers
from eagle3_draft.features import Sample
from gpu.extracting import CHUNKED, computed, every, extract, stored
from gpu.rounding import distances
from served.injection import TAKES, WRITES, injected, marking
from tiny.grammar import conversations
from tiny.tokenizer import VOCABULARY, new_tokenizer

HIDDEN, DEPTH = 1024, 8
LAYERS = default_layers(DEPTH) or []

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

CONVERSATIONS = 120


@dataclass(frozen=True)
class Extracted:
    """What some GPUs made, and how many processes took states and wrote them."""

    samples: list[Sample]
    provenance: Mapping[str, str]
    took: int
    wrote: int


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights are so large that each layer changes what it gets by about as much as that is."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=DEPTH,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=HIDDEN**-0.5,
        tie_word_embeddings=False,
    )
    auto: Any = AutoModelForCausalLM
    auto.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)
    return folder


def extracted(target: Path, folder: Path, gpus: int) -> Extracted:
    """By so many GPUs."""
    watching = injected(folder / "watching", {module: marking(folder, method) for module, method in (TAKES, WRITES)})
    features = extract(
        target,
        folder,
        conversations(seed=5, count=CONVERSATIONS),
        arguments=CHUNKED,
        variables={"PYTHONPATH": os.pathsep.join([str(watching), os.environ.get("PYTHONPATH", "")])},
        layers=LAYERS,
        tensor_parallel_size=gpus,
    )
    took, wrote = (len(list(folder.glob(f"{method}-*"))) for _, method in (TAKES, WRITES))
    return Extracted(every(features), features.manifest.provenance, took, wrote)


@pytest.fixture(scope="module")
def alone(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Extracted:
    return extracted(target, tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def shared(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Extracted:
    return extracted(target, tmp_path_factory.mktemp("two"), 2)


def test_two_gpus_have_the_states_of_one_in_every_channel_and_row(
    target: Path, alone: Extracted, shared: Extracted
) -> None:
    assert [sample.input_ids.tolist() for sample in shared.samples] == [
        sample.input_ids.tolist() for sample in alone.samples
    ]
    exact = computed(target, alone.samples, LAYERS, "float32")
    found = distances(stored(shared.samples), stored(alone.samples), exact, [HIDDEN] * (len(LAYERS) + 1) + [1])
    print(f"layers {LAYERS}, the last and the normaliser: {found}")
    assert all(distance.is_rounding for distance in found)


def test_both_ranks_take_the_states_and_one_writes_them(alone: Extracted, shared: Extracted) -> None:
    assert (alone.took, alone.wrote) == (1, 1)
    assert (shared.took, shared.wrote) == (2, 1)
    assert shared.provenance["tensorParallelSize"] == "2"
