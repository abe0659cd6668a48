"""What runs inside SGLang's scheduler processes: it takes the states out of each forward and hands them over as files.

SGLang's sources are not touched. Its ``Engine`` lets a subclass choose what a scheduler process runs; there ``Capture``
registers two hooks with SGLang's own registry and goes on to SGLang's scheduler. The hooks call the same method with the
same layer ids as a server with a draft does, and see the same concatenation as that draft would.

The rank that has the rows hands them over, all of a forward together, and the forward goes on: they may be there a little after
the engine has answered. A hook that raised would have SGLang kill every process, the client with its exit code included.
So it notes what is wrong in ``FAILURE`` instead, takes nothing more, and the client raises it by name.
"""

import contextlib
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sglang.srt.distributed import tensor_model_parallel_all_gather
from sglang.srt.layers.aux_hidden_states import pack_aux_hidden_states
from sglang.srt.layers.logits_processor import LogitsMetadata
from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel

from eagle3_api.conditions import Reason
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.sglang import CapturePoints
from eagle3_draft.extract.handover import HandoverWriter, Rows
from eagle3_draft.extract.regions import Regions
from eagle3_draft.features import Teaching, as_stored, teach
from eagle3_draft.features.teaching import tensors

FAILURE = "failure.json"

#: Of the message in it, and the bytes that are kept for it.
FAILURE_CHARACTERS, FAILURE_BYTES = 1000, 16384

#: Of request ids: ``eagle3:<number of the conversation>``. Others are the engine's own (warm-up, health).
_MARK = "eagle3:"


@dataclass(frozen=True)
class Plan:
    """What is taken, and where it goes.

    Attributes:
        points: where to take it from.
        ids: the layers, in SGLang's notation.
        dtype: of the stored states, which are handed over as they are stored.
        teacher: in which form the target's answers are.
        folder: for what is handed over; emptied by whoever reads it.
        regions: of shared memory that the states pass through, at most.
        region_bytes: of each.
    """

    points: CapturePoints
    ids: tuple[int, ...]
    dtype: FeatureDtype
    teacher: TeacherKind
    folder: Path
    regions: int
    region_bytes: int


def reserve_failure(folder: Path) -> None:
    """Make room for word of a failure, before there is none. It is the client that calls this."""
    _reserved(folder).write_bytes(b" " * FAILURE_BYTES)


def _reserved(folder: Path) -> Path:
    return (folder / FAILURE).with_suffix(".reserved")


def request_id(conversation: int) -> str:
    """The id of the request that computes a conversation, by which its rows are told from others'."""
    return f"{_MARK}{conversation}"


def run_scheduler(plan: Plan, *args: Any, **kwargs: Any) -> None:
    """The body of a scheduler process."""
    _leave_signals_to_the_stage()
    Capture(plan).install()
    run_scheduler_process(*args, **kwargs)


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    """The body of the detokenizer process."""
    _leave_signals_to_the_stage()
    run_detokenizer_process(*args, **kwargs)


