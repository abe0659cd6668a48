"""On GPUs, in bf16, the states of each architecture are those that its layers compute: a small target of each but Qwen2, layer by layer.

It runs in an environment with SGLang for CUDA and needs no model. Engines start side by side, and only those that are asked for.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.version import __version__
from torch import Tensor

from eagle3_api.sglang import UNFIT, WHOLE_SINCE, Version
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Sample
from gpu.extracting import CHUNKED, every, extract, stored
from gpu.rounding import Distance, distances
from served.architectures import EVERY, OF_A_GPU, WITH_CODE, architectures, new_target, sets_of_layers
from served.injection import injected
from unit.train.corpus import END, VOCABULARY

pytestmark = pytest.mark.timeout(900)

HERE = Version.parse(__version__)

#: Each engine is three processes, whose start is one core's work.
AT_ONCE = max(1, (os.cpu_count() or 1) // 4)

#: Weights are stored in fp32, of which SGLang would make fp16; others take of the GPU's memory, too; and an expert that all tokens
#: share would be chosen as a fifth of four.
OURS = (
    *("--dtype", "bfloat16"),
    *("--max-total-tokens", "8192", "--max-running-requests", "16"),
    "--disable-shared-experts-fusion",
)

CONVERSATIONS, WORDS = 40, 60

#: Those of which SGLang, on Hopper and Blackwell and with several GPUs, leaves the sum of what the ranks computed to the next
#: layer's norm, where a kernel of flashinfer's does both.
SUMMED_LATER = (
    "Qwen3MoeForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "GptOssForCausalLM",
)

#: Where it decides so.
DECIDING = "communicator" if Version(0, 5, 21) > HERE else "layer_boundary.residual.add_norm"

#: Has it do so wherever it runs, by a kernel in torch that leaves a file.
SUMMING_LATER = {
    f"sglang.srt.layers.{DECIDING}": """
def apply_flashinfer_allreduce_fusion(batch_size):
    return 0 < batch_size <= FUSE_ALLREDUCE_MAX_BATCH_SIZE
""",
    "sglang.srt.layers.flashinfer_comm_fusion": """
