"""Whether the features will fit, before hours of extraction find out that they do not."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token, readable_bytes, readable_count, ways_to_store
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.storage import artifacts


@dataclass(frozen=True)
class Wanted:
    """Features that are to be made.

    Attributes:
        tokens: of all conversations, as estimated: three bytes are taken for a token, which texts of rare characters go below.
        conversations: how many.
        layers: how many auxiliary layers.
        hidden_size: of the target.
        dtype: of the stored states.
        teacher: in which form the target's answers are stored.
    """

    tokens: int
    conversations: int
    layers: int
    hidden_size: int
    dtype: FeatureDtype
    teacher: TeacherKind

    @property
    def per_token(self) -> int:
        """Bytes of a token's features."""
        return bytes_per_token(self.hidden_size, self.layers, self.dtype, self.teacher)

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return self.tokens * self.per_token

    def __str__(self) -> str:
        return (
            f"about {readable_count(self.tokens)} tokens x {self.layers} auxiliary layer{'s' if self.layers > 1 else ''} and "
            f"{'the last' if self.teacher == 'LastState' else self.teacher}, hidden {self.hidden_size}, {self.dtype}"
        )


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


def check_space(wanted: Wanted, free: int, former: Sequence[Path] = ()) -> None:
    """Set the features' size against the free space.

    Args:
        wanted: the features.
        free: bytes.
        former: folders of features that this object needs no more.

    Raises:
        StageError: they do not fit; the message names the missing bytes, and says what would (StorageTooSmall).
    """
    if wanted.bytes <= free:
        return
    *ways, last = _ways(wanted, free)
    way = f"{', '.join(ways)} or {last}" if ways else last
    held = readable_bytes(sum(map(held_bytes, former)))
    hint = f". Or delete the features of former specs, {held}: {', '.join(map(str, former))}" if former else ""
    raise StageError(
        ExitCode.DOES_NOT_FIT,
        Reason.STORAGE_TOO_SMALL,
        f"{wanted} need {readable_bytes(wanted.bytes)}; the features volume has {readable_bytes(free)} free and is "
        f"{readable_bytes(wanted.bytes - free)} short. Use {way}{hint}",
    )


def _ways(wanted: Wanted, free: int) -> Iterator[str]:
    """What a person can do about it."""
    yield f"a claim of {readable_bytes(wanted.bytes * 1.05)}"
    smallest = wanted.bytes
    for way in ways_to_store(wanted.dtype, wanted.teacher):
        size = replace(wanted, dtype=way.dtype, teacher=way.teacher).bytes
        if size < smallest:
            smallest = size
            yield f"{way.change} ({readable_bytes(size)}{'' if size <= free else ', still too much'})"
    if samples := int(wanted.conversations * free / wanted.bytes * 0.95):
        yield f"data.maxSamples {samples} (about {readable_count(free // wanted.per_token)} tokens)"
