"""What SGLang hands over is what the target computes: compared with transformers, layer by layer, on the tiny target."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import environment
import pytest
import torch
from image import recipe

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode, ExtractConfig, ExtractResult, ObjectReference, Report
from eagle3_api.sglang import Version, capture_points
from eagle3_api.spec import Regenerate
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.extract import run
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Features, LastState, Sample, TopK
from eagle3_draft.inspect.target import end_tokens, target_digest
from served.injection import TAKES, WRITES, injected, marking
from served.server import sglang
from testcluster.wait import wait_for
from tiny.flags import AUXILIARY_LAYERS, SERVE_ARGUMENTS
from tiny.make import cached

ROOT = Path(__file__).resolve().parents[2]

#: Between two ways of adding up the same numbers in fp32; the states themselves are about 1 to 100.
TOLERANCE = 1e-3

CONVERSATIONS = 60


@dataclass(frozen=True)
class Ending:
    """How a stage's container ended, and what it said."""

    code: int
    report: Report
    log: str

    @property
    def result(self) -> ExtractResult:
        assert self.report.ok, f"{self.report.reason}: {self.report.message}\n{self.log}"
        return ExtractResult.model_validate(self.report.result)


def python_path(*first: Path) -> str:
    """Where a container's Python finds our packages, and before them what a test injects."""
    return os.pathsep.join(map(str, (*first, ROOT / "crds", ROOT / "images" / "draft")))


@dataclass
class Extraction:
    """One extraction of the tiny target in the environment of SGLang, as a container runs it."""

    folder: Path
    target: Path
    data: Path

    def config(self, **changes: Any) -> ExtractConfig:
        return ExtractConfig(
            **{
                "owner": ObjectReference(namespace="llm", name="tiny", uid="u"),
                "key": "e" * 16,
                "folder": str(self.folder / "features"),
                "target": str(self.target),
                "target_digest": target_digest(self.target),
                "data": DataConfig(
                    conversations=str(self.data), max_length=256, holdout=0.1, max_samples=CONVERSATIONS
                ),
                "data_digest": Conversations.read(self.data).sha256,
                "layers": list(AUXILIARY_LAYERS),
                "dtype": "fp32",
                "sglang_version": "0.5.21",
                "arguments": list(SERVE_ARGUMENTS),
                **changes,
            }
        )

    def start(self, config: ExtractConfig, **environment_: str) -> "subprocess.Popen[bytes]":
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "config.json"
        file.write_text(json.dumps({"config": config.to_json()}))
        image = recipe()
        variables = {
            "PATH": f"{image.path[0]}:{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "EAGLE3_CONFIG": str(file),
            "EAGLE3_TERMINATION_LOG": str(self.folder / "message"),
            **image.env,
            **environment_,
        }
        with (self.folder / "log").open("wb") as log:
            command = [str(environment.ensure() / "bin" / "python3"), "-m", "eagle3_draft", "extract"]
            return subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)

    def end(self, process: "subprocess.Popen[bytes]") -> Ending:
        code = process.wait(240)
        log = (self.folder / "log").read_text(errors="replace")
        report = Report.parse((self.folder / "message").read_text())
        assert report is not None, log
        return Ending(code, report, log)

    def run(self, config: ExtractConfig, **environment_: str) -> Ending:
        return self.end(self.start(config, **environment_))

    def features(self) -> Features:
        return Features.open(self.folder / "features")


@pytest.fixture(scope="module")
def tiny() -> Path:
    return cached(environment.ensure() / "bin" / "python3")


def extraction(folder: Path, tiny: Path) -> Extraction:
    return Extraction(folder, tiny / "models" / "tiny-target", tiny / "data" / "train.jsonl")


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Extraction:
    """An extraction by SGLang, with chunks so small that most conversations are computed in several."""
    found = extraction(tmp_path_factory.mktemp("sglang"), tiny)
    arguments = [*SERVE_ARGUMENTS, "--chunked-prefill-size", "64"]
    result = found.run(found.config(arguments=arguments)).result
    assert result.engine == "sglang 0.5.21"
    assert result.conversations == CONVERSATIONS
    return found


def computed(tiny: Path, folder: Path, layers: Sequence[int]) -> Features:
    """The same conversations by transformers."""
    checked = extraction(folder, tiny)
    config = checked.config(layers=list(layers))

    torch.set_num_threads(1)
    run(config, load=by_transformers)
    return checked.features()


