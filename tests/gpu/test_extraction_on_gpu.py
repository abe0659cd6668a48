"""On a GPU, in bf16 and with SGLang's own kernels, what is extracted is what the target computes: transformers says the same.

It runs in an environment with SGLang for CUDA. EAGLE3_GPU_TARGET names the folder of an instruct model.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3_api.jobs import DataConfig, ExtractConfig, ObjectReference, Report
from eagle3_api.sglang import default_layers
from eagle3_api.spec import Regenerate
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Features, LastState, Sample
from eagle3_draft.inspect.target import end_tokens, read_target, target_digest
from gpu.prompts import prompts

TARGET = Path(os.environ["EAGLE3_GPU_TARGET"])
#: Of SGLang, for a machine that has not all of its kernels.
FLAGS = shlex.split(os.environ.get("EAGLE3_GPU_FLAGS", ""))
CONVERSATIONS = 40

#: Relative, of the middle one of a state's numbers: two ways of adding up in bf16, and a layer more or less.
ROUNDING, A_LAYER = 0.04, 0.12


@pytest.fixture(scope="module")
def layers() -> list[int]:
    found = default_layers(read_target(TARGET).num_layers)
    assert found is not None, "a target of so few layers has no default ones"
    return found


def extract(folder: Path, conversations: Sequence[Sequence[dict[str, str]]], **changes: Any) -> Features:
    """By the stage as its container runs it."""
    from sglang.version import __version__

    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"messages": said}) + "\n" for said in conversations))
    of_data = DataConfig(conversations=str(data), max_length=1024, holdout=0.1, **changes.pop("data", {}))
    config = ExtractConfig(
        **{
            "owner": ObjectReference(namespace="gpu", name="gpu", uid="u"),
            "key": "e" * 16,
            "folder": str(folder / "features"),
            "target": str(TARGET),
            "target_digest": target_digest(TARGET),
            "data": of_data,
            "data_digest": Conversations.of(of_data).sha256,
            "dtype": "bf16",
            "sglang_version": __version__,
            "arguments": FLAGS,
            **changes,
        }
    )
    (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
    said_path = folder / "message"
    variables = {"EAGLE3_CONFIG": str(folder / "config.json"), "EAGLE3_TERMINATION_LOG": str(said_path)}
    subprocess.run([sys.executable, "-m", "eagle3_draft", "extract"], env=os.environ | variables, check=False)
    report = Report.parse(said_path.read_text())
    assert report is not None
    assert report.ok, report.message
    print(f"{report.result}")
    return Features.open(Path(config.folder))


CHUNKED = ["--chunked-prefill-size", "64"]  # so small that conversations are cut


@pytest.fixture(scope="module")
def extracted(layers: list[int], tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    features = extract(tmp_path_factory.mktemp("extract"), talks(), layers=layers, arguments=[*FLAGS, *CHUNKED])
    return [*features.train, *features.held_out]


def talks() -> list[list[dict[str, str]]]:
    questions, answers = prompts(CONVERSATIONS, 1), prompts(CONVERSATIONS, 2)
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer * 5}]
        for question, answer in zip(questions, answers, strict=True)
    ]


def differences(extracted: Sequence[Sample], layers: Sequence[int]) -> list[float]:
    """Of each auxiliary layer and of the last state: how far apart the two engines are, relative, in the middle number."""
    engine = TransformersEngine.load(TARGET, layers, arguments=["--dtype", "bfloat16"])
    ours, theirs = [], []
    states = engine.states([sample.input_ids.tolist() for sample in extracted])
    for sample, other in zip(extracted, states, strict=True):
        assert isinstance(sample.teaching, LastState)
        assert isinstance(other.teaching, LastState)
        ours.append(torch.cat([sample.hidden, sample.teaching.last], -1).float())
        theirs.append(torch.cat([other.hidden, other.teaching.last], -1).float())
    mine, other_ = torch.cat(ours), torch.cat(theirs)
    relative = (mine - other_).square().mean(0).sqrt() / other_.square().mean(0).sqrt()
    found = [float(part.median()) for part in relative.chunk(len(layers) + 1)]
    print(f"layers {list(layers)} and the last: {', '.join(f'{value:.4f}' for value in found)}")
    return found


def test_both_engines_compute_the_same_states_in_every_layer(extracted: list[Sample], layers: list[int]) -> None:
    assert max(differences(extracted, layers)) < ROUNDING


def test_a_layer_that_is_off_by_one_does_not_pass_for_the_same(extracted: list[Sample], layers: list[int]) -> None:
    *shifted, last = differences(extracted, [layer - 1 for layer in layers])
    assert min(shifted) > A_LAYER
    assert last < ROUNDING


def test_what_it_answers_by_graphs_while_states_are_taken_is_what_the_states_say(
    layers: list[int], tmp_path: Path
) -> None:
    """Two parts, so that the second is answered while the states of the first are taken."""
    questions = [[{"role": "user", "content": question}] for question in prompts(640, 3)]
    data = {"regenerate": Regenerate(max_tokens=128)}
    features = extract(tmp_path, questions, layers=layers, data=data, end_tokens=end_tokens(TARGET))
    samples = [*features.train, *features.held_out]
    agreed = said = 0
    for sample in samples:
        answered = sample.loss_mask[1:].bool()
        said += int(answered.sum())
        agreed += int((sample.teaching.greedy[:-1] == sample.input_ids[1:])[answered].sum())
    print(f"{agreed} of {said} tokens of answers are the likeliest by the states")
    assert agreed / said > 0.97  # where two are as likely, a batch of another size takes the other
    assert max(differences(samples[:CONVERSATIONS], layers)) < ROUNDING


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_target_that_two_gpus_share_has_the_same_states_each_once(
    extracted: list[Sample], layers: list[int], tmp_path: Path
) -> None:
    """One row a token is what the stage itself insists on; these are of the same tokens, and differ by rounding."""
    features = extract(tmp_path, talks(), layers=layers, tensor_parallel_size=2, arguments=[*FLAGS, *CHUNKED])
    assert features.manifest.provenance["tensorParallelSize"] == "2"
    both = [*features.train, *features.held_out]
    assert [sample.input_ids.tolist() for sample in both] == [sample.input_ids.tolist() for sample in extracted]
    mine, other = (torch.cat([sample.hidden for sample in samples]).float() for samples in (both, extracted))
    relative = (mine - other).square().mean(0).sqrt() / other.square().mean(0).sqrt()
    found = [float(part.median()) for part in relative.chunk(len(layers))]
    print(f"layers {layers} on two GPUs: {', '.join(f'{value:.4f}' for value in found)}")
    assert max(found) < ROUNDING
