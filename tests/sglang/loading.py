"""Runs inside of SGLang's environment: a draft's folder, loaded by SGLang's own model class, and asked.

    python loading.py TARGET INPUTS OUT FOLDER...

Every parameter is NaN before the weights are loaded, so that one which gets nothing shows. INPUTS is a safetensors file with
``features`` (tokens, layers x hidden), of which a draft reads as many states as it takes, and of the tokens to come ``tokens`` (tokens,) and the target's ``embeds`` (tokens, hidden). OUT receives a safetensors file for
each folder, ``<number>.safetensors``: the parameters by their names, ``hot_token_id`` where the draft knows a part of the tokens, ``logits`` (tokens, draft vocabulary) and
``fed_back`` (tokens, hidden), what the next step would read.
"""

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

#: The place of the only process of a server.
SIZES = ("tp_size", "pp_size", "attn_tp_size", "attn_dp_size", "attn_cp_size", "attn_dcp_size")
RANKS = ("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank")
ALONE = (
    dict.fromkeys(SIZES, 1) | dict.fromkeys(("moe_ep_size", "moe_dp_size", "moe_tp_size"), 1) | dict.fromkeys(RANKS, 0)
)


def prepare(target: str) -> Any:
    """What a scheduler of one process does before it builds a model; returns its arguments."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.server_args import prepare_server_args, set_global_server_args_for_scheduler

    flags = ["--model-path", target, "--device", "cpu", "--dtype", "float32", "--attention-backend", "triton"]
    arguments = prepare_server_args(flags)
    set_global_server_args_for_scheduler(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    init_distributed_environment(1, 0, address, 0, "gloo")
    get_parallel().override_permanently(**ALONE)
    initialize_model_parallel()
    initialize_dp_attention(arguments)
    return arguments


class Causal(torch.nn.Module):
    """Attention over one sequence without a cache, where SGLang's needs a batch and a pool."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, scale: float) -> None:
        super().__init__()
        self.shape = (heads, kv_heads, head_dim)
        self.scale = scale

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: object) -> torch.Tensor:
        """(tokens, heads x head_dim), as RadixAttention's."""
        heads, kv_heads, head_dim = self.shape
        tokens = len(query)
        query = query.view(tokens, heads, head_dim).transpose(0, 1)
        key, value = (
            part.view(tokens, kv_heads, head_dim).transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
            for part in (key, value)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        return mixed.transpose(0, 1).reshape(tokens, heads * head_dim)


class CausalLatent(torch.nn.Module):
    """The same for latent attention as a server computes it: one key for all heads, which is also the value."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: object, **rest: torch.Tensor
    ) -> torch.Tensor:
        """(tokens, heads, kept numbers), as RadixAttention's."""
        query = torch.cat([query, rest["q_rope"]], -1) if "q_rope" in rest else query
        key = torch.cat([key, rest["k_rope"]], -1) if "k_rope" in rest else key
        heads = query.shape[1]
        key, value = (part.transpose(0, 1).expand(heads, -1, -1) for part in (key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key, value, is_causal=True, scale=self.scale
        )
        return mixed.transpose(0, 1)


def build(folder: Path) -> Any:
    """SGLang's model of a draft, with its weights."""
    from sglang.srt.models.registry import ModelRegistry
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    model_class, _ = ModelRegistry.resolve_model_cls(json.loads((folder / "config.json").read_text())["architectures"])
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    if not own_embedding(config):  # the target's takes its place
        model.model.embed_tokens.weight.data.zero_()
    model.load_weights(load_file(folder / "model.safetensors").items())
    return model


def own_embedding(config: Any) -> bool:
    """Whether SGLang leaves the draft's in place: where it is not as wide as the target's."""
    return bool(getattr(config, "target_hidden_size", config.hidden_size) != config.hidden_size)


@torch.no_grad()
def ask(
    model: Any, features: torch.Tensor, tokens: torch.Tensor, targets_embeds: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The first step's logits, and what it leaves to the next one, at every position."""
    embeds = model.model.embed_tokens(tokens) if own_embedding(model.config) else targets_embeds
    states = len(model.config.eagle_config["eagle_aux_hidden_state_layer_ids"])
    features = features[:, : states * getattr(model.config, "target_hidden_size", model.config.hidden_size)]
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    for layer in getattr(model.model, "layers", None) or [model.model.midlayer]:
        attention = layer.self_attn
        if hasattr(attention, "attn_mqa"):
            attention.attn_mqa = CausalLatent(attention.attn_mqa.scaling)
            attention.dispatch_attn_forward_method = lambda _: AttnForwardMethod.MLA
        else:
            heads = (attention.num_heads, attention.num_kv_heads, attention.head_dim)
            attention.attn = Causal(*heads, attention.attn.scaling)
    info = SimpleNamespace(hidden_states=features)
    batch = SimpleNamespace(spec_info=info, mm_input_embeds=None, attn_cp_metadata=None)
    normed, (fed_back,) = model.model(None, torch.arange(len(features)), batch, input_embeds=embeds)
    logits = torch.nn.functional.linear(normed, model.lm_head.weight[: model.config.draft_vocab_size])
    return {"logits": logits, "fed_back": fed_back.clone()}


def main() -> None:
    """Load each folder and ask it."""
    target, inputs, out, *folders = sys.argv[1:]
    prepare(target)
    torch.set_default_dtype(torch.float32)
    given = load_file(inputs)
    for number, folder in enumerate(folders):
        model = build(Path(folder))
        found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        if model.hot_token_id is not None:
            found["hot_token_id"] = model.hot_token_id
        found |= ask(model, given["features"], given["tokens"], given["embeds"])
        save_file(found, Path(out) / f"{number}.safetensors")


if __name__ == "__main__":
    main()
