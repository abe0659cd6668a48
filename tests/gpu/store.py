"""A target and a feature store of any size, without a model: what a GPU's own tests and benchmarks train on.

Conversations walk through an alphabet of tokens, mostly as a fixed rule says, so that a draft has something to learn. The
hidden states of a token are a random row of its own, and what the target says after it is one other token.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3_api.artifacts import PROMPTS
from eagle3_api.features import TeacherKind
from eagle3_draft.data.tokenizer_files import tokenizer_digest
from eagle3_draft.features import FeatureWriter, Header, Sample, Split, Teaching, mapped, plan_shards, teach
from eagle3_draft.model.config import DraftConfig
from unit.train.corpus import FEATURES_KEY, Corpus

#: How sure the target is of its next token: the difference of its logit to all others', about.
CERTAINTY = 20.0

#: The target's next token is so many further in the alphabet.
STRIDE = 3

#: One time in so many the conversation goes on with another token than the target's.
SURPRISE = 10

#: Tokens of a question; the answer is the rest.
QUESTION = 8


@dataclass(frozen=True)
class Target:
    """A target's two matrices, and what it makes of each token of the alphabet."""

    embedding: Tensor  # (vocabulary, hidden)
    head: Tensor  # (vocabulary, hidden)
    states: Tensor  # (alphabet, layers x hidden)
    teaching: Teaching  # (alphabet, ...)


def make(
    folder: Path,
    draft: DraftConfig,
    *,
    train: Sequence[int],
    held_out: Sequence[int],
    alphabet: int,
    teacher: TeacherKind = "LastState",
) -> Corpus:
    """Write a target for a draft's sizes, and its features in bf16.

    Args:
        folder: for both.
        draft: whose target it is.
        train, held_out: tokens of each conversation.
        alphabet: how many of the target's tokens are used.
        teacher: in which form what the target says is stored.
    """
    torch.manual_seed(0)
    sizes = (draft.vocabulary_size, draft.target_hidden_size)
    head = (torch.randn(sizes) / draft.target_hidden_size**0.5).to(torch.bfloat16)
    following = (torch.arange(alphabet) + STRIDE) % alphabet
    target = Target(
        embedding=torch.randn(sizes, dtype=torch.bfloat16),
        head=head,
        states=torch.randn(alphabet, len(draft.layers) * draft.target_hidden_size, dtype=torch.bfloat16),
        teaching=teach(teacher, head[following] * CERTAINTY, lambda rows: rows @ head.T, len(head)),
    )
    corpus = Corpus(folder / "target", folder / "features")
    _write_target(corpus.target, draft, target)
    header = Header(
        layers=draft.layers,
        hidden_size=draft.target_hidden_size,
        dtype="bf16",
        teacher=teacher,
        vocabulary_size=draft.vocabulary_size,
        tokenizer_digest=tokenizer_digest(corpus.target),
        chat_template_digest="c" * 64,
    )
    writer = FeatureWriter(corpus.features, header)
    bytes_per_token = 2 * (len(draft.layers) + 1) * draft.target_hidden_size
    for split, lengths in ((Split.TRAIN, train), (Split.HELD_OUT, held_out)):
        samples = _conversations(lengths, target)
        for number, shard in enumerate(plan_shards(lengths, bytes_per_token)):
            written = list(islice(samples, len(shard)))
            writer.write(split, number, [sample.input_ids.tolist() for sample in written], written)
    (corpus.features / PROMPTS).write_text(
        '{"messages": [{"role": "user", "content": "3 4"}], "input_ids": [1, 3, 4]}\n'
    )
    writer.publish(key=FEATURES_KEY, made_from={"target": corpus.target_digest}, numbers={}, provenance={})
    return corpus


def _conversations(lengths: Iterable[int], target: Target) -> Iterator[Sample]:
    alphabet = len(target.states)
    for length in lengths:
        surprise = torch.randint(0, SURPRISE, (length,)) == 0
        jumps = torch.where(surprise, torch.randint(0, alphabet, (length,)), STRIDE)
        ids = jumps.cumsum(0) % alphabet
        mask = torch.ones(length, dtype=torch.uint8)
        mask[:QUESTION] = 0
        yield Sample(
            input_ids=ids.to(torch.int32),
            loss_mask=mask,
            hidden=target.states[ids],
            teaching=mapped(target.teaching, itemgetter(ids)),
        )


def _write_target(folder: Path, draft: DraftConfig, target: Target) -> None:
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": draft.target_hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": max(draft.layers) + 2,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.kv_heads,
        "head_dim": draft.head_dim,
        "vocab_size": draft.vocabulary_size,
        "max_position_embeddings": draft.max_position_embeddings,
        "rms_norm_eps": draft.rms_norm_eps,
        "rope_theta": draft.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if draft.latent is not None:
        config |= draft.latent.model_dump()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")  # part of a target's digest, and never read
    save_file(
        {"model.embed_tokens.weight": target.embedding, "lm_head.weight": target.head}, folder / "model.safetensors"
    )
