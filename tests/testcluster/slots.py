"""Who has which slot.

A slot is held by a socket with an abstract name, which the kernel lets exist once and removes with the last process
that holds it: a killed run frees its slot by dying, and no lock file is left behind.
"""

import errno
import socket

SLOTS = 256


class SlotTakenError(RuntimeError):
    """Another cluster of this machine uses the slot."""


def claim(slot: int) -> socket.socket:
    """Holds a slot until the socket is closed in every process that has it; raises SlotTakenError if another holds it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0eagle3-testcluster-slot-{slot}")
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            raise SlotTakenError(f"slot {slot} is taken by another cluster of this machine: choose another") from None
        raise
    return holder


def claim_free() -> tuple[int, socket.socket]:
    """Holds the first slot that is free."""
    for slot in range(SLOTS):
        try:
            return slot, claim(slot)
        except SlotTakenError:
            continue
    raise SlotTakenError(f"all {SLOTS} slots of this machine are taken")
