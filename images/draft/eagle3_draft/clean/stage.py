"""The stage Clean."""

from functools import partial
from pathlib import Path

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT
from eagle3_api.jobs import CleanConfig, CleanResult, StageName
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.storage.places import Volume, place


def run(config: CleanConfig, *, features_root: Path | None = None, drafts_root: Path | None = None) -> CleanResult:
    """Remove what the object's extractions and trainings left, whatever their keys.

    Of a training that is under either root: all, if no draft came of it, and else its working files. Whatever appears meanwhile, of
    an edit that the object has seen since, is not looked at.

    Args:
        config: of the stage.
        features_root, drafts_root: where the volumes are mounted; elsewhere in tests.

    Raises:
        StageError: the object store lets us not in, or cannot be reached (StorageUnavailable).
        OSError: a file cannot be removed.
    """
    root, name = features_root or Path(FEATURES_ROOT), Path(config.owner.namespace, config.owner.name)
    at, volume = place(config.object_store, root), Volume()
    doomed = [(at, path) for path in at.inside(root / name / StageName.EXTRACT)]
    for one in dict.fromkeys((root, drafts_root or Path(DRAFTS_ROOT))):
        for training, finished in volume.inside(one / name / StageName.TRAIN).items():
            doomed += [(volume, path) for path in (training.glob(".*") if finished else (training,))]
    files, size = 0, 0
    progress = ProgressReporter(len(doomed), "folders and working files")
    for number, (where, folder) in enumerate(doomed):
        progress.update(number)
        removed, freed = where.remove(folder, partial(_told, progress, number))
        files, size = files + removed, size + freed
    progress.update(len(doomed))
    return CleanResult(files=files, bytes=size)


def _told(progress: ProgressReporter, number: int, files: int) -> None:
    progress.update(number, f"{files:,} files removed")
