"""One rank, from its start to its end: what the elastic launcher runs."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from eagle3_api.jobs import TrainConfig, TrainResult
from eagle3_draft.runtime.termination import Termination
from eagle3_draft.train import endings
from eagle3_draft.train.checkpoints import rank_timeout
from eagle3_draft.train.loop import Training
from eagle3_draft.train.publish import publish


def work(config: TrainConfig) -> TrainResult:
    """The whole of one rank. Rank 0 publishes the artifact; every rank returns its result.

    A failure leaves its outcome for the launcher to put together, and ends the process with the exit code of the stage.
    """
    termination = Termination()
    rank = int(os.environ["RANK"])
    try:
        if config.deterministic:
            be_deterministic()
        device = _join_group(config)
        state = Training(config, device, termination).run()
        results: list[Any] = [publish(config, state) if rank == 0 else None]
        dist.broadcast_object_list(results)
    except BaseException as error:
        code = endings.leave(config, rank, error)
        sys.stdout.flush()
        sys.stderr.flush()
        # The outcome is left. A thread that still writes to a volume that hangs must not hold up the end
        os._exit(code)
    dist.destroy_process_group()
    result: TrainResult = results[0]
    return result


def be_deterministic() -> None:
    """Have this process add up in the same order whenever it is run. To be called before anything is computed on a GPU.

    PyTorch then refuses what has no fixed order, asks of cuBLAS for its variable, and picks no compiled kernel by its time
    (https://docs.pytorch.org/docs/stable/notes/randomness.html). The attention that we call by ourselves looks for it as well.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    # For what reads memory that nobody wrote; nothing here does, and it would be one more pass over all of it
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _join_group(config: TrainConfig) -> torch.device:
    """Join the ranks' process group; returns this rank's device."""
    # The operator ends a training that tells no progress for stallTimeout, and says so: no rank gives up before
    patience = rank_timeout(config.stall_timeout)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=patience)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device, timeout=patience)
    return device
