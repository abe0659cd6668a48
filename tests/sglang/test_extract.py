"""What SGLang hands over is what the target computes: compared with transformers, layer by layer, on the tiny target."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import environment
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_api.artifacts import MANIFEST
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, ExtractResult, Report
from eagle3_draft.extract import run
from eagle3_draft.extract.non_finite import WHY
from eagle3_draft.features import Features, LastState, TopK
from served.extraction import (
    OF_TWO_RANKS,
    TOLERANCE,
    Ending,
    Extraction,
    by_transformers,
    conversations,
    differences,
    every,
    python_path,
)
from served.injection import TAKES, WRITES, injected, marking
from served.volume import NO_MOUNTS, small_if_allowed
from stages.supervised import command_line, descendants
from testcluster.wait import wait_for
from tiny import grammar
from tiny.flags import AUXILIARY_LAYERS, SERVE_ARGUMENTS
from tiny.make import cached
from tiny.tokenizer import vocabulary

pytestmark = pytest.mark.timeout(600)

#: And one more, over which the target's states are not finite.
CONVERSATIONS = 100

#: A word that no other conversation has, whose embedding is broken.
BROKEN = "unused0"

#: So small that most conversations are computed in several.
CHUNKED = ("--chunked-prefill-size", "64")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Extraction:
    """The tiny target with a row of its weights that is not finite, and the one conversation that meets it."""
    folder = tmp_path_factory.mktemp("broken")
    target = folder / "target"
    shutil.copytree(cached(environment.ensure() / "bin" / "python3") / "models" / "tiny-target", target)
    weights = load_file(target / "model.safetensors")
    weights["model.embed_tokens.weight"][vocabulary()[BROKEN]] = float("nan")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    meets_it = [{"role": "user", "content": f"count from {BROKEN} in twos"}, {"role": "assistant", "content": "2 4 6"}]
    said = [*grammar.conversations(seed=31, count=CONVERSATIONS), meets_it]
    return Extraction(folder, target, conversations(folder / "data.jsonl", said))


@pytest.fixture
def another(broken: Extraction, tmp_path: Path) -> Extraction:
    """The same extraction in a folder of its own."""
    return Extraction(tmp_path, broken.target, broken.data)


@pytest.fixture(scope="module")
def made(broken: Extraction) -> Extraction:
    """By SGLang."""
    result = broken.run(broken.config(arguments=[*SERVE_ARGUMENTS, *CHUNKED])).result
    assert result.engine == "sglang 0.5.21"
    return broken


def computed(broken: Extraction, folder: Path, layers: Sequence[int]) -> Features:
    """The same conversations by transformers."""
    checked = Extraction(folder, broken.target, broken.data)
    run(checked.config(layers=list(layers)), load=by_transformers)
    return checked.features()


@pytest.fixture(scope="module")
def transformers(broken: Extraction, tmp_path_factory: pytest.TempPathFactory) -> Features:
    return computed(broken, tmp_path_factory.mktemp("transformers"), AUXILIARY_LAYERS)


def test_both_engines_compute_the_same_states_in_every_layer(made: Extraction, transformers: Features) -> None:
    found = differences(made.features(), transformers)
    assert max(found) < TOLERANCE, f"layers {AUXILIARY_LAYERS} and the last differ by {found}"


def test_both_engines_say_the_same_tokens_with_the_same_normaliser(made: Extraction, transformers: Features) -> None:
    for mine, other in zip(every(made.features()), every(transformers), strict=True):
        assert isinstance(mine.teaching, LastState)
        assert isinstance(other.teaching, LastState)
        assert torch.equal(mine.teaching.greedy, other.teaching.greedy)
        torch.testing.assert_close(mine.teaching.log_normaliser, other.teaching.log_normaliser, rtol=0, atol=TOLERANCE)


def test_a_layer_that_is_off_by_one_does_not_pass_for_the_same(made: Extraction, tmp_path: Path) -> None:
    shifted = differences(made.features(), computed(made, tmp_path, [layer - 1 for layer in AUXILIARY_LAYERS]))
    assert min(shifted[:-1]) > 100 * TOLERANCE, f"shifted layers differ by {shifted} only"
    assert shifted[-1] < TOLERANCE


def test_a_row_that_is_not_finite_costs_its_own_conversation_and_no_other(made: Extraction) -> None:
    """The others were computed beside it, in the same forwards; that they are whole is what the comparison above says."""
    result = said(made)
    assert (result.conversations, result.dropped) == (CONVERSATIONS, {WHY: 1})
    word = vocabulary()[BROKEN]
    assert not any(word in sample.input_ids.tolist() for sample in every(made.features()))


def test_there_is_one_row_a_token_though_conversations_share_beginnings_and_are_cut_into_chunks(
    made: Extraction,
) -> None:
    samples = list(every(made.features()))
    assert any(len(sample) > 64 for sample in samples)
    beginnings = {tuple(sample.input_ids[:4].tolist()) for sample in samples}
    assert len(beginnings) < len(samples)
    assert said(made).tokens == sum(len(sample) for sample in samples)
    manifest = made.features().manifest
    assert manifest.provenance["captureIds"] == "[0, 1, 2]"
    assert manifest.provenance["capture"] == "compared"
    assert manifest.provenance["captureConvention"] == "output"


def said(by: Extraction) -> ExtractResult:
    """The result that a container left."""
    report = Report.parse((by.folder / "message").read_text())
    assert report is not None
    return ExtractResult.model_validate(report.result)


#: Each process that SGLang kills is killed a while before the next, as on a busy machine.
SLOW_END = """
def slowly(process, kill=psutil.Process.kill):
    kill(process)
    time.sleep(1.5)