def by_transformers(config: ExtractConfig) -> TransformersEngine:
    return TransformersEngine.load(Path(config.target), config.layers, arguments=["--dtype", "float32"])


def every(features: Features) -> Iterator[Sample]:
    yield from features.train
    yield from features.held_out


def differences(ours: Features, theirs: Features) -> list[float]:
    """The largest difference of each auxiliary layer's states, and last of the last ones."""
    count = len(AUXILIARY_LAYERS)
    worst = [0.0] * (count + 1)
    for mine, other in zip(every(ours), every(theirs), strict=True):
        assert torch.equal(mine.input_ids, other.input_ids)
        assert torch.equal(mine.loss_mask, other.loss_mask)
        assert isinstance(mine.teaching, LastState)
        assert isinstance(other.teaching, LastState)
        states = [*zip(mine.hidden.chunk(count, -1), other.hidden.chunk(count, -1), strict=True)]
        for index, (a, b) in enumerate([*states, (mine.teaching.last, other.teaching.last)]):
            worst[index] = max(worst[index], float((a - b).abs().max()))
    return worst


@pytest.fixture(scope="module")
def transformers(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Features:
    return computed(tiny, tmp_path_factory.mktemp("transformers"), AUXILIARY_LAYERS)


def test_both_engines_compute_the_same_states_in_every_layer(made: Extraction, transformers: Features) -> None:
    found = differences(made.features(), transformers)
    assert max(found) < TOLERANCE, f"layers {AUXILIARY_LAYERS} and the last differ by {found}"


def test_both_engines_say_the_same_tokens_with_the_same_normaliser(made: Extraction, transformers: Features) -> None:
    for mine, other in zip(every(made.features()), every(transformers), strict=True):
        assert isinstance(mine.teaching, LastState)
        assert isinstance(other.teaching, LastState)
        assert torch.equal(mine.teaching.greedy, other.teaching.greedy)
        torch.testing.assert_close(mine.teaching.log_normaliser, other.teaching.log_normaliser, rtol=0, atol=TOLERANCE)


def test_a_layer_that_is_off_by_one_does_not_pass_for_the_same(made: Extraction, tiny: Path, tmp_path: Path) -> None:
    shifted = differences(made.features(), computed(tiny, tmp_path, [layer - 1 for layer in AUXILIARY_LAYERS]))
    assert min(shifted[:-1]) > 100 * TOLERANCE, f"shifted layers differ by {shifted} only"
    assert shifted[-1] < TOLERANCE


def test_there_is_one_row_a_token_though_conversations_share_beginnings_and_are_cut_into_chunks(
    made: Extraction,
) -> None:
    result = Report.parse((made.folder / "message").read_text())
    assert result is not None
    samples = list(every(made.features()))
    assert any(len(sample) > 64 for sample in samples)
    beginnings = {tuple(sample.input_ids[:4].tolist()) for sample in samples}
    assert len(beginnings) < len(samples)
    assert ExtractResult.model_validate(result.result).tokens == sum(len(sample) for sample in samples)
    manifest = made.features().manifest
    assert manifest.provenance["captureIds"] == "[0, 1, 2]"
    assert manifest.provenance["capture"] == "compared"
    assert manifest.provenance["captureConvention"] == "output"


def test_the_capture_points_are_names_in_the_sglang_that_runs_here(tmp_path: Path) -> None:
    points = asdict(capture_points(Version(0, 5, 21)))
    image = recipe()
    found = subprocess.run(
        [
            environment.ensure() / "bin" / "python3",
            "-c",
            "import pkgutil, sys\nfor name in sys.argv[1:]: assert callable(pkgutil.resolve_name(name)), name",
            *points.values(),
        ],
        env=os.environ | image.env,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert points
    assert found.returncode == 0, found.stderr


def test_a_target_that_two_ranks_share_has_the_same_states_written_by_one(
    made: Extraction, tiny: Path, tmp_path: Path
) -> None:
    """Over gloo, for the libraries of NCCL that torch is given here are stubs. Logits come piece by piece, and SGLang's gather of
    them must not be one that counts on a forward between two.
    """
    found = extraction(tmp_path, tiny)
    watched = (
        TAKES,
        WRITES,
        ("sglang.srt.distributed.device_communicators.triton_symm_mem_ag", "MultimemAllGatherer.__call__"),
    )
    site = injected(tmp_path / "site", {module: marking(tmp_path, method) for module, method in watched})
    cores = sorted(os.sched_getaffinity(0))
    result = found.run(
        found.config(tensor_parallel_size=2),
        SGLANG_CPU_OMP_THREADS_BIND=f"{cores[0]}|{cores[-1]}",
        SGLANG_NCCL_SO_PATH="none",
        PYTHONPATH=python_path(site),
    ).result
    assert result.conversations == CONVERSATIONS
    assert found.features().manifest.provenance["tensorParallelSize"] == "2"
    assert max(differences(found.features(), made.features())) < TOLERANCE
    took, wrote, gathered_at_once = (len(list(tmp_path.glob(f"{method}-*"))) for _, method in watched)
    assert (took, wrote, gathered_at_once) == (2, 1, 0)


def test_flags_that_sglang_does_not_know_are_named(tiny: Path, tmp_path: Path) -> None:
    found = extraction(tmp_path, tiny)
    ending = found.run(found.config(arguments=[*SERVE_ARGUMENTS, "--no-such-flag"]))
    assert ending.code == ExitCode.BAD_CONFIGURATION
    assert ending.report.reason == Reason.INVALID_CONFIGURATION
    assert "--no-such-flag" in ending.report.message


def test_another_version_than_the_object_says_is_refused(tiny: Path, tmp_path: Path) -> None:
    found = extraction(tmp_path, tiny)
    ending = found.run(found.config(sglang_version="0.5.19"))
    assert (ending.code, ending.report.reason) == (ExitCode.BAD_CONFIGURATION, Reason.VERSION_UNSUPPORTED)
    assert "0.5.21" in ending.report.message


def test_a_prefix_cache_that_comes_back_is_features_misaligned(tiny: Path, tmp_path: Path) -> None:
    """By a site customisation that takes our flag away, to inject the fault."""
    found = extraction(tmp_path, tiny)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import eagle3_api.sglang as rules\n"
        "rules.CAPTURE_FLAGS = tuple(f for f in rules.CAPTURE_FLAGS if f != '--disable-radix-cache')\n"
    )
    arguments = [*SERVE_ARGUMENTS, "--chunked-prefill-size", "256"]
    ending = found.run(
        found.config(arguments=arguments),
        PYTHONPATH=f"{tmp_path / 'site'}:{ROOT / 'crds'}:{ROOT / 'images' / 'draft'}",
    )
    assert (ending.code, ending.report.reason) == (ExitCode.REFUSED, Reason.FEATURES_MISALIGNED)
    assert "prefix cache" in ending.report.message


def scheduler_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """The processes of SGLang's scheduler below the container's first one."""
    found, waiting = [], [process.pid]
    while waiting:
        pid = waiting.pop()
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            waiting += [int(child) for child in task.read_text().split()]
        if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.append(pid)
    return found


def test_an_engine_that_is_killed_ends_resumably_and_the_next_run_goes_on(
    made: Extraction, tiny: Path, tmp_path: Path
) -> None:
    """The next run keeps the most likely tokens alone: those that the states of the other extraction mean."""
    found = extraction(tmp_path, tiny)
    config = found.config(teacher="TopK")
    process = found.start(config)
    schedulers = wait_for("a scheduler process", 120, lambda: scheduler_of(process))
    os.kill(schedulers[0], signal.SIGKILL)
    ending = found.end(process)
    assert ending.code == ExitCode.ENGINE_CRASHED
    assert found.run(config).result.conversations == CONVERSATIONS
    for mine, other in zip(every(found.features()), every(made.features()), strict=True):
        assert isinstance(mine.teaching, TopK)
        assert isinstance(other.teaching, LastState)
        assert torch.equal(mine.teaching.greedy, other.teaching.greedy)
        assert bool((mine.teaching.top_log_probabilities.float().exp().sum(-1) <= 1.001).all())


def test_sigterm_ends_it_resumably_with_the_engine_still_whole(tiny: Path, tmp_path: Path) -> None:
    found = extraction(tmp_path, tiny)
    data = DataConfig(conversations=str(found.data), max_length=256, holdout=0.1)
    config = found.config(data=data, arguments=[*SERVE_ARGUMENTS, "--chunked-prefill-size", "64"])
    process = found.start(config)
    log = found.folder / "log"
    wait_for("a stored conversation", 120, lambda: " conversations" in log.read_text(errors="replace"))
    process.send_signal(signal.SIGTERM)
    ending = found.end(process)
    assert (ending.code, ending.report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert "last words" not in ending.report.message


def test_sigterm_while_the_target_is_loaded_ends_it_resumably_at_once(tiny: Path, tmp_path: Path) -> None:
    """The process that loads is halted, as one is that reads for half an hour."""
    found = extraction(tmp_path, tiny)
    process = found.start(found.config())
    scheduler, *_ = wait_for("a scheduler process", 120, lambda: scheduler_of(process))
    os.kill(scheduler, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    ending = found.end(process)
    assert (ending.code, ending.report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)


def test_regenerated_answers_are_the_servers_own_token_by_token(tiny: Path, tmp_path: Path) -> None:
    """What SGLang answers inside the extraction: the same as its server, and the same as transformers.

    In parts so small that it answers to the next ones while the states of one are taken, and so many that the engine's window
    must be given back with each.
    """
    found = extraction(tmp_path, tiny)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "from eagle3_draft.extract import stage\nstage.run.__kwdefaults__['part_conversations'] = 1\n"
    )
    regenerate = Regenerate(max_tokens=24)
    data = DataConfig(conversations=str(found.data), max_length=256, holdout=0.2, max_samples=18, regenerate=regenerate)
    config = found.config(data=data, end_tokens=end_tokens(found.target))
    result = found.run(config, PYTHONPATH=f"{tmp_path / 'site'}:{ROOT / 'crds'}:{ROOT / 'images' / 'draft'}").result
    assert result.parts == 18
    assert result.answers is not None
    assert result.cut_answers is not None
    assert 0 < result.cut_answers < result.answers
    lines = {
        line["conversation"]: line["answers"]
        for path in sorted((found.folder / "features").glob("part-*/answers.jsonl"))
        for line in map(json.loads, path.open())
    }
    with sglang(found.target, tmp_path / "server.log") as url:
        for conversation in Conversations.of(data):
            said = []
            questions = iter(conversation.messages)
            for answer in lines[conversation.digest.hex()]:
                said.append(next(questions))
                reply = chat(url, said, regenerate.max_tokens)
                assert reply["message"]["content"] == answer["text"]
                assert (reply["finish_reason"] == "stop") == answer["ended"]
                said.append({"role": "assistant", "content": answer["text"]})
    checked = extraction(tmp_path / "checked", tiny)
    checked.folder.mkdir()
    run(config.model_copy(update={"folder": str(checked.folder / "features")}), load=by_transformers)
    assert max(differences(found.features(), checked.features())) < TOLERANCE


@pytest.mark.long
def test_sigterm_while_it_answers_ends_it_resumably_and_what_was_answered_stays(tiny: Path, tmp_path: Path) -> None:
    found = extraction(tmp_path, tiny)
    data = DataConfig(
        conversations=str(found.data), max_length=256, holdout=0.2, max_samples=64, regenerate=Regenerate()
    )
    config = found.config(data=data, end_tokens=end_tokens(found.target))
    process = found.start(config)
    working = found.folder / "features/part-00000-of-00001/.answers.jsonl"
    wait_for("an answer", 120, lambda: working.is_file() and working.read_bytes().count(b"conversation") > 4)
    process.send_signal(signal.SIGTERM)
    ending = found.end(process)
    assert (ending.code, ending.report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert "last words" not in ending.report.message
    before = working.read_bytes().strip().splitlines()
    assert 4 < len(before) < 64
    assert found.run(config).result.conversations == 64
    after = (working.with_name("answers.jsonl")).read_bytes().splitlines()
    assert set(before) <= set(after)


def chat(url: str, messages: Sequence[dict[str, str]], max_tokens: int) -> dict[str, Any]:
    """The server's greedy answer, as a client gets it."""
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": max_tokens}
    request = urllib.request.Request(  # noqa: S310 - our own server's
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        choice: dict[str, Any] = json.load(answer)["choices"][0]
    return choice