def _leave_signals_to_the_stage() -> None:
    """SIGTERM reaches the whole group; the stage ends between two conversations, and then the engine with it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class CaptureError(Exception):
    """What was computed is not what was asked for."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Capture:
    """The hooks.

    Args:
        plan: what to take.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._handover = HandoverWriter(plan.folder, self._note, Regions(plan.folder, plan.region_bytes, plan.regions))
        self._failed = False

    def install(self) -> None:
        """Register the hooks in this process.

        Raises:
            RuntimeError: this SGLang has no such functions; its registry would only log that.
        """
        targets = (self._plan.points.loaded, self._plan.points.logits)
        HookRegistry.register(targets[0], self._loaded, HookType.AFTER)
        HookRegistry.register(targets[1], self._forward, HookType.BEFORE)
        HookRegistry.apply_hooks()
        if missing := [target for target in targets if target not in HookRegistry._patched]:
            raise RuntimeError(f"this SGLang has no {' and no '.join(missing)} to take hidden states from")

    def _loaded(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if not hasattr(runner.model, "set_eagle3_layers_to_capture"):
                raise CaptureError(
                    Reason.TARGET_UNSUPPORTED,
                    f"target.model: SGLang's {type(runner.model).__name__} cannot capture auxiliary hidden states",
                )
            runner.model.set_eagle3_layers_to_capture(list(self._plan.ids))
        except Exception as error:
            self._note(error)

    def _forward(
        self,
        processor: Any,
        input_ids: Any,
        hidden: Any,
        lm_head: Any,
        batch: Any,
        aux_hidden_states: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        requests = getattr(batch, "rids", None) or []
        # Requests of answers that have just ended may drag ours, whose rows are taken, through one more step with them
        beyond = batch.forward_mode.is_idle() or batch.forward_mode.is_decode()
        if beyond or not any(_is_ours(request) for request in requests):
            return
        try:
            self._check(processor, hidden, batch)
            # Every rank computes this, whatever it has failed in: the head is divided among them, and they would wait
            teaching = teach(
                self._plan.teacher, hidden, partial(_logits, processor, lm_head, batch), processor.config.vocab_size
            )
            if not self._failed:
                # A language model inside of another, as Kimi-K2.5's, is given embeddings in place of tokens
                tokens = batch.input_ids if input_ids is None else input_ids
                self._take(tokens, hidden, teaching, batch, aux_hidden_states)
        except Exception as error:
            self._note(error)

    @staticmethod
    def _check(processor: Any, hidden: Any, batch: Any) -> None:
        """The same on every rank."""
        if not batch.forward_mode.is_extend_without_speculative():
            raise CaptureError(
                Reason.FEATURES_MISALIGNED, f"a forward of mode {batch.forward_mode.name} has other rows"
            )
        if getattr(processor, "logit_scale", None) not in (None, 1.0) or getattr(
            processor, "final_logit_softcapping", None
        ):
            raise CaptureError(
                Reason.FEATURE_MISMATCH,
                "the target's logits are changed after its head. A draft cannot be trained on it",
            )

    def _take(self, tokens: Any, hidden: Any, teaching: Teaching, batch: Any, aux: Any) -> None:
        aux = pack_aux_hidden_states(aux) if aux is not None else hidden[:, :0]
        expected = len(self._plan.ids) * hidden.shape[-1]
        if aux.shape != (hidden.shape[0], expected):
            raise CaptureError(
                Reason.FEATURES_MISALIGNED,
                f"SGLang gave auxiliary states of shape {tuple(aux.shape)} for {len(self._plan.ids)} layers beside last "
                f"states of shape {tuple(hidden.shape)}",
            )
        if get_parallel().attn_tp_rank != 0:  # every rank of the attention's group has all rows whole; one writes them
            return
        counts = batch.extend_seq_lens_cpu
        rows = [
            Rows(int(request.removeprefix(_MARK)), start, count)
            for request, start, count in zip(batch.rids, batch.extend_prefix_lens_cpu, counts, strict=True)
            if _is_ours(request)
        ]
        columns = as_stored(
            {"input_ids": tokens, "hidden": aux, **tensors(teaching)}, self._plan.dtype, hidden.shape[-1]
        )
        chosen: Any = slice(0, sum(counts))  # what follows is padding
        if len(rows) < len(counts):
            ours = torch.tensor([_is_ours(request) for request in batch.rids])
            chosen = ours.repeat_interleave(torch.tensor(counts)).nonzero().flatten().to(hidden.device)
        self._handover.write(rows, {name: column[chosen] for name, column in columns.items()})

    def _note(self, error: Exception) -> None:
        """Leave word for the client and take nothing more; the first one counts."""
        self._failed = True
        path = self._plan.folder / FAILURE
        if path.exists():
            return
        known = isinstance(error, CaptureError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        note = {
            "reason": error.reason if isinstance(error, CaptureError) else None,
            "errno": error.errno if isinstance(error, OSError) else None,
            "message": text[:FAILURE_CHARACTERS],
        }
        with contextlib.suppress(FileNotFoundError):  # another rank was first
            with _reserved(self._plan.folder).open("r+b") as file:  # where the disk is full, this still has its place
                file.write(json.dumps(note).encode())
            _reserved(self._plan.folder).rename(path)


def _logits(processor: Any, lm_head: Any, batch: Any, rows: torch.Tensor) -> torch.Tensor:
    """The server's own logits of some rows, (rows, vocabulary), whole on every rank."""
    if hasattr(processor, "_logits_gatherer"):
        # SGLang's own joins the ranks' parts in one buffer, without waiting for whoever still reads the last ones there: between
        # two forwards nobody does. Here one piece of rows follows another at once
        processor._logits_gatherer = tensor_model_parallel_all_gather
    logits: torch.Tensor = processor._get_logits(rows, lm_head, LogitsMetadata.from_forward_batch(batch))
    return logits


def _is_ours(request: Sequence[str] | str) -> bool:
    return isinstance(request, str) and request.startswith(_MARK)