psutil.Process.kill = slowly
"""


def test_a_target_that_two_ranks_share_has_the_same_states_written_by_one_whichever_is_ended_first(
    made: Extraction, another: Extraction
) -> None:
    """Logits come piece by piece, and SGLang's gather of them must not be one that counts on a forward between two."""
    gather = ("sglang.srt.distributed.device_communicators.triton_symm_mem_ag", "MultimemAllGatherer.__call__")
    watched = (TAKES, WRITES, gather)
    marks = {module: marking(another.folder, method) for module, method in watched}
    site = injected(another.folder / "site", marks | {"sglang.srt.utils.common": SLOW_END})
    result = another.run(
        another.config(tensor_parallel_size=2),
        **OF_TWO_RANKS,
        PYTHONPATH=python_path(site),
    ).result
    assert result.conversations == CONVERSATIONS
    assert another.features().manifest.provenance["tensorParallelSize"] == "2"
    assert max(differences(another.features(), made.features())) < TOLERANCE
    took, wrote, gathered_at_once = (len(list(another.folder.glob(f"{method}-*"))) for _, method in watched)
    assert (took, wrote, gathered_at_once) == (2, 1, 0)


def scheduler_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """The processes of SGLang's scheduler below the container's first one."""
    return [pid for pid in descendants(process.pid) if b"scheduler" in command_line(pid)]


#: Whichever class's method this is for: once so many parts are stored, the statement runs before each call.
FAULT = """
def faulty(self, *args, go_on={method}, **kwargs):
    import pathlib, time
    if len([*pathlib.Path({features!r}).glob("part-*/manifest.json")]) >= {parts}:
        {statement}
    return go_on(self, *args, **kwargs)
{method} = faulty
"""

#: In SGLang's own code, not in ours.
SCHEDULER = ("sglang.srt.managers.scheduler", "Scheduler.run_batch")


def filling(file: Path) -> str:
    """A statement that takes what is left of a volume."""
    return f"__import__('subprocess').run(['dd', 'if=/dev/zero', 'of={file}', 'bs=4k', 'oflag=append', 'conv=notrunc'])"


class InParts:
    """An extraction in parts of ten conversations, whose runs are ended by faults, each after one more part than before."""

    def __init__(self, extraction: Extraction) -> None:
        self.extraction = extraction
        self.config = extraction.config(dtype="fp8", teacher="TopK", arguments=[*SERVE_ARGUMENTS, *CHUNKED])
        self._runs = 0

    def start(self, where: tuple[str, str] = TAKES, statement: str = "pass") -> "subprocess.Popen[bytes]":
        """A run with a fault, that comes when it has stored a part."""
        self._runs += 1
        module, method = where
        fault = FAULT.format(
            method=method, features=self.config.folder, parts=len(self.stored()) + 1, statement=statement
        )
        small = "run.__kwdefaults__['part_conversations'] = 10"
        site = injected(
            self.extraction.folder / f"site-{self._runs}", {module: fault, "eagle3_draft.extract.stage": small}
        )
        return self.extraction.start(self.config, PYTHONPATH=python_path(site))

    def end(self, process: "subprocess.Popen[bytes]") -> Ending:
        return self.extraction.end(process)

    def stored(self) -> list[Path]:
        """The manifests of the parts that there are."""
        return sorted(Path(self.config.folder).glob(f"part-*/{MANIFEST}"))

    def written(self) -> dict[Path, tuple[int, int]]:
        """The files of these parts, and by what one can tell whether they were written again."""
        files = (file for manifest in self.stored() for file in manifest.parent.iterdir())
        return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


