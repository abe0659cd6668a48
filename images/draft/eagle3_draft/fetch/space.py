"""Whether what is to be fetched fits."""

import shutil
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.estimate import readable_bytes
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError


def check_space(name: str, needed: int, folder: Path) -> None:
    """Look before anything comes.

    Args:
        name: of what is fetched, for the message.
        needed: bytes of it that are not there yet.
        folder: where it goes.

    Raises:
        StageError: the volume is too small (StorageTooSmall).
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StageError(
            ExitCode.DOES_NOT_FIT,
            Reason.STORAGE_TOO_SMALL,
            f"storage.models: {name} needs {readable_bytes(needed)} more; the volume has {readable_bytes(free)} free "
            f"and is {readable_bytes(needed - free)} short. Free that much, or use a larger claim",
        )
