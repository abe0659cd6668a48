"""The stage Clean."""

import os
from pathlib import Path

from eagle3_api.artifacts import FEATURES_ROOT, MANIFEST
from eagle3_api.conditions import Reason
from eagle3_api.jobs import CleanConfig, CleanResult, ExitCode
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError


def run(config: CleanConfig, *, features_root: Path | None = None) -> CleanResult:
    """Remove the folders. One that is not there is no fault.

    Args:
        config: of the stage.
        features_root: where the features volume is mounted; elsewhere in tests.

    Raises:
        StageError: a folder is not below this object's own (InvalidConfiguration): nothing is removed then.
        OSError: a file cannot be removed.
    """
    own = (features_root or Path(FEATURES_ROOT)) / config.owner.namespace / config.owner.name
    folders = [Path(folder) for folder in config.folders]
    for folder in folders:
        if folder == own or not folder.resolve().is_relative_to(own.resolve()):
            raise StageError(
                ExitCode.BAD_CONFIGURATION,
                Reason.INVALID_CONFIGURATION,
                f"{folder} does not lie below {own}, the folder of this object; it is left alone",
            )
    files, size = 0, 0
    progress = Progress(len(folders), "folders")
    for number, folder in enumerate(folders):
        progress.update(number)
        (folder / MANIFEST).unlink(missing_ok=True)
        for parent, names, leaves in os.walk(folder, topdown=False):
            for leaf in leaves:
                path = Path(parent) / leaf
                size += path.lstat().st_blocks * 512
                path.unlink()
                files += 1
                progress.update(number, f"{files:,} files removed")
            for name in names:
                path = Path(parent) / name
                path.unlink() if path.is_symlink() else path.rmdir()
        if folder.is_dir():
            folder.rmdir()
    progress.update(len(folders))
    return CleanResult(files=files, bytes=size)
