"""Runs inside of SGLang's environment: drafts in SGLang's own draft worker, each asked for chains.

    python drafting.py TARGET INPUTS STEPS OUT FOLDER...

The worker is the one of a server of the target: its model class, its KV cache and attention, its loop over the steps. No request is
answered, so that a draft takes a twentieth of a second. Every parameter is NaN before a draft's weights are loaded, so that one which
gets nothing shows.

INPUTS is a safetensors file of one text: ``input_ids`` (tokens + 1,) and ``features`` (tokens, layers x hidden), of which a draft reads
as many states as it takes. From every position but the last goes a chain of STEPS proposals, each fed on those before it; then, as if the
target had accepted some of them, a second one from further on. OUT receives for each folder ``<number>.safetensors``: the parameters by
their names, ``hot_token_id`` where the draft knows a part of the tokens, and of both chains

    known   (2, chains)                             tokens whose states are known when it begins
    logits  (2, STEPS, chains, draft vocabulary)    of each step
    fed     (2, STEPS - 1, chains)                  the proposals that the steps after the first read
"""

import socket
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FLAGS = {
    "--device": "cpu",
    "--dtype": "float32",
    "--attention-backend": "triton",
    "--cuda-graph-backend-decode": "disabled",
    "--cuda-graph-backend-prefill": "disabled",
    "--max-total-tokens": "2048",
    "--max-running-requests": "64",
    "--speculative-algorithm": "EAGLE3",
    "--speculative-eagle-topk": "1",
}
SWITCHES = ("--disable-radix-cache", "--disable-overlap-schedule", "--skip-tokenizer-init")


