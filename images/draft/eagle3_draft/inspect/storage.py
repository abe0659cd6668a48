"""Whether the features will fit, before hours of extraction find out that they do not."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token, readable_bytes, readable_count, ways_to_store
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.jobs import ExitCode
from eagle3_draft import artifacts
from eagle3_draft.stage import StageError


def free_bytes(root: Path, capacity: int | None, extractions: Path, made_from: Mapping[str, str]) -> int:
    """What the features root still takes: the lesser of what its claim leaves and what its file system reports.

    What this object's extraction already holds counts as free, be it finished from the same inputs or under way: it is
    not needed twice.

    Args:
        root: the features root.
        capacity: of its claim; a file system that is shared may report far more.
        extractions: the folder of this object's extractions.
        made_from: what the extraction in question is made from.

    Raises:
        StageError: the root is not there (StorageUnavailable).
    """
    try:
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise StageError(
            ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, f"storage.features: {root} cannot be read: {error.strerror}"
        ) from None
    if capacity is not None:
        free = min(free, capacity - held_bytes(root))
    own = [path for path in extractions.glob("*") if path.is_dir() and _is_reusable(path, made_from)]
    return max(0, free + sum(held_bytes(path) for path in own))


def of_former_specs(extractions: Path, made_from: Mapping[str, str]) -> list[Path]:
    """This object's finished extractions that were made from other inputs. Clean removes them, but only once a draft is trained."""
    return [path for path in extractions.glob("*") if path.is_dir() and not _is_reusable(path, made_from)]


def is_made_from(artifact: Path, inputs: Mapping[str, str]) -> bool:
    """Whether a finished artifact lies in a folder that was made from these inputs, among others."""
    try:
        return inputs.items() <= artifacts.read(artifact).made_from.items()
    except StageError:
        return False


def _is_reusable(extraction: Path, made_from: Mapping[str, str]) -> bool:
    try:
        return artifacts.read(extraction).made_from == made_from
    except StageError:
        return True  # under way, or rubbish


def held_bytes(folder: Path) -> int:
    """Bytes on the disk of all files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * 512
            except FileNotFoundError:  # a running stage renames and deletes
                continue
    return total


def check_space(
    *,
    tokens: int,
    conversations: int,
    layers: int,
    hidden_size: int,
    dtype: FeatureDtype,
    teacher: TeacherKind,
    free: int | None,
    former: Sequence[Path] = (),
) -> tuple[int, int]:
    """Set the features' size against the free space.

    Args:
        tokens: of all conversations, as estimated: three bytes are taken for a token, which texts of rare characters go below.
        conversations: how many.
        layers: how many auxiliary layers.
        hidden_size: of the target.
        dtype: of the stored states.
        teacher: in which form the target's answers are stored.
        free: bytes; None where no space is needed, because the work is done.
        former: folders of features that this object needs no more.

    Returns:
        Bytes of a token's features, and of all of them.

    Raises:
        StageError: they do not fit; the message names the missing bytes, and says what would (StorageTooSmall).
    """
    per_token = bytes_per_token(hidden_size, layers, dtype, teacher)
    needed = tokens * per_token
    if free is None or needed <= free:
        return per_token, needed
    ways = [f"a claim of {readable_bytes(needed * 1.05)}"]
    smallest = needed
    for way in ways_to_store(dtype, teacher):
        size = tokens * bytes_per_token(hidden_size, layers, way.dtype, way.teacher)
        if size < smallest:
            smallest = size
            ways.append(f"{way.change} ({readable_bytes(size)}{'' if size <= free else ', still too much'})")
    if samples := int(conversations * free / needed * 0.95):
        ways.append(f"data.maxSamples {samples} (about {readable_count(free // per_token)} tokens)")
    held = readable_bytes(sum(map(held_bytes, former)))
    hint = f". Or delete the features of former specs, {held}: {', '.join(map(str, former))}" if former else ""
    raise StageError(
        ExitCode.DOES_NOT_FIT,
        Reason.STORAGE_TOO_SMALL,
        f"about {readable_count(tokens)} tokens x {layers} auxiliary layer{'s' if layers > 1 else ''} and "
        f"{'the last' if teacher == 'LastState' else teacher}, hidden {hidden_size}, {dtype} need {readable_bytes(needed)}; the features volume has {readable_bytes(free)} free "
        f"and lacks {readable_bytes(needed - free)}. Use "
        f"{' or '.join([', '.join(ways[:-1]), ways[-1]]) if len(ways) > 1 else ways[0]}{hint}",
    )
