# mypy: ignore-errors
"""Drafts made by the public trainers' own code: by hand, in an environment that has the tool.

    python tests/published/tools.py speculators|specforge OUT
    python tests/published/tools.py load FOLDER SAID

The folder OUT receives the checkpoint as the tool's own ``save`` leaves it, small and random, and beside it OUT.safetensors: the
features of a text, the embeddings of its tokens, and what the tool's own forward says to them at each step of its unroll. The
folders under ``made`` (without the copy of its own code that speculators puts there) were written by speculators 0.9.0 and specforge 0.2.0, with torch 2.13 and transformers 5.12; the tests read and convert
them and hold this product's forward against what the tools said. Nothing of the tools is needed for that.

``load`` is the way back: speculators' own loader loads a folder that ``eagle3-draft export`` wrote, and is asked what SAID says; a
test that takes a minute does so (``unit.convert.test_tools``).

Neither package needs all of its requirements for this: ``pip install --no-deps`` of either, and what its import then asks for.
"""
# Types are not checked: the tools are not installed where they are.

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TOKENS, STEPS, TARGET_VOCABULARY, DRAFT_VOCABULARY, HIDDEN, LAYERS = 24, 3, 80, 64, 16, (1, 2, 4)
LAYER: dict[str, Any] = {
    "vocab_size": TARGET_VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
}


def main() -> None:
    """Write a checkpoint and what its tool says."""
    tool, out = sys.argv[1], Path(sys.argv[2])
    if tool == "load":
        load(out, Path(sys.argv[3]))
        return
    torch.manual_seed(0)
    ids = torch.randperm(TARGET_VOCABULARY)[:DRAFT_VOCABULARY].sort().values
    offsets = ids - torch.arange(DRAFT_VOCABULARY)
    members = torch.zeros(TARGET_VOCABULARY, dtype=torch.bool).index_fill(0, ids, True)
    features = torch.randn(TOKENS, len(LAYERS) * HIDDEN)
    tokens = torch.randint(0, TARGET_VOCABULARY, (TOKENS + 1,))
    said, embedding = {"speculators": speculators, "specforge": specforge}[tool](
        out, offsets, members, features, tokens
    )
    embeds = embedding[tokens]
    save_file({"features": features, "embeds": embeds, "logits": torch.stack(said)}, out.with_suffix(".safetensors"))


def filled(model: torch.nn.Module) -> torch.nn.Module:
    """Weights like a trained draft's, rounded to what is saved."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_((1 + 0.2 * noise if "norm" in name else 0.3 * noise).bfloat16())
    return model.eval()


@torch.no_grad()
def speculators(
    out: Path, offsets: Tensor, members: Tensor, features: Tensor, tokens: Tensor
) -> tuple[list[Tensor], Tensor]:
    """By its own classes of configuration and model, saved by its ``save_pretrained``."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    proposal = GreedyTokenProposalConfig(speculative_tokens=STEPS)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=LlamaConfig(**LAYER, attn_implementation="eager"),
        draft_vocab_size=DRAFT_VOCABULARY,
        norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=[layer + 1 for layer in LAYERS],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=verifier,
        ),
    )
    model: Any = filled(Eagle3DraftModel(config))
    model.load_vocab_mappings(members, offsets)
    said: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, logits: said.append(logits[0].float().clone()))
    model(features[None], tokens[None, 1:], torch.zeros(1, TOKENS, dtype=torch.long), ttt_steps=STEPS)
    model.to(torch.bfloat16).save_pretrained(out)
    return said, model.embed_tokens.weight.detach().float()


@torch.no_grad()
def specforge(
    out: Path, offsets: Tensor, members: Tensor, features: Tensor, tokens: Tensor
) -> tuple[list[Tensor], Tensor]:
    """By its own model class; its training state, written as its controller does, and from that its own export for SGLang."""
    from specforge.export.to_sglang import export_to_sglang
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    from transformers import LlamaConfig

    settings = LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCABULARY}
    settings |= {"tie_word_embeddings": False, "model_type": "llama"}
    eagle = {"eagle_aux_hidden_state_layer_ids": list(LAYERS), "use_aux_hidden_state": True}
    model: Any = filled(LlamaForCausalLMEagle3(LlamaConfig(**settings, eagle_config=eagle)))
    model.d2t.copy_(offsets)
    model.t2d.copy_(members)
    mask = model.prepare_decoder_attention_mask(torch.ones(1, TOKENS, dtype=torch.bool), features[None], 1, TOKENS, 0)
    states, cache, said = model.project_hidden_states(features[None]), [[], []], []
    fed = tokens[None, 1:]
    for _ in range(STEPS):
        states = model.backbone(
            input_embeds=model.embed_input_ids(fed),
            hidden_states=states,
            cache_hidden=cache,
            attention_mask=mask,
            position_ids=torch.arange(TOKENS)[None],
        )
        said.append(model.compute_logits(states)[0].float())
        fed = torch.cat([fed[:, 1:], fed.new_zeros(1, 1)], 1)
    state = {
        name: value.bfloat16() if value.is_floating_point() else value for name, value in model.state_dict().items()
    }
    state = {name: value for name, value in state.items() if "embed" not in name}
    training = out / "training"
    training.mkdir(parents=True, exist_ok=True)
    torch.save(
        {"draft_state_dict": state, "global_step": 3, "epoch": 0, "strategy": "eagle3", "run_id": "a", "world_size": 1},
        training / "training_state.pt",
    )
    (training / "config.json").write_text(json.dumps(settings | {"eagle_config": eagle}))
    export_to_sglang(str(training), str(training / "config.json"), str(out))
    return said, model.embed_tokens.weight.detach().float()


@torch.no_grad()
def load(folder: Path, said: Path) -> None:
    """Print, step by step, how far speculators' own forward of an exported draft is from what was said, and how large that is."""
    from speculators import SpeculatorModel, SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(folder, config=config)
    stored, filled = load_file(folder / "model.safetensors"), model.state_dict()
    assert all(torch.equal(filled[name], tensor) for name, tensor in stored.items())
    rest = filled.keys() - stored.keys()
    assert rest == {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}, rest
    model = model.float().eval()
    expected = load_file(said)
    model.embed_tokens = torch.nn.Embedding.from_pretrained(expected["embeds"][1:])
    found: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, logits: found.append(logits[0]))
    tokens = torch.arange(TOKENS)[None]
    model(expected["features"][None], tokens, torch.zeros_like(tokens), ttt_steps=STEPS)
    apart = []
    for step, (here, there) in enumerate(zip(found, expected["logits"], strict=True)):
        known = TOKENS - step
        apart.append([float((here[:known] - there[:known]).abs().max()), float(there.abs().mean())])
    print(json.dumps(apart))


if __name__ == "__main__":
    main()
