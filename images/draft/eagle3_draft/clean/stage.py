"""The stage Clean."""

from functools import partial
from pathlib import Path

from eagle3_api.artifacts import FEATURES_ROOT
from eagle3_api.conditions import Reason
from eagle3_api.jobs import CleanConfig, CleanResult, ExitCode
from eagle3_draft.places import place
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
    root = features_root or Path(FEATURES_ROOT)
    own = root / config.owner.namespace / config.owner.name
    folders = [Path(folder) for folder in config.folders]
    for folder in folders:
        if folder == own or not folder.resolve().is_relative_to(own.resolve()):
            raise StageError(
                ExitCode.BAD_CONFIGURATION,
                Reason.INVALID_CONFIGURATION,
                f"{folder} does not lie below {own}, the folder of this object; it is left alone",
            )
    at = place(config.object_store, root)
    files, size = 0, 0
    progress = Progress(len(folders), "folders")
    for number, folder in enumerate(folders):
        progress.update(number)
        removed, freed = at.remove(folder, partial(_told, progress, number))
        files, size = files + removed, size + freed
    progress.update(len(folders))
    return CleanResult(files=files, bytes=size)


def _told(progress: Progress, number: int, files: int) -> None:
    progress.update(number, f"{files:,} files removed")
