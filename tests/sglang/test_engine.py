"""The engine without a container round it, on small targets of every architecture that SGLang can run on a CPU."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_api.sglang import (
    CAPTURE_KNOWN,
    UNFIT,
    Version,
    capture_points,
)
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import LastState
from served.architectures import EVERY, VOCABULARY, WITH_CODE, new_target, sets_of_layers
from served.extraction import OF_TWO_RANKS, TOLERANCE, Extraction, conversations, in_sglang
from tiny.flags import SERVE_ARGUMENTS

pytestmark = pytest.mark.timeout(600)

#: The version of the environment.
HERE = Version(0, 5, 21)

#: Model code of SGLang that differs in how it captures. Llama is in test_extract.py, and here with the others.
OFTEN = ("Qwen2ForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "KimiK25ForConditionalGeneration")
RARELY = tuple(sorted(CAPTURE_KNOWN[HERE].difference(OFTEN)))

#: Of the first of them, where nothing else is said.
LAYERS = [0, 1, 2, 3]

#: SGLang keeps the two numbers of Apertus's activation in bf16.
TOLERANCES = {"ApertusForCausalLM": 2e-2}

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

#: What an architecture needs in the names of a module to run here, or to be run at all.
CODE = {
    "MiniMaxM2ForCausalLM": {"sglang.srt.models.minimax_m2": OF_MINIMAX},
    **{unfit: {"eagle3_api.sglang.layers": "KNOWN_TARGETS |= UNFIT.keys()"} for unfit in UNFIT},
}

CACHING = "CAPTURE_FLAGS = tuple(flag for flag in CAPTURE_FLAGS if flag != '--disable-radix-cache')"

#: States pass over a disk, and something of them must come within three seconds of its clock.
IMPATIENT = """
from disk import CLOCK as time
HANDOVER_SECONDS, SHARED_MEMORY = 3.0, Path("/nowhere")
"""


def over_a_disk(pieces: int, seconds: float) -> dict[str, str]:
    """Code for a disk that takes so many pieces of a file, and so long for each."""
    return {
        "eagle3_draft.extract.sglang_engine": IMPATIENT,
        "eagle3_draft.extract.handover": f"from disk import taking; _file = taking(pieces={pieces}, seconds={seconds})",
    }


@dataclass(frozen=True)
class Target:
    """A target and its states by transformers.

    Attributes:
        folder: where it lies.
        states: of all its layers, the tokens of every conversation one after the other, by layer; by None the last after the
            final norm.
    """

    folder: Path
    states: Mapping[int | None, torch.Tensor]

    def those_like(self, states: torch.Tensor, tolerance: float) -> list[int | None]:
        """The layers whose states these may be."""
        return [layer for layer, others in self.states.items() if float((states - others).abs().max()) < tolerance]


class World:
    """Extractions by the product's own engine, all in one process: to import SGLang takes longest."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        torch.manual_seed(5)
        self.folder = folder
        self._ranks = ranks  # that share a target
        first, short, rest = (torch.randint(3, VOCABULARY, (length,)).tolist() for length in (40, 7, 10))
        self.said = [first, short, first + rest]
        self.targets: dict[str, Target] = {}
        self._data = conversations(folder / "data.jsonl", [[{"role": "user", "content": "w3"}]])
        self._jobs: list[Any] = []

    def compare(self, architectures: Iterable[str]) -> None:
        """Make targets, and have the engine take each set of their layers."""
        for architecture in architectures:
            folder = self.folder / architecture
            by_transformers = TransformersEngine(new_target(architecture, folder), EVERY)
            every = list(by_transformers.states(self.said))
            hidden = torch.cat([states.hidden for states in every]).chunk(len(EVERY), -1)
            last = torch.cat([states.teaching.last for states in every if isinstance(states.teaching, LastState)])
            self.targets[architecture] = Target(folder, {**dict(zip(EVERY, hidden, strict=True)), None: last})
            for layers in sets_of_layers(architecture, HERE):
                self.ask(architecture, f"{architecture} {layers}", CODE.get(architecture), layers=layers)

    def ask(self, architecture: str, name: str, code: Mapping[str, str] | None = None, **changes: Any) -> None:
        """Have the engine run over a target, with other code in some modules."""
        arguments = [*SERVE_ARGUMENTS, "--chunked-prefill-size", "32"]  # of the longer conversations two or more
        extraction = Extraction(self.folder, self.targets[architecture].folder, self._data)
        config = extraction.config(
            **{
                "arguments": arguments,
                "layers": LAYERS,
                "tensor_parallel_size": self._ranks,
                "trust_remote_code": architecture in WITH_CODE,
                **changes,
            }
        )
        job = {"config": config.to_json(), "conversations": self.said, "code": code or {}}
        self._jobs.append({**job, "out": str(self.folder / name)})

    def run(self) -> None:
        """Do all that was asked for."""
        jobs = self.folder / "jobs.json"
        jobs.write_text(json.dumps(self._jobs))
        points = ",".join(asdict(capture_points(HERE)).values())
        command, env = in_sglang(
            Path(__file__).with_name("capturing.py"), points, jobs, **(OF_TWO_RANKS if self._ranks == 2 else {})
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

    def refused(self, name: str) -> tuple[ExitCode, Reason, str]:
        """What the engine gave up for."""
        file = self.folder / f"{name}.json"
        assert file.exists(), (self.folder / f"{name}.log").read_text()[-2000:]
        code, reason, message = json.loads(file.read_bytes())
        return ExitCode(code), Reason(reason), message

    def mistaken(self) -> dict[str, Any]:
        """Where states are of other layers than they are said to be, of none, or would pass for another's."""
        found = {}
        for architecture, target in self.targets.items():
            tolerance = TOLERANCES.get(architecture, TOLERANCE)
            for layers in sets_of_layers(architecture, HERE):
                name = f"{architecture} {layers}"
                for layer, states in self.captured(name, layers).items():
                    like = [target.those_like(states, bound) for bound in (tolerance, 100 * tolerance)]
                    if like != [[layer], [layer]]:
                        found[f"{name}: {layer}"] = like
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """What every test run looks at."""
    world = World(tmp_path_factory.mktemp("engine"))
    world.compare(OFTEN)
    some = OFTEN[0]
    world.ask(some, "flag", arguments=[*SERVE_ARGUMENTS, "--no-such-flag"])
    world.ask(some, "version", sglang_version="0.5.19")
    world.ask(some, "cached", {"eagle3_api.sglang.capture": CACHING})
    world.ask(some, "slow", over_a_disk(pieces=5, seconds=1.0))
    world.ask(some, "hangs", over_a_disk(pieces=2, seconds=60))
    world.run()
    return world


def test_sglang_gives_the_states_of_each_layer_that_is_named_and_of_no_other(world: World) -> None:
    assert world.mistaken() == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("architectures", "ranks"), [(RARELY, 1), ((*OFTEN, *RARELY), 2)], ids=["one rank", "two ranks"]
)
def test_it_does_so_for_every_architecture_that_runs_here(
    tmp_path: Path, architectures: Sequence[str], ranks: int
) -> None:
    world = World(tmp_path, ranks)
    world.compare(architectures)
    world.run()
    assert world.mistaken() == {}


