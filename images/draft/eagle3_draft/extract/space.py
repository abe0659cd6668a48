"""Whether what is still to be stored fits: told by the first samples, before hours are spent on the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.estimate import readable_bytes
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError

#: Usable conversations that tell how long the others are: by their mean, to about a tenth.
SAMPLES = 64


@dataclass(frozen=True)
class Sampled:
    """The first conversations, rendered or answered.

    Attributes:
        conversations: how many were looked at, those that cannot be used among them.
        tokens: of those that can be used.
    """

    conversations: int
    tokens: int


def require_space(sampled: Sampled, *, left: int, token_bytes: int, stored: int, free: int, keeps: bool = True) -> None:
    """Estimate what is to be stored, and hold it against what is free.

    Inspect knew bytes of the data only; these are tokens, and conversations that cannot be used are left out.

    Args:
        sampled: by which all are estimated.
        left: conversations whose features must have room.
        token_bytes: of the stored features.
        stored: bytes of these conversations that an earlier run has stored.
        free: bytes that the features volume still takes: by its file system, and by its claim, of which one that is shared knows
            nothing.
        keeps: whether the volume keeps the features, and is no cache of a bucket.

    Raises:
        StageError: they do not fit; the message names the missing bytes (StorageTooSmall).
    """
    each = sampled.tokens / max(1, sampled.conversations)
    needed = max(0, int(each * token_bytes * left) - stored)
    volume, remedy = "the features volume", "Free them, take a larger claim, or lower data.maxSamples"
    if not keeps:
        volume, remedy = "the pod's disk", "Raise storage.features.objectStore.cache; the node's disk must have it"
    if needed > free:
        raise StageError(
            ExitCode.DOES_NOT_FIT,
            Reason.STORAGE_TOO_SMALL,
            f"{left:,} conversations of {each:,.0f} tokens each, by the first {sampled.conversations:,}, need "
            f"{readable_bytes(needed)} more; {volume} has {readable_bytes(free)} free and is "
            f"{readable_bytes(needed - free)} short. {remedy}",
        )


def require_part(number: int, count: int, needed: int, room: int) -> None:
    """Hold a part, whose tokens are known, against the pod's disk, where it lies until it is uploaded.

    Args:
        number, count: which part it is, from 0, and of how many.
        needed: its bytes.
        room: bytes that the pod's disk has for it.

    Raises:
        StageError: it does not fit (StorageTooSmall). The kubelet would end the pod without a word of ours.
    """
    if needed > room:
        raise StageError(
            ExitCode.DOES_NOT_FIT,
            Reason.STORAGE_TOO_SMALL,
            f"part {number + 1} of {count} takes {readable_bytes(needed)} of the pod's disk, which has room for "
            f"{readable_bytes(room)} and is {readable_bytes(needed - room)} short. Raise storage.features.objectStore.cache; the "
            "node's disk must have that much",
        )


def stored_bytes(folders: Sequence[Path]) -> int:
    """Of the shards in the folders of parts that are not finished."""
    return sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors"))
