"""Every architecture that SGLang can run on the CPU gives the states that transformers computes: of each layer, and no other's."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_api.sglang import CAPTURE_KNOWN, RAW_UNLESS_FIRST_IS_ONE, UNFIT, Version, capture_points
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import LastState
from served.architectures import DECODER_LAYERS, VOCABULARY, new_target
from served.extraction import TOLERANCE, Extraction, conversations, in_sglang, python_path
from served.injection import injected
from tiny.flags import SERVE_ARGUMENTS

pytestmark = pytest.mark.timeout(600)

#: The version of the environment.
HERE = Version(0, 5, 21)

#: Model code of SGLang that differs in how it captures. Llama is in test_extract.py, and here with the others.
OFTEN = ("Qwen2ForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "DeepseekV3ForCausalLM")
RARELY = tuple(sorted(CAPTURE_KNOWN[HERE].difference(OFTEN)))

#: SGLang keeps the two numbers of Apertus's activation in bf16.
TOLERANCES = {"ApertusForCausalLM": 2e-2}

#: The last layer's output is the final norm's input, which SGLang captures nowhere.
EVERY = range(-1, DECODER_LAYERS - 1)

#: Instead of two kernels that are written for a GPU.
OF_MINIMAX = """
def rms_sumsq_serial(*states):
    return torch.cat([one.float().square().sum(-1) for one in states])

def rms_apply_serial(query, key, of_query, of_key, squares, ranks, eps):
    def normed(states, weight, sums):
        scale = torch.rsqrt(sums / (states.shape[-1] * ranks) + eps)
        return (states.float() * scale[:, None] * weight.float()).to(states.dtype)
    sums = squares.split(len(query))
    return normed(query, of_query, sums[0]), normed(key, of_key, sums[1])
"""

#: As if nothing were known against them.
ALL_FIT = "PLUS_ONE |= UNFIT.keys()"


def sets_of_layers(architecture: str) -> list[list[int]]:
    """All layers that can be named, in each notation that SGLang has for them."""
    if architecture in RAW_UNLESS_FIRST_IS_ONE:
        return [list(EVERY), list(EVERY)[2:]]
    return [list(EVERY)[1:]]


@dataclass(frozen=True)
class Target:
    """A target and its states by transformers.

    Attributes:
        folder: where it lies.
        states: of all its layers, the tokens of every conversation one after the other, by layer; and last after the final norm.
    """

    folder: Path
    states: Mapping[int | None, torch.Tensor]


class World:
    """Extractions by the product's own engine, one process for all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = [torch.randint(3, VOCABULARY, (length,)).tolist() for length in (40, 7, 50)]
        self._data = conversations(folder / "data.jsonl", [[{"role": "user", "content": "w3"}]])
        self._jobs: list[Any] = []

    def target(self, architecture: str) -> Target:
        folder = self.folder / architecture
        engine = TransformersEngine(new_target(architecture, folder), EVERY)
        every = list(engine.states(self.said))
        hidden = torch.cat([states.hidden for states in every]).chunk(len(EVERY), -1)
        last = torch.cat([states.teaching.last for states in every if isinstance(states.teaching, LastState)])
        return Target(folder, {**dict(zip(EVERY, hidden, strict=True)), None: last})

    def ask(self, target: Path, name: str, **changes: Any) -> None:
        """Have the engine run over a target, once all is asked for."""
        arguments = [*SERVE_ARGUMENTS, "--chunked-prefill-size", "32"]  # of the longer conversations two or more
        config = Extraction(self.folder, target, self._data).config(**{"arguments": arguments, **changes})
        out = str(self.folder / name)
        self._jobs.append({"config": config.to_json(), "conversations": self.said, "out": out})

    def run(self, code: Mapping[str, str]) -> None:
        """Do what was asked for, with other code in SGLang's modules."""
        jobs = self.folder / "jobs.json"
        jobs.write_text(json.dumps(self._jobs))
        points = ",".join(asdict(capture_points(HERE)).values())
        command, env = in_sglang(
            Path(__file__).with_name("capturing.py"),
            points,
            jobs,
            PYTHONPATH=python_path(injected(self.folder / "site", code)),
        )
        found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr

    def captured(self, name: str, layers: Sequence[int]) -> dict[int | None, torch.Tensor]:
        """What the engine gave."""
        file = self.folder / f"{name}.safetensors"
        assert file.exists(), (self.folder / f"{name}.log").read_text()[-2000:]
        found = load_file(file)
        hidden = torch.cat([found[f"{number}.hidden"] for number in range(len(self.said))]).chunk(len(layers), -1)
        last = torch.cat([found[f"{number}.last"] for number in range(len(self.said))])
        return {**dict(zip(layers, hidden, strict=True)), None: last}

    def refused(self, name: str) -> Any:
        """What the engine was refused for: code, reason and message."""
        return json.loads((self.folder / f"{name}.json").read_bytes())