class Server:
    """What a scheduler of one process has: a target, and room for requests.

    Args:
        target: a checkpoint.
        draft: any draft for it; SGLang wants to be told of one when it starts.
        steps: proposals of a chain.
    """

    def __init__(self, target: str, draft: str, steps: int) -> None:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.distributed import bootstrap
        from sglang.srt.managers.tp_worker import TpModelWorker
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import prepare_server_args

        sizes = {"--speculative-num-steps": str(steps), "--speculative-num-draft-tokens": str(steps + 1)}
        told = FLAGS | sizes | {"--model-path": target, "--speculative-draft-model-path": draft}
        self.arguments = prepare_server_args([*SWITCHES, *(word for pair in told.items() for word in pair)])
        publish(self.arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        bootstrap.init_parallel_runtime(server_args=self.arguments, device="cpu", dist_port=self.port)
        bootstrap.init_layer_runtime(model_config=ModelConfig.from_server_args(self.arguments))
        self.target = TpModelWorker(self.arguments, 0, self.port)
        self.target.alloc_memory_pool()
        self.target.init_attention_backends()

    def load(self, folder: str) -> Any:
        """A draft worker of SGLang's, as its scheduler makes it."""
        from sglang.srt.runtime_context import get_context
        from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

        get_context().override("another draft", speculative_draft_model_path=folder)
        worker = EagleDraftWorker(self.arguments, 0, self.port, self.target)
        requests, slots = self.target.get_memory_pool()
        requests.clear()
        slots.clear()
        worker.alloc_memory_pool(self.target.model_runner.memory_pool_config, requests, slots)
        worker.init_attention_backends()
        worker.init_cuda_graphs()
        return worker

    def batch(self, texts: list[list[int]]) -> Any:
        """Requests whose prompts are these, about to be computed."""
        from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.chunk_cache import ChunkCache
        from sglang.srt.sampling.sampling_params import SamplingParams
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        requests = []
        for number, text in enumerate(texts):
            request = Req(str(number), "", array("q", text), SamplingParams(temperature=0))
            request.full_untruncated_fill_ids = request.origin_input_ids
            request.set_extend_range(0, len(text))
            requests.append(request)
        pool, slots = self.target.get_memory_pool()
        cache = ChunkCache(CacheInitParams(True, pool, slots, page_size=1))
        algorithm = SpeculativeAlgorithm.EAGLE3
        batch = ScheduleBatch.init_new(requests, pool, slots, cache, self.target.model_config, False, algorithm)
        batch.prepare_for_extend()
        batch.input_ids, batch.prefill_input_ids_cpu = batch.prefill_input_ids_cpu, None
        return batch


def fill_with_nan() -> None:
    """Let every model have nothing but NaN before its weights are loaded."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    load = DefaultModelLoader.load_weights_only

    @torch.no_grad()
    def filled(model: torch.nn.Module, *rest: object) -> None:
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
        load(model, *rest)

    DefaultModelLoader.load_weights_only = staticmethod(filled)


@torch.no_grad()
def ask(server: Server, worker: Any, steps: int, ids: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """Both chains: ``known``, ``logits`` and ``fed``, as the module's text says."""
    model = worker.draft_runner.model
    states = len(model.config.eagle_config["eagle_aux_hidden_state_layer_ids"])
    features = features[:, : states * getattr(model.config, "target_hidden_size", model.config.hidden_size)]
    first = torch.arange(1, len(features))
    accepted = torch.minimum(1 + first % (steps + 1), len(features) - first)
    with heard(worker.draft_runner) as (said, fed):
        batch = server.batch([ids[:known].tolist() for known in first])
        batch.spec_info = worker._draft_extend_for_prefill(
            batch, torch.cat([features[:known] for known in first]), ids[first]
        )
        batch.prepare_for_decode()
        worker.draft(batch)

        verified(worker, batch, accepted, ids, features)
        batch.prepare_for_decode()
        worker.draft(batch)
    # Of all rows of the second chain's first step, those of the last accepted proposals
    last = torch.arange(len(first)) * (steps + 1) + accepted - 1
    said[steps] = said[steps][last]
    return {
        "known": torch.stack([first, first + accepted]),
        "logits": torch.stack([torch.stack(said[:steps]), torch.stack(said[steps:])]),
        "fed": torch.stack([torch.stack(fed[1:steps]), torch.stack(fed[steps + 1 :])]),
    }


def verified(worker: Any, batch: Any, accepted: torch.Tensor, ids: torch.Tensor, features: torch.Tensor) -> None:
    """Let the draft read what the target found of a chain, and the batch go on from there.

    Args:
        worker, batch: of the chain.
        accepted: (requests,), tokens of the target's in the chain's place, its own one counted.
        ids, features: as of ``ask``. In the place of the states of what was not accepted are ones, which nobody may see.
    """
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    width = worker.speculative_num_draft_tokens
    places = batch.seq_lens[:, None] + torch.arange(width)
    rows = places.clamp(max=len(features) - 1)
    kept = (places < (batch.seq_lens + accepted)[:, None])[..., None]
    following = EagleDraftInput(bonus_tokens=ids[batch.seq_lens + accepted])
    result = SimpleNamespace(
        logits_output=SimpleNamespace(hidden_states=torch.where(kept, features[rows], 1.0).flatten(0, 1)),
        accept_lens=accepted,
        next_token_ids=ids[rows + 1].flatten(),
        next_draft_input=following,
    )
    slots = batch.req_to_token_pool.req_to_token[batch.req_pool_indices[:, None], places]
    batch.out_cache_loc = slots.flatten().to(torch.int64)
    worker._draft_extend_for_decode(batch, result)
    batch.spec_info = following
    batch.seq_lens = batch.seq_lens + accepted
    batch.seq_lens_cpu = batch.seq_lens_cpu + accepted
    batch.seq_lens_sum = int(batch.seq_lens.sum())
    for request, number in zip(batch.reqs, accepted.tolist(), strict=True):
        request.kv.kv_committed_len += number


@contextmanager
def heard(runner: Any) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """The logits that a model says meanwhile, and the tokens that it was asked with."""
    forward = runner.forward
    said: list[torch.Tensor] = []
    asked: list[torch.Tensor] = []

    def hearing(batch: Any) -> Any:
        asked.append(batch.input_ids.clone())
        answer = forward(batch)
        said.append(answer.logits_output.next_token_logits.clone())
        return answer

    runner.forward = hearing
    yield said, asked
    runner.forward = forward


def main(target: str, inputs: str, steps: str, out: str, *folders: str) -> None:
    """Load each folder and ask it."""
    server = Server(target, folders[0], int(steps))
    fill_with_nan()
    given = load_file(inputs)
    for number, folder in enumerate(folders):
        worker = server.load(folder)
        model = worker.draft_runner.model
        found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        if model.hot_token_id is not None:
            found["hot_token_id"] = model.hot_token_id
        found |= ask(server, worker, int(steps), given["input_ids"], given["features"])
        save_file(found, Path(out) / f"{number}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
