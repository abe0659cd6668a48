"""What a stage raised says whether another try can help."""

import errno

import pytest
import torch

from eagle3_api.jobs import ExitCode, StageName
from eagle3_draft.runtime.child import failure


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, "of a volume") for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH)),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
    ],
    ids=repr,
)
def test_a_fault_of_a_volume_a_network_or_a_gpu_is_tried_again(error: Exception) -> None:
    outcome = failure(StageName.TRAIN, "k", error)
    assert outcome.code == ExitCode.ENGINE_CRASHED
    assert str(error).splitlines()[0] in outcome.report.message
    wrapped = RuntimeError("a rank failed")
    wrapped.__cause__ = error
    assert failure(StageName.TRAIN, "k", wrapped).code == ExitCode.ENGINE_CRASHED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.DOES_NOT_FIT),
        (PermissionError(errno.EACCES, "Permission denied"), ExitCode.BAD_INPUT),
        (torch.OutOfMemoryError("CUDA out of memory"), ExitCode.DOES_NOT_FIT),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ExitCode.DOES_NOT_FIT),
        (FileNotFoundError(errno.ENOENT, "No such file"), ExitCode.INTERNAL_ERROR),
        (ValueError("a mistake of ours"), ExitCode.INTERNAL_ERROR),
    ],
    ids=repr,
)
def test_what_would_come_again_is_not(error: Exception, code: ExitCode) -> None:
    assert failure(StageName.TRAIN, "k", error).code == code
