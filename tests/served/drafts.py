"""A draft for the tiny target, trained for a minute by the plainest of loops.

The product trains better ones; its own tests see to that. This one is there to be measured.
"""

import hashlib
import json
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import once
from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.draft import Draft
from tiny.flags import AUXILIARY_LAYERS

STEPS = 150
LEARNING_RATE = 2e-3
CONVERSATIONS_PER_STEP = 8
UNROLL = 3


def trained(tiny: Path) -> Path:
    """A draft that the tiny target accepts about three tokens a step of; made once a machine."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + str(tiny.name).encode()).hexdigest()[:12]
    return once.made(f"tiny-draft-{digest}", lambda folder: _train(tiny, folder))


def _train(tiny: Path, folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    target = AutoModelForCausalLM.from_pretrained(tiny / "models" / "tiny-target", dtype=torch.float32)
    target.requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(tiny / "models" / "tiny-target")
    vocabulary = target.config.vocab_size
    config = draft_config(target.config.to_dict(), layers=list(AUXILIARY_LAYERS), draft_vocabulary_size=vocabulary)
    draft = Draft(config)
    draft.initialise(0)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=LEARNING_RATE)
    lines = (tiny / "data" / "train.jsonl").read_text().splitlines()
    samples = [
        torch.tensor(tokenizer.apply_chat_template(json.loads(line)["messages"], return_dict=False)) for line in lines
    ]
    for step in range(STEPS):
        first = step * CONVERSATIONS_PER_STEP
        chosen = [samples[(first + i) % len(samples)] for i in range(CONVERSATIONS_PER_STEP)]
        loss = _loss(draft, target, chosen)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = {name: value.detach().contiguous() for name, value in draft.state_dict().items()}
    weights |= {"d2t": torch.zeros(vocabulary, dtype=torch.int64), "t2d": torch.ones(vocabulary, dtype=torch.bool)}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(_served(config.to_json(), target.config.to_dict()), indent=1))


def _loss(draft: Draft, target: torch.nn.Module, chosen: list[torch.Tensor]) -> torch.Tensor:
    """Cross-entropy of each step's proposals against the target's own choices."""
    features, embeds, wanted_tokens, lengths = [], [], [], []
    for ids in chosen:
        out = target(input_ids=ids[None], output_hidden_states=True)
        # hidden_states[0] is the embedding
        features.append(torch.cat([out.hidden_states[layer + 1][0] for layer in draft.config.layers], -1))
        embeds.append(out.hidden_states[0][0])
        wanted_tokens.append(out.logits[0].argmax(-1))
        lengths.append(len(ids))
    ends = torch.tensor(lengths).cumsum(0)
    ends_of_rows = ends.repeat_interleave(torch.tensor(lengths))
    rows = torch.arange(int(ends[-1]))
    wanted = [rows[rows + 1 + step < ends_of_rows] for step in range(UNROLL)]
    choices = torch.cat(wanted_tokens)
    steps = draft(torch.cat(features), torch.cat(embeds), lengths, wanted)
    losses = [
        F.cross_entropy(logits, choices[at + 1 + step])
        for step, (logits, at) in enumerate(zip(steps, wanted, strict=True))
    ]
    return torch.stack([0.8**step * loss for step, loss in enumerate(losses)]).sum()


def _served(draft: dict[str, object], target: dict[str, object]) -> dict[str, object]:
    """The draft's config.json for SGLang: the target's, but for what a draft has of its own."""
    shared = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
    )
    return {name: target[name] for name in shared} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": draft["draftVocabularySize"],
        "target_hidden_size": target["hidden_size"],
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "max_position_embeddings": target["max_position_embeddings"],
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": draft["ropeTheta"]},
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": draft["layers"], "use_aux_hidden_state": True},
    }
