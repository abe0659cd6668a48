"""The target run by SGLang, in this pod, as it will be served: the same code, the same flags, the same layer ids.

All of SGLang's ``Engine`` lives in one thread of ours, where its loop runs until the end. In the main thread it would replace
the handler of SIGTERM, by which the stage learns that its pod is to end. The engine always has a window of conversations
before it, whose states the stage takes in order, and answers in dialogues all the while.
"""

import asyncio
import contextlib
import errno
import functools
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic

import torch
from sglang.srt.entrypoints.engine import Engine as ServerEngine
from sglang.srt.server_args import prepare_server_args
from sglang.version import __version__
from torch import Tensor

from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token, startup_seconds
from eagle3_api.jobs import ExitCode, ExtractConfig
from eagle3_api.sglang import (
    Version,
    capture_arguments,
    capture_known,
    capture_points,
    convention,
    forward_arguments,
)
from eagle3_draft.data.dialogue import Answer
from eagle3_draft.errors import StageError
from eagle3_draft.extract.engine import AskerT, Sampling, States
from eagle3_draft.extract.handover import HandoverReader, folder_on_disk
from eagle3_draft.extract.sglang_capture import (
    FAILURE,
    Plan,
    request_id,
    reserve_failure,
    run_detokenizer,
    run_scheduler,
)
from eagle3_draft.features import teaching_of
from eagle3_draft.inspect.target import target_facts
from eagle3_draft.runtime import pod
from eagle3_draft.runtime.progress import ProgressReporter

#: Of one batch: bytes of its states, and conversations. A longer conversation is a batch of its own.
BATCH_BYTES, BATCH_CONVERSATIONS = 64 * 1024 * 1024, 64

#: Batches that SGLang computes, or has computed and nobody has taken: some forwards of the largest target.
WINDOW_BATCHES = 16

#: Of the shared memory that states pass through: those of the window, those that are written meanwhile, and what else is in the
#: same forwards.
REGIONS_BYTES = 3 * WINDOW_BATCHES * BATCH_BYTES

#: Of a token's id as it is handed over, and padding.
ID_BYTES = 16

#: In which something of the rows of an answered conversation must be handed over, and between two looks for them.
HANDOVER_SECONDS, HANDOVER_LOOK_SECONDS = 60.0, 0.001

#: Between two looks for what failed in SGLang, while it computes.
FAILURE_LOOK_SECONDS = 1.0

#: Between two turns of Python's threads.
SWITCH_SECONDS = 0.0001

#: Tokens on which all is tried before the first conversation: kernels are compiled, and what SGLang cannot do is said.
TRIED_TOKENS = 16

#: Between two words of a start that takes long, and between two looks at whether it is to end.
WORD_SECONDS, LOOK_SECONDS = 10.0, 0.5

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


