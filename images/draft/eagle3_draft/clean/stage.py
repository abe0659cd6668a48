"""The stage Clean."""

from contextlib import suppress
from functools import partial
from pathlib import Path

from eagle3_api.artifacts import FEATURES_ROOT
from eagle3_api.jobs import CleanConfig, CleanResult, StageName
from eagle3_draft.places import Volume, place
from eagle3_draft.progress import Progress


def run(config: CleanConfig, *, features_root: Path | None = None) -> CleanResult:
    """Remove what the object's extractions and trainings left under the features root, whatever their keys.

    Of a training these are its working files alone: where one claim holds features and drafts, the trained draft lies in the same
    folder. Whatever appears meanwhile, of an edit that the object has seen since, is not looked at.

    Args:
        config: of the stage.
        features_root: where the features volume is mounted; elsewhere in tests.

    Raises:
        StageError: the object store lets us not in, or cannot be reached (StorageUnavailable).
        OSError: a file cannot be removed.
    """
    root = features_root or Path(FEATURES_ROOT)
    own = root / config.owner.namespace / config.owner.name
    at, volume = place(config.object_store, root), Volume()
    trainings = volume.inside(own / StageName.TRAIN)
    checkpoints = [path for training in trainings for path in volume.inside(training) if path.name.startswith(".")]
    doomed = [(at, path) for path in at.inside(own / StageName.EXTRACT)] + [(volume, path) for path in checkpoints]
    files, size = 0, 0
    progress = Progress(len(doomed), "folders")
    for number, (where, folder) in enumerate(doomed):
        progress.update(number)
        removed, freed = where.remove(folder, partial(_told, progress, number))
        files, size = files + removed, size + freed
    for training in trainings:
        with suppress(OSError):  # it is the trained draft's
            training.rmdir()
    progress.update(len(doomed))
    return CleanResult(files=files, bytes=size)


def _told(progress: Progress, number: int, files: int) -> None:
    progress.update(number, f"{files:,} files removed")