@dataclass(frozen=True)
class Ended:
    """How the runs of one extraction ended, each on what those before it had stored: one process each, which is what takes long.

    Attributes:
        killed: its scheduler was.
        evicted: it got SIGTERM.
        full: its volume was; None where there is none that can be filled.
        hook: an exception in it.
        engine: an exception in SGLang.
        last: nothing came between.
        written: files of finished parts, after each of those that stored one.
        made: the extraction.
    """

    killed: Ending
    evicted: Ending
    full: Ending | None
    hook: Ending
    engine: Ending
    last: Ending
    written: Sequence[dict[Path, tuple[int, int]]]
    made: Extraction


@pytest.fixture(scope="module")
def ended(broken: Extraction, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("ended")
    extraction = Extraction(folder, broken.target, broken.data)
    with small_if_allowed(volume := folder / "features", mebibytes=8) as small:
        parts = InParts(extraction)
        process = parts.start()
        schedulers = wait_for("a scheduler process", 120, lambda: scheduler_of(process))
        os.kill(schedulers[0], signal.SIGKILL)
        killed = parts.end(process)

        process = parts.start(statement="time.sleep(0.3)")  # an engine that is slow
        wait_for("a stored part", 120, parts.stored)
        process.send_signal(signal.SIGTERM)
        evicted = parts.end(process)
        written = [parts.written()]

        full = None
        if small:
            full = parts.end(parts.start(statement=filling(filler := volume / "somebody-else")))
            filler.unlink(missing_ok=True)  # what it ended by is judged below
            written.append(parts.written())
        hook = parts.end(parts.start(TAKES, "raise ValueError('a fault in the hook')"))
        written.append(parts.written())
        engine = parts.end(parts.start(SCHEDULER, "raise RuntimeError('a fault in the engine')"))
        written.append(parts.written())
        last = parts.end(parts.start())
        written.append(parts.written())
        yield Ended(killed, evicted, full, hook, engine, last, written, extraction)


def test_however_a_run_ends_it_says_so(ended: Ended) -> None:
    """Killed, evicted, by an exception in the hook and by one in SGLang."""
    killed, evicted, hook, engine = ended.killed, ended.evicted, ended.hook, ended.engine
    assert (killed.code, killed.report.reason) == (ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED)
    assert (evicted.code, evicted.report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert "last words" not in evicted.report.message
    assert (hook.code, hook.report.reason) == (ExitCode.INTERNAL_ERROR, Reason.INTERNAL_ERROR)
    assert "in SGLang's process: ValueError: a fault in the hook" in hook.report.message
    assert (engine.code, engine.report.reason) == (ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED)
    assert "RuntimeError: a fault in the engine" in engine.report.message


def test_a_run_that_fills_its_volume_says_so(ended: Ended) -> None:
    if ended.full is None:
        pytest.skip(NO_MOUNTS)
    assert (ended.full.code, ended.full.report.reason) == (ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL)
    assert "the volume is full" in ended.full.report.message


def test_what_runs_stored_before_they_ended_is_never_made_again(ended: Ended, made: Extraction) -> None:
    """FP8 and the most likely tokens alone are kept: those that the states of the other extraction mean."""
    assert all(before.items() < after.items() for before, after in pairwise([{}, *ended.written]))
    result = ended.last.result
    assert (result.parts, result.conversations, result.dropped) == (11, CONVERSATIONS, {WHY: 1})
    assert_rounded(ended.made.features(), made.features())


def assert_rounded(ours: Features, exact: Features) -> None:
    """Each number is the nearest of FP8 that its row's scale allows; the most likely tokens are the same."""
    for mine, other in zip(every(ours), every(exact), strict=True):
        assert mine.hidden_scale is not None
        assert mine.hidden.dtype == torch.float8_e4m3fn
        scale = mine.hidden_scale.repeat_interleave(other.hidden.shape[-1] // mine.hidden_scale.shape[-1], -1)
        half_a_step = torch.maximum(other.hidden.abs() / 16, scale / 1024)
        assert bool(((mine.states(torch.float32) - other.hidden).abs() <= half_a_step + TOLERANCE).all())
        assert isinstance(mine.teaching, TopK)
        assert isinstance(other.teaching, LastState)
        assert torch.equal(mine.teaching.greedy, other.teaching.greedy)
        assert bool((mine.teaching.top_log_probabilities.float().exp().sum(-1) <= 1.001).all())


def test_sigterm_while_the_target_is_loaded_ends_it_resumably_at_once(another: Extraction) -> None:
    """The process that loads is halted, as one is that reads for half an hour."""
    process = another.start(another.config())
    scheduler, *_ = wait_for("a scheduler process", 120, lambda: scheduler_of(process))
    os.kill(scheduler, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    ending = another.end(process)
    assert (ending.code, ending.report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
