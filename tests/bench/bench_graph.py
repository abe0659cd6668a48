"""What a step would gain if its loss and backward were one CUDA graph, or were compiled as a whole, on one GPU.

    python tests/bench/bench_graph.py [W8-ones W8-half WK-ones ...]

Runs are named as in ``bench_training``. Of the same packed batch and draft it times, from CUDA event to event, the loss and
backward that a step of the product does: as it does them (``eager``), recorded once and replayed (``graph``), under
``torch.compile`` as one function (``compiled``), and as it does them once more. Without FSDP, clipping and AdamW, which none of
them changes. A graph has fixed shapes and a step's rows follow the data, so that this is the most a graph can save, before what
padding to buckets of shapes would cost. Gradients are compared with those of the first.

On a CPU, where there are no graphs, it times the others: that shows that it runs.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor
from torch._dynamo.utils import counters

from bench.bench_training import DOCUMENT, SHAPES, UNROLL, Inputs
from eagle3_draft.model.fast import GPU_MULTIPLE, FastDraft
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import CROSS_ENTROPY, Teacher, step_weights
from eagle3_draft.train.loss_kernel import unroll_loss
from eagle3_draft.train.portions import count

WARM_UP, TIMED = 4, 12


class Work:
    """The loss and backward of one batch."""

    def __init__(self, name: str, device: torch.device) -> None:
        shape, mask = SHAPES[name.split("-")[0]], name.split("-")[1]
        on_gpu = device.type == "cuda"
        inputs = Inputs(shape, device, mask=mask, documents=[DOCUMENT] * 4 if on_gpu else [512, 400])
        self.dtype = torch.bfloat16 if on_gpu else torch.float32
        self.model = FastDraft(shape.draft)
        self.model.initialise(0)
        self.model.to(device, self.dtype)
        self.teacher = Teacher(inputs.head, inputs.ids).to(device, self.dtype)
        self.embedding = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=self.dtype)
        knows = self.teacher.knows.cpu()
        self.batch = pack(inputs.samples, UNROLL, knows=knows, multiple=GPU_MULTIPLE if on_gpu else 1).to(device)
        counted = count(inputs.samples, knows, UNROLL)[:UNROLL].to(device)
        self.weights = step_weights(counted, CROSS_ENTROPY)

    def loss(self) -> Tensor:
        """As ``Learning.unroll_loss`` has it."""
        criterion = partial(
            unroll_loss,
            batch=self.batch,
            labels=self.teacher.labels(self.batch.teaching),
            teacher=self.teacher,
            weights=self.weights,
            loss=CROSS_ENTROPY,
        )
        embeds = F.embedding(self.batch.input_ids, self.embedding)
        return self.model.loss(self.batch.states(self.dtype), embeds, self.batch.rows, criterion).loss

    def gradients(self) -> list[Tensor]:
        """A copy of what the last backward left."""
        return [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]

    def step(self, loss: Callable[[], Tensor]) -> None:
        """The loss and its gradients."""
        self.model.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]


def timed(step: Callable[[], None], device: torch.device) -> float:
    """Milliseconds of a step, the median, from start to start."""
    for _ in range(WARM_UP):
        step()
    if device.type == "cpu":
        starts = []
        for _ in range(TIMED + 1):
            starts.append(1000 * time.perf_counter())
            step()
        return statistics.median(end - start for start, end in pairwise(starts))
    events = [torch.Event("cuda", enable_timing=True) for _ in range(TIMED + 1)]
    for event in events:
        event.record()
        step()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairwise(events))


def recorded(work: Work) -> Callable[[], None]:
    """The work as a graph that is replayed."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work.step(work.loss)
    torch.cuda.current_stream().wait_stream(aside)
    work.model.zero_grad()
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.loss().backward()  # type: ignore[no-untyped-call]
    return graph.replay


def apart(ours: list[Tensor], reference: list[Tensor]) -> float:
    """The largest distance of a parameter's gradients, by their norm."""
    pairs = zip(ours, reference, strict=True)
    return max(float((one - other).float().norm() / other.float().norm()) for one, other in pairs)


def run(name: str) -> None:
    """Time the ways of one run; a way that fails is told, and the others go on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work = Work(name, device)
    reference: list[Tensor] = []
    ways: dict[str, Callable[[], Callable[[], None]]] = {
        "eager": lambda: partial(work.step, work.loss),
        "graph": lambda: recorded(work),
        "compiled": lambda: partial(work.step, torch.compile(work.loss)),
        "eager again": lambda: partial(work.step, work.loss),
    }
    for way, make in ways.items():
        if way == "graph" and device.type == "cpu":
            continue
        counters.clear()
        try:
            took = timed(make(), device)
            gradients = work.gradients()
            reference = reference or gradients
            said: dict[str, object] = {"ms": round(took, 2), "gradients_apart": round(apart(gradients, reference), 5)}
            if way == "compiled":
                said |= {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
        except Exception as error:  # what a graph or the compiler cannot do is the result
            said = {"failed": f"{type(error).__name__}: {str(error)[:600]}"}
        print(json.dumps({"run": name, "way": way} | said), flush=True)
        work.model.zero_grad()


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["W8-ones", "W8-half"])
    for name in parser.parse_args().runs:
        run(name)


if __name__ == "__main__":
    main()