class SGLangEngine:
    """Runs a target with SGLang.

    Args:
        config: of the stage.
        check: called now and then while SGLang starts; what it raises ends SGLang.

    Raises:
        StageError: another SGLang than the object says (VersionUnsupported); flags that SGLang refuses
            (InvalidConfiguration); a target that it cannot capture (TargetUnsupported).
    """

    def __init__(self, config: ExtractConfig, check: Callable[[], None] = lambda: None) -> None:
        version = _version(config)
        target = target_facts(Path(config.target))
        ids = target.capture_ids(config.layers, version)
        self.hidden_size = target.hidden_size
        self.vocabulary_size = target.vocabulary_size
        self._token_bytes = bytes_per_token(target.hidden_size, len(config.layers), config.dtype, config.teacher)
        arguments = server_arguments(config, self._token_bytes)
        self._folder = folder = _handover(Path(config.folder), config.data.max_length * self._token_bytes)
        reserve_failure(folder)
        self._handover = HandoverReader(folder)
        self._asked = 0
        self._window, self._turn = asyncio.Semaphore(WINDOW_BATCHES), asyncio.Lock()
        self._serving = ThreadPoolExecutor(1, thread_name_prefix="sglang")
        # While the target is computed elsewhere, this process takes many small steps, whose threads would wait for cores that
        # the engine's processes spin on: tens of milliseconds a conversation on a machine with a GPU
        self._torch_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Its threads hash and write pieces, each some microseconds of Python and then none for long: with the interpreter's
        # 5 ms between two turns, and still with half of one, they would wait for their turn longer than for the disk
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        said = settled(arguments)
        region_bytes = max(BATCH_BYTES, _largest_forward(said) * (self._token_bytes + ID_BYTES))
        plan = Plan(
            capture_points(version),
            tuple(ids),
            config.dtype,
            config.teacher,
            folder,
            regions=REGIONS_BYTES // region_bytes if folder.is_relative_to(SHARED_MEMORY) else 0,
            region_bytes=region_bytes,
        )
        try:
            starting = self._serving.submit(_engine, plan, arguments)
            self._engine = _awaited(starting, startup_seconds(target.weight_bytes), check)
            self._serving.submit(self._engine.loop.run_forever)
            self._raise_failure()
            for _ in self.states([[0] * TRIED_TOKENS]):
                pass
        except BaseException:
            self.close()
            raise
        self.provenance = {
            "engine": f"sglang {__version__}",
            "capture": capture_known(target.architecture, version),
            "captureIds": json.dumps(ids),
            "captureConvention": convention(target.architecture, version),
            "torch": str(torch.__version__),
            "device": str(said["device"]),
            "dtype": str(said["dtype"]),
            "tensorParallelSize": str(config.tensor_parallel_size),
            "forwardTokens": str(said["chunked_prefill_size"]),
        }

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        """The states over each conversation. SGLang has as many at a time as the window holds.

        Raises:
            StageError: rows are missing or of other tokens (FeaturesMisaligned).
            OSError: the states cannot be handed over: no space.
        """
        batches = list(self._batches(conversations))
        computing = asyncio.run_coroutine_threadsafe(self._compute_all(batches), self._engine.loop)
        computing.add_done_callback(functools.partial(_let_nobody_wait, batches))
        return self._taken(batches, computing)

    def converse(self, sampling: Sampling) -> "_SideBySide[AskerT]":
        """All dialogues side by side: SGLang's queue decides how many are answered at a time."""
        return _SideBySide(self._engine, sampling)

    def close(self) -> None:
        """End SGLang's processes. In the process's main thread."""
        engine = getattr(self, "_engine", None)
        if engine is not None:
            # Ranks are killed one after another. One that misses another meanwhile would tell us so, and end this process
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)
            engine.loop.call_soon_threadsafe(engine.loop.stop)
            self._serving.submit(engine.shutdown).result()
        self._serving.shutdown()
        torch.set_num_threads(self._torch_threads)
        sys.setswitchinterval(self._switch_seconds)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _batches(self, conversations: Sequence[Sequence[int]]) -> Iterator["_Batch"]:
        """Conversations in order, as many at a time as the bounds allow."""
        most = BATCH_BYTES // self._token_bytes
        batch = _Batch(self._asked)
        for ids in conversations:
            if batch.every and (batch.tokens + len(ids) > most or len(batch.every) == BATCH_CONVERSATIONS):
                yield batch
                batch = _Batch(self._asked)
            batch.every.append(ids)
            batch.tokens += len(ids)
            batch.room = min(WINDOW_BATCHES, -(-batch.tokens // most))
            self._asked += 1
        if batch.every:
            yield batch

    async def _compute_all(self, batches: "Sequence[_Batch]") -> None:
        # The turn ends with the last that enters: what was asked for first is taken first, and must be in the window first
        async with asyncio.TaskGroup() as computing, self._turn:
            for batch in batches:
                for _ in range(batch.room):
                    await self._window.acquire()
                computing.create_task(self._compute(batch))

    async def _compute(self, batch: "_Batch") -> None:
        try:
            answers = await self._engine.async_generate(
                input_ids=[list(ids) for ids in batch.every],
                # No token: SGLang then neither samples nor decodes
                sampling_params={"max_new_tokens": 0, "temperature": 0.0},
                rid=[request_id(batch.first + at) for at in range(len(batch.every))],
                priority=1,  # before all that waits to be answered in a dialogue
            )
        except Exception as error:
            batch.answers.set_exception(error)
        else:
            batch.answers.set_result(answers)

    def _taken(self, batches: "Sequence[_Batch]", computing: "Future[None]") -> Iterator[States]:
        try:
            for batch in batches:
                # Who has failed may keep the others from answering
                while not wait([batch.answers], FAILURE_LOOK_SECONDS).done:
                    self._raise_failure()
                try:
                    answers = batch.answers.result()
                except ValueError as error:
                    raise _misaligned(f"SGLang refuses a conversation: {error}") from error
                except Exception as error:
                    raise _aborted(error) from error
                last = batch.first + len(batch.every) - 1
                for number, (ids, answer) in enumerate(zip(batch.every, answers, strict=True), batch.first):
                    states = _states(ids, self._rows(number, ids, answer))
                    if number == last:  # and not once another one is asked for, which need not be
                        self._engine.loop.call_soon_threadsafe(self._leave, batch)
                    yield states
        finally:
            computing.cancel()

    def _leave(self, batch: "_Batch") -> None:
        for _ in range(batch.room):
            self._window.release()

    def _rows(self, number: int, ids: Sequence[int], answer: dict[str, Any]) -> dict[str, Tensor]:
        """What was handed over of a conversation that is answered."""
        before, give_up = None, time.monotonic() + HANDOVER_SECONDS
        while (rows := self._handover.take(number, len(ids))) is None:
            self._raise_failure()
            came, under_way = self._handover.look(), self._handover.under_way()
            if came or under_way != before:  # what lies on a disk may take a while
                before, give_up = under_way, time.monotonic() + HANDOVER_SECONDS
            elif time.monotonic() > give_up:
                if under_way is not None:
                    raise _stuck(self._folder)
                why = answer["meta_info"].get("finish_reason")
                raise _misaligned(f"SGLang gave no states of a conversation of {len(ids)} tokens ({why})")
            if not came:
                time.sleep(HANDOVER_LOOK_SECONDS)
        return rows

    def _raise_failure(self) -> None:
        try:
            note = json.loads((self._folder / FAILURE).read_bytes())
        except FileNotFoundError:
            return
        if note["errno"] == errno.ENOSPC and self._folder.is_relative_to(SHARED_MEMORY):
            raise StageError(
                ExitCode.DOES_NOT_FIT,
                Reason.OUT_OF_MEMORY,
                f"{SHARED_MEMORY} is full while states are handed over: raise extract.placement.shmSize, and extract.placement.memory by as much",
            )
        if note["errno"] is not None:
            raise OSError(note["errno"], note["message"])
        if note["reason"] is None:
            raise StageError(ExitCode.INTERNAL_ERROR, Reason.INTERNAL_ERROR, f"in SGLang's process: {note['message']}")
        raise StageError(ExitCode.REFUSED, Reason(note["reason"]), note["message"])


@dataclass
class _Batch:
    """Conversations whose states are wanted, the room that they take in the window, and SGLang's answers to them."""

    first: int
    every: list[Sequence[int]] = field(default_factory=list)
    tokens: int = 0
    room: int = 0
    answers: "Future[list[dict[str, Any]]]" = field(default_factory=Future)


class _CapturingEngine(ServerEngine):  # type: ignore[misc]
    """SGLang's engine, whose processes begin with ours, and whose loop runs on in the thread that made it."""

    def __init__(self, plan: Plan, arguments: Any) -> None:
        self.run_scheduler_process_func = functools.partial(run_scheduler, plan)
        self.run_detokenizer_process_func = run_detokenizer
        super().__init__(server_args=arguments)


class _SideBySide(Generic[AskerT]):
    """All dialogues at once."""

    def __init__(self, engine: ServerEngine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._led: dict[Future[None], AskerT] = {}
        self._ended: SimpleQueue[Future[None]] = SimpleQueue()

    def ask(self, dialogues: Sequence[AskerT]) -> None:
        for dialogue in dialogues:
            leading = asyncio.run_coroutine_threadsafe(self._lead(dialogue), self._engine.loop)
            self._led[leading] = dialogue
            leading.add_done_callback(self._ended.put)

    def finished(self, seconds: float) -> list[AskerT]:
        """Raises:
        StageError: SGLang refuses to answer in one (JobFailed); told when those before it are taken.
        """
        found: list[AskerT] = []
        while True:
            try:
                ended = self._ended.get(timeout=0 if found else seconds)
            except Empty:
                return found
            if (error := ended.exception()) is None:
                found.append(self._led.pop(ended))
            elif found:  # what was finished before it is not to be lost
                self._ended.put(ended)
                return found
            else:
                raise error if isinstance(error, StageError) else _aborted(error)

    def close(self) -> None:
        for leading in self._led:
            leading.cancel()

    async def _lead(self, dialogue: AskerT) -> None:
        while dialogue.prompt is not None:
            answer = await self._engine.async_generate(
                input_ids=dialogue.prompt,
                sampling_params={
                    **self._sampling.of_target,
                    "max_new_tokens": dialogue.room,
                    "temperature": self._sampling.temperature,
                    "top_p": self._sampling.top_p,
                    "stop_token_ids": list(self._sampling.end_tokens),
                    "sampling_seed": dialogue.seed(self._sampling.seed),
                },
                priority=0,
            )
            dialogue.take(_answer(answer, len(dialogue.prompt)))


def _engine(plan: Plan, arguments: Any) -> ServerEngine:
    try:
        return _CapturingEngine(plan, arguments)
    except RuntimeError as error:
        raise StageError(
            ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED, f"SGLang does not start: {error}; the pod's log says why"
        ) from error


def _states(ids: Sequence[int], rows: dict[str, Tensor]) -> States:
    if rows["input_ids"].tolist() != list(ids):
        raise _misaligned(f"SGLang's rows of a conversation of {len(ids)} tokens are of other tokens")
    return States(rows["hidden"], teaching_of(rows), rows.get("hidden_scale"))


def _awaited(starting: "Future[ServerEngine]", budget: float, check: Callable[[], None]) -> ServerEngine:
    """The engine once it has started, with a word now and then: a slow start is no stall, until its budget is spent."""
    progress, began = ProgressReporter(1, ""), time.monotonic()
    next_word = began + WORD_SECONDS
    while not wait([starting], LOOK_SECONDS).done:
        try:
            check()
        except BaseException:
            _give_up(starting)
            raise
        now = time.monotonic()
        if next_word <= now < began + budget:
            progress.update(0, "SGLang loads the target")
            next_word = now + WORD_SECONDS
    return starting.result()


def _give_up(starting: "Future[ServerEngine]") -> None:
    """End the processes of an engine that starts, also those that it makes meanwhile, until it has failed for it.

    They end at no signal but this, and the thread that makes the engine would wait until they have read the target.
    """
    while not wait([starting], LOOK_SECONDS).done:
        for process in multiprocessing.active_children():
            process.kill()


def _answer(answer: dict[str, Any], prompt_tokens: int) -> Answer:
    finish = answer["meta_info"]["finish_reason"]
    if finish["type"] not in ("stop", "length"):
        raise StageError(
            ExitCode.ENGINE_CRASHED,
            Reason.JOB_FAILED,
            f"SGLang does not answer a prompt of {prompt_tokens} tokens: {finish}",
        )
    return Answer(answer["output_ids"], ended=finish["type"] == "stop")


def _version(config: ExtractConfig) -> Version:
    found, said = Version.parse(__version__), Version.parse(config.sglang_version)
    if (found.major, found.minor, found.patch) != (said.major, said.minor, said.patch):
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.VERSION_UNSUPPORTED,
            f"the image has SGLang {__version__}, but the object says {said}, and versions name layers differently. Set "
            "sglangVersion to the version in the image",
        )
    return found


def server_arguments(config: ExtractConfig, token_bytes: int) -> Any:
    """The engine's settings, made of command line words by SGLang's own parser, as a server makes them.

    Args:
        config: of the stage.
        token_bytes: of one token's features.

    Raises:
        StageError: SGLang does not take them (InvalidConfiguration).
    """
    words = ["--model-path", config.target, "--tp-size", str(config.tensor_parallel_size), "--log-level", "warning"]
    if config.trust_remote_code:
        words.append("--trust-remote-code")
    words += capture_arguments(config.arguments, answers=config.data.regenerate is not None)
    own = _parsed(words)
    said = settled(own)
    if said["device"] == "cpu":  # which is busy computing, not launching
        return own
    larger = forward_arguments(config.arguments, said["chunked_prefill_size"] or 0, token_bytes)
    return _parsed([*words, *larger]) if larger else own


def settled(arguments: Any) -> Mapping[str, Any]:
    """The engine's settings by name, with what SGLang chooses where nobody does."""
    found: Mapping[str, Any] = arguments.resolved_dict() if hasattr(arguments, "resolved_dict") else vars(arguments)
    return found


def _parsed(words: list[str]) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = prepare_server_args(words)
            if hasattr(arguments, "resolve_once"):  # since 0.5.21 these are the words alone, until somebody asks
                arguments.resolve_once()
            return arguments
    except (SystemExit, ValueError, AssertionError) as error:
        last = (said.getvalue().strip().splitlines() or [str(error)])[-1]
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"serve.arguments: SGLang {__version__} does not accept them for the extraction: {last}",
        ) from error


def _largest_forward(arguments: Mapping[str, Any]) -> int:
    """Tokens of a forward, at most; more are in none but one whose only conversation is longer."""
    chunk: int = arguments["chunked_prefill_size"] or 0
    most: int = arguments["max_prefill_tokens"]
    return chunk if chunk > 0 else most


def _handover(folder: Path, longest: int) -> Path:
    """Where states are handed over: in memory where there is room for them, or else beside the artifact."""
    needed = REGIONS_BYTES + max(WINDOW_BATCHES * BATCH_BYTES, longest)
    if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= needed:
        return Path(tempfile.mkdtemp(prefix="eagle3-", dir=SHARED_MEMORY))
    return folder_on_disk(folder, pod.index())


def _let_nobody_wait(batches: "Sequence[_Batch]", done: "Future[None]") -> None:
    """The end of what asks SGLang, before its time: whoever waits for answers hears of it."""
    for batch in batches:
        if not batch.answers.done():
            error = None if done.cancelled() else done.exception()
            batch.answers.set_exception(error or RuntimeError("nobody asks SGLang any more"))


def _aborted(error: BaseException) -> StageError:
    return StageError(ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED, f"SGLang gave up a request: {error!r}")


def _stuck(folder: Path) -> StageError:
    return StageError(
        ExitCode.ENGINE_CRASHED,
        Reason.JOB_FAILED,
        f"{folder} has taken none of the states that SGLang hands over there for {HANDOVER_SECONDS:.0f} s: its volume hangs. The "
        "next try continues from what was finished; with more shared memory (extract.placement.shmSize) the states bypass that volume",
    )


def _misaligned(what: str) -> StageError:
    return StageError(ExitCode.REFUSED, Reason.FEATURES_MISALIGNED, what)
