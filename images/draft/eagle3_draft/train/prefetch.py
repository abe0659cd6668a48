"""Batches that are read, packed and on the GPU before they are asked for."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from eagle3_draft.train.batches import Batch

T = TypeVar("T")

#: Batches that are made ahead.
AHEAD = 2


def prefetched(
    make: Callable[[T], Batch],
    items: Sequence[T],
    device: torch.device,
    expect: Callable[[T], None] = lambda item: None,
) -> Generator[tuple[T, Batch], None, None]:
    """Each item with its batch on the device, in order; one thread makes those that come next.

    Before it makes one it says which the following is: ``expect`` has that fetched in the background.

    On a GPU the copies have a stream of their own, beside the computation. An error in ``make`` is raised where its batch
    would have come.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def moved(item: T, following: Sequence[T]) -> Batch:
        for one in following:
            expect(one)
        with torch.cuda.stream(stream):  # None is the stream that is there
            batch = make(item).to(device)
        if stream is not None:
            stream.synchronize()
        return batch

    pending: deque[tuple[T, Future[Batch]]] = deque()
    # A thread's device is the first GPU, whichever the process has chosen
    chosen: dict[str, Any] = {} if stream is None else {"initializer": torch.cuda.set_device, "initargs": (device,)}
    with ThreadPoolExecutor(1, "reader", **chosen) as reader:
        try:
            for number, item in enumerate(items, start=1):
                pending.append((item, reader.submit(moved, item, items[number : number + 1])))
                if len(pending) > AHEAD:
                    yield _received(*pending.popleft())
            while pending:
                yield _received(*pending.popleft())
        finally:
            for _, future in pending:
                future.cancel()


def _received(item: T, future: Future[Batch]) -> tuple[T, Batch]:
    batch = future.result()
    for tensor in batch.tensors():
        if tensor.is_cuda:  # its memory is the reader's stream's, which must not take it back while this one reads it
            tensor.record_stream(torch.cuda.current_stream())
    return item, batch
