"""On a GPU, in bf16 and with SGLang's own kernels, what is extracted is what the target computes: transformers says the same.

It runs in an environment with SGLang for CUDA. EAGLE3_GPU_TARGET names the folder of an instruct model.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from eagle3_api.sglang import default_layers
from eagle3_api.spec import Regenerate
from eagle3_draft.features import Sample
from eagle3_draft.inspect.target import end_tokens, target_facts
from gpu.extracting import CHUNKED, computed, every, extract, stored
from gpu.prompts import prompts
from gpu.rounding import Distance, distances

CONVERSATIONS = 40


@pytest.fixture(scope="module")
def target() -> Path:
    assert "EAGLE3_GPU_TARGET" in os.environ, "EAGLE3_GPU_TARGET must name the folder of an instruct model"
    return Path(os.environ["EAGLE3_GPU_TARGET"])


@pytest.fixture(scope="module")
def layers(target: Path) -> list[int]:
    found = default_layers(target_facts(target).num_layers)
    assert found is not None, "a target of so few layers has no default ones"
    return found


@pytest.fixture(scope="module")
def extracted(target: Path, layers: list[int], tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    questions, answers = prompts(CONVERSATIONS, 1), prompts(CONVERSATIONS, 2)
    talks = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer * 5}]
        for question, answer in zip(questions, answers, strict=True)
    ]
    return every(extract(target, tmp_path_factory.mktemp("extract"), talks, layers=layers, arguments=CHUNKED))


def from_exact(target: Path, states: Tensor, samples: Sequence[Sample], layers: Sequence[int]) -> list[Distance]:
    """Of each auxiliary layer, the last state and the normaliser: how far from transformers in fp32, where that in bf16 is 1."""
    other, exact = (computed(target, samples, layers, dtype) for dtype in ("bfloat16", "float32"))
    hidden = target_facts(target).hidden_size
    found = distances(states, other, exact, [hidden] * (len(layers) + 1) + [1])
    print(f"layers {list(layers)}, the last and the normaliser: {found}")
    return found


def test_both_engines_compute_the_same_states_in_every_channel_of_every_layer(
    target: Path, extracted: list[Sample], layers: list[int]
) -> None:
    assert all(distance.is_rounding for distance in from_exact(target, stored(extracted), extracted, layers))


def test_one_channel_with_the_numbers_of_its_neighbour_does_not_pass_for_the_same(
    target: Path, extracted: list[Sample], layers: list[int]
) -> None:
    wrong = stored(extracted)
    wrong[:, 1] = wrong[:, 0]
    first, *others = from_exact(target, wrong, extracted, layers)
    assert not first.is_rounding
    assert all(distance.is_rounding for distance in others)


def test_a_layer_that_is_off_by_one_does_not_pass_for_the_same(
    target: Path, extracted: list[Sample], layers: list[int]
) -> None:
    *shifted, last, normaliser = from_exact(target, stored(extracted), extracted, [layer - 1 for layer in layers])
    assert not any(distance.is_rounding for distance in shifted)
    assert last.is_rounding
    assert normaliser.is_rounding


def test_what_it_answers_by_graphs_while_states_are_taken_is_what_the_states_say(
    target: Path, layers: list[int], tmp_path: Path
) -> None:
    """Two parts, so that the second is answered while the states of the first are taken."""
    questions = [[{"role": "user", "content": question}] for question in prompts(640, 3)]
    data = {"regenerate": Regenerate(max_tokens=128)}
    samples = every(extract(target, tmp_path, questions, layers=layers, data=data, end_tokens=end_tokens(target)))
    agreed = said = 0
    for sample in samples:
        answered = sample.loss_mask[1:].bool()
        said += int(answered.sum())
        agreed += int((sample.teaching.greedy[:-1] == sample.input_ids[1:])[answered].sum())
    print(f"{agreed} of {said} tokens of answers are the likeliest by the states")
    assert agreed / said > 0.97  # where two are as likely, a batch of another size takes the other
    some = samples[:CONVERSATIONS]
    assert all(distance.is_rounding for distance in from_exact(target, stored(some), some, layers))