@pytest.mark.long
def test_what_a_target_is_refused_for_is_still_so(tmp_path: Path) -> None:
    """Its auxiliary states are no layer's, whereas the embedding and the last one are right."""
    world = World(tmp_path)
    world.compare(UNFIT)
    world.run()
    asked = [(name, layers) for name in UNFIT for layers in sets_of_layers(name, HERE)]
    wrong = {f"{name} {layers}: {layer}" for name, layers in asked for layer in layers if layer != -1}
    assert world.mistaken().keys() == wrong


def test_what_this_sglang_is_not_or_does_not_know_is_named(world: World) -> None:
    code, reason, message = world.refused("flag")
    assert (code, reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)
    assert "--no-such-flag" in message
    code, reason, message = world.refused("version")
    assert (code, reason) == (ExitCode.BAD_CONFIGURATION, Reason.VERSION_UNSUPPORTED)
    assert str(HERE) in message


def test_a_prefix_cache_that_comes_back_is_features_misaligned(world: World) -> None:
    code, reason, message = world.refused("cached")
    assert (code, reason) == (ExitCode.REFUSED, Reason.FEATURES_MISALIGNED)
    assert "prefix cache" in message


def test_states_that_a_slow_volume_takes_longer_for_than_they_are_waited_for_are_no_others(world: World) -> None:
    for layer, states in world.captured("slow", LAYERS).items():
        assert world.targets[OFTEN[0]].those_like(states, TOLERANCE) == [layer]


def test_a_volume_that_takes_no_more_states_is_not_taken_for_states_that_are_missing(world: World) -> None:
    code, reason, message = world.refused("hangs")
    assert (code, reason) == (ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED)
    assert "its volume hangs" in message
