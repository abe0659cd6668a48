"""Portions that are read, packed and on the GPU before they are asked for."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor


class Movable(Protocol):
    """What is computed at a time, made on the host."""

    def tensors(self) -> list[Tensor]:
        """All of them."""

    def to(self, device: torch.device) -> Self:
        """The same on a device."""


T = TypeVar("T")
P = TypeVar("P", bound=Movable)

#: Portions that are made ahead, unless it is said. So many and two are on the device at most: the one that comes next, and the one before it.
AHEAD = 2


@contextmanager
def prefetched(
    make: Callable[[T], P],
    items: Sequence[T],
    device: torch.device,
    expect: Callable[[T], None] = lambda item: None,
    *,
    ahead: int = AHEAD,
) -> Iterator[Iterator[P]]:
    """The portion of each item on the device, in order; within the context one thread makes ``ahead`` of those that come next.

    Before it makes one it says which the following is: ``expect`` has that fetched in the background.

    On a GPU the copies have a stream of their own, beside the computation. An error in ``make`` is raised where its
    portion would have come. Without an error the context ends once nothing is made any more, with one at once.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def moved(item: T, following: Sequence[T]) -> P:
        for one in following:
            expect(one)
        with torch.cuda.stream(stream):  # None is the stream that is there
            portion = make(item).to(device)
        if stream is not None:
            stream.synchronize()
        return portion

    # A thread's device is the first GPU, whichever the process has chosen
    chosen: dict[str, Any] = {} if stream is None else {"initializer": torch.cuda.set_device, "initargs": (device,)}
    reader = ThreadPoolExecutor(1, "reader", **chosen)
    try:
        yield _in_order(reader, moved, items, ahead)
    except BaseException:
        # It may be that of a volume which hangs, as a read of it then does: nobody would hear of the error
        reader.shutdown(wait=False, cancel_futures=True)
        raise
    reader.shutdown(cancel_futures=True)


def _in_order(
    reader: ThreadPoolExecutor, moved: Callable[[T, Sequence[T]], P], items: Sequence[T], ahead: int
) -> Iterator[P]:
    """The portions, ``ahead`` of them made before they are asked for; ``moved`` makes one of an item and those that it may expect next."""
    pending: deque[Future[P]] = deque()
    for number, item in enumerate(items, start=1):
        pending.append(reader.submit(moved, item, items[number : number + 1]))
        if len(pending) > ahead:
            yield _received(pending.popleft())
    while pending:
        yield _received(pending.popleft())


def _received(future: Future[P]) -> P:
    portion = future.result()
    for tensor in portion.tensors():
        if tensor.is_cuda:  # its memory is the reader's stream's, which must not take it back while this one reads it
            tensor.record_stream(torch.cuda.current_stream())
    return portion