def flashinfer_allreduce_residual_rmsnorm(input_tensor, residual, weight, eps=1e-6, **_):
    import os
    from sglang.srt.distributed import get_tp_group
    open(os.environ["EAGLE3_SUMMED"], "w").close()
    stream = residual.float() + get_tp_group().all_reduce(input_tensor.clone()).float()
    normed = stream * torch.rsqrt(stream.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed.to(input_tensor.dtype), stream.to(residual.dtype)
""",
}

#: Has the product take what it refuses.
LET_THROUGH = {"eagle3_api.sglang.layers": "WHOLE_SINCE = {}; KNOWN_TARGETS |= UNFIT.keys()"}


@dataclass(frozen=True)
class Case:
    """One start of the engine.

    Attributes:
        architecture: of its target.
        layers: that it is asked for.
        gpus: that share the target. Two leave sums to the next layer's norm.
    """

    architecture: str
    layers: tuple[int, ...]
    gpus: int

    def __str__(self) -> str:
        return f"{self.architecture}-{','.join(map(str, self.layers))}-{self.gpus}"

    @property
    def whole(self) -> bool:
        """Whether auxiliary states are those of a layer."""
        since = WHOLE_SINCE.get(self.architecture, HERE) if self.gpus > 1 else HERE
        return self.architecture not in UNFIT and since <= HERE


#: Transformers take Qwen 2's own tokenizer for it, which knows no words of ours.
SPEECHLESS = "Qwen2ForCausalLM"

CASES = [
    *(
        Case(name, tuple(layers), 1)
        for name in architectures()
        if name != SPEECHLESS
        for layers in sets_of_layers(name, HERE)
    ),
    *(Case(name, tuple(sets_of_layers(name, HERE)[0]), 2) for name in SUMMED_LATER),
]


class Target:
    """A small target, and its states by transformers."""

    def __init__(self, architecture: str, folder: Path) -> None:
        self.folder = folder
        self._model = new_target(architecture, folder, OF_A_GPU)
        self._model.set_experts_implementation("eager")
        config = folder / "config.json"  # gpt-oss's attention has the type that stands there, whatever --dtype says
        config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))

    def states(self, samples: Sequence[Sample], dtype: torch.dtype) -> list[Tensor]:
        """Of each layer of ``EVERY``, of the last after the final norm and of the normaliser: (tokens, its width)."""
        model = deepcopy(self._model)
        for parameter in model.parameters():  # and not buffers, which transformers keep in fp32
            parameter.data = parameter.data.to(dtype)
        engine = TransformersEngine(model.cuda(), list(EVERY))
        found = stored(engine.states([sample.input_ids.tolist() for sample in samples]))
        return list(torch.split(found, [OF_A_GPU.hidden] * (len(EVERY) + 1) + [1], -1))


def conversations() -> list[list[dict[str, str]]]:
    """Words without sense, so that each is another."""
    torch.manual_seed(5)
    words = torch.randint(END + 1, VOCABULARY, (CONVERSATIONS, 2, WORDS))
    said = [[" ".join(f"w{word}" for word in turn) for turn in talk] for talk in words.tolist()]
    return [[{"role": "user", "content": ask}, {"role": "assistant", "content": answer}] for ask, answer in said]


@pytest.fixture(scope="module")
def samples_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], tuple[Target, list[Sample]]]]:
    """What the engine makes of a case. All that is to be tested is begun at once."""
    asked: list[Any] = [item for item in request.session.items if item.nodeid.startswith(request.node.nodeid)]
    cases: list[Case] = [item.callspec.params["case"] for item in asked]
    targets = {name: Target(name, tmp_path_factory.mktemp(name)) for name in {case.architecture for case in cases}}

    def begin(case: Case) -> list[Sample]:
        folder = tmp_path_factory.mktemp(str(case))
        code = LET_THROUGH | (SUMMING_LATER if case.gpus > 1 else {})
        path = [str(injected(folder / "code", code)), os.environ.get("PYTHONPATH", "")]
        summed = folder / "summed"
        features = extract(
            targets[case.architecture].folder,
            folder,
            conversations(),
            arguments=[*CHUNKED, *OURS],
            variables={"PYTHONPATH": os.pathsep.join(path), "EAGLE3_SUMMED": str(summed)},
            layers=list(case.layers),
            tensor_parallel_size=case.gpus,
            trust_remote_code=case.architecture in WITH_CODE,
        )
        assert summed.exists() == (case.gpus > 1)
        return every(features)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun: dict[Case, Future[list[Sample]]] = {
            case: pool.submit(begin, case) for case in cases if case.gpus <= torch.cuda.device_count()
        }
        yield lambda case: (targets[case.architecture], begun[case].result())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_states_are_those_of_each_layer_that_is_named_and_of_no_other(
    samples_of: Callable[[Case], tuple[Target, list[Sample]]], case: Case
) -> None:
    if case.gpus > torch.cuda.device_count():
        pytest.skip(f"needs {case.gpus} GPUs")
    target, samples = samples_of(case)
    by_place = list(zip(*(target.states(samples, dtype) for dtype in (torch.bfloat16, torch.float32)), strict=True))
    *hidden, last, normaliser = torch.split(stored(samples), [OF_A_GPU.hidden] * (len(case.layers) + 1) + [1], -1)
    far = {
        layer: {like: distance(states, *theirs) for like, theirs in zip(EVERY, by_place, strict=False)}
        for layer, states in zip(case.layers, hidden, strict=True)
    }
    ends = [distance(states, *theirs) for states, theirs in zip((last, normaliser), by_place[-2:], strict=True)]
    print(f"{case}: {[far[layer][layer] for layer in case.layers]}, the last and the normaliser {ends}")
    assert all(found.is_rounding for found in ends)
    taken = {layer: [like for like, found in far[layer].items() if found.is_rounding] for layer in case.layers}
    assert taken == {layer: [layer] if case.whole or layer == -1 else [] for layer in case.layers}


def distance(states: Tensor, others: Tensor, exact: Tensor) -> Distance:
    """How far states are from the exact ones, where others are at 1."""
    (found,) = distances(states, others, exact, [states.shape[-1]])
    return found