@pytest.fixture
def world(tmp_path: Path) -> World:
    torch.manual_seed(5)
    return World(tmp_path)


def those_like(states: torch.Tensor, target: Target, tolerance: float) -> list[int | None]:
    """The layers whose states these may be."""
    return [layer for layer, others in target.states.items() if float((states - others).abs().max()) < tolerance]


def mistaken(world: World, architectures: Sequence[str], targets: Mapping[str, Target]) -> dict[str, Any]:
    """Where states are of other layers than they are said to be, of none, or would pass for another's: by target and layers."""
    found = {}
    for architecture in architectures:
        tolerance = TOLERANCES.get(architecture, TOLERANCE)
        for layers in sets_of_layers(architecture):
            name = f"{architecture} {layers}"
            for layer, states in world.captured(name, layers).items():
                like = [those_like(states, targets[architecture], bound) for bound in (tolerance, 100 * tolerance)]
                if like != [[layer], [layer]]:
                    found[f"{name}: {layer}"] = like
    return found


@pytest.mark.parametrize(
    "architectures", [pytest.param(OFTEN, id="often"), pytest.param(RARELY, id="rarely", marks=pytest.mark.long)]
)
def test_sglang_gives_the_states_of_each_layer_that_is_named_and_of_no_other_and_names_what_it_does_not_take(
    world: World, architectures: Sequence[str]
) -> None:
    """All of it in one process, for to import SGLang takes longest."""
    targets = {architecture: world.target(architecture) for architecture in architectures}
    for architecture, target in targets.items():
        for layers in sets_of_layers(architecture):
            world.ask(target.folder, f"{architecture} {layers}", layers=layers)
    some = next(iter(targets.values())).folder
    world.ask(some, "flag", arguments=[*SERVE_ARGUMENTS, "--no-such-flag"])
    world.ask(some, "version", sglang_version="0.5.19")
    world.run({"sglang.srt.models.minimax_m2": OF_MINIMAX})

    assert mistaken(world, architectures, targets) == {}
    flag, version = world.refused("flag"), world.refused("version")
    assert flag[:2] == [ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION]
    assert "--no-such-flag" in flag[2]
    assert version[:2] == [ExitCode.BAD_CONFIGURATION, Reason.VERSION_UNSUPPORTED]
    assert "0.5.21" in version[2]


@pytest.mark.long
def test_what_a_target_is_refused_for_is_still_so(world: World) -> None:
    """Its auxiliary states are no layer's, whereas the last one is right."""
    targets = {architecture: world.target(architecture) for architecture in UNFIT}
    for architecture, target in targets.items():
        for layers in sets_of_layers(architecture):
            world.ask(target.folder, f"{architecture} {layers}", layers=layers)
    world.run({"eagle3_api.sglang": ALL_FIT})
    wrong = {f"{name} {layers}: {layer}" for name in UNFIT for layers in sets_of_layers(name) for layer in layers}
    assert mistaken(world, list(UNFIT), targets).keys() == wrong
