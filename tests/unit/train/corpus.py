"""A small target with random weights, and the features of conversations whose answers it wrote itself, greedily.

Untrained, it runs into loops, which a draft learns in a few steps.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-untyped]
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eagle3_api.artifacts import CONFIG, PROMPTS, WEIGHTS
from eagle3_api.artifacts import VOCABULARY as MAP
from eagle3_api.features import TeacherKind
from eagle3_api.jobs import ObjectReference, TrainConfig
from eagle3_draft.data.tokenizer_files import tokenizer_digest
from eagle3_draft.features import Features, FeatureWriter, Header, Sample, Split, teach
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from eagle3_draft.train import held_out
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.learning import Learning
from eagle3_draft.train.loss import known_rows
from eagle3_draft.train.portions import Portion
from eagle3_draft.train.vocabulary import Vocabulary

VOCABULARY, HIDDEN, END = 150, 32, 2
LAYERS = [0, 1, 2]
FEATURES_KEY = "fe" * 32


@dataclass(frozen=True)
class Corpus:
    """A target and its features on the disk."""

    target: Path
    features: Path

    @property
    def target_digest(self) -> str:
        """As Inspect reports it."""
        return target_digest(self.target)


class Unnoticed(Sample):
    """A sample whose numbers nobody looks at when it is written: extraction leaves out what is not finite."""

    def is_finite(self) -> bool:
        """So it says."""
        return True


def make(
    folder: Path,
    *,
    train: int = 12,
    held_out: int = 4,
    seed: int = 0,
    spoil: int | None = None,
    teacher: TeacherKind = "LastState",
) -> Corpus:
    """Write a target and its features.

    Args:
        folder: for both.
        train, held_out: conversations.
        seed: of the weights and of the questions.
        spoil: a train conversation whose hidden states get a NaN.
        teacher: in which form what the target says is stored.
    """
    torch.manual_seed(seed)
    model = new_target()
    model.save_pretrained(folder / "target")
    new_tokenizer().save_pretrained(folder / "target")
    samples = [converse(model, turns=1 + number % 2, teacher=teacher) for number in range(train + held_out)]
    if spoil is not None:
        samples[spoil].hidden[3, 5] = float("nan")
        samples[spoil] = Unnoticed(**vars(samples[spoil]))
    corpus = Corpus(folder / "target", folder / "features")
    write_features(corpus, samples[:train], samples[train:], teacher=teacher)
    return corpus


def of_one_layer(corpus: Corpus, folder: Path) -> Corpus:
    """The same corpus with the states of its first layer alone."""
    whole, narrow = Features.open(corpus.features), Corpus(corpus.target, folder)
    train, held_out = (
        [replace(samples[i], hidden=samples[i].hidden[:, :HIDDEN].clone()) for i in range(len(samples))]
        for samples in (whole.train, whole.held_out)
    )
    write_features(narrow, train, held_out, layers=LAYERS[:1])
    return narrow


def new_target() -> Any:
    """A random Llama of four layers, of Transformers."""
    build: Any = LlamaForCausalLM
    model = build(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.1,
            bos_token_id=1,
            eos_token_id=END,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(10)  # a target that is sure of what it says
    return model.eval()


def new_tokenizer() -> Any:
    """One token a word; a chat template that ends where the assistant begins with the word w9."""
    words = {"<unk>": 0, "<s>": 1, "</s>": END, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    build: Any = PreTrainedTokenizerFast
    tokenizer = build(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"
    )
    return tokenizer


@torch.no_grad()
def converse(model: Any, *, turns: int = 1, answer: int = 12, teacher: TeacherKind = "LastState") -> Sample:
    """A conversation: random questions, greedy answers, and the target's states over all of it."""
    tokens, mask = [1], [0]
    for _ in range(turns):
        question = torch.randint(3, VOCABULARY, (int(torch.randint(2, 7, ())),)).tolist()
        tokens, mask = tokens + question, mask + [0] * len(question)
        for _ in range(answer):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
            mask.append(1)
    states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return Sample(
        input_ids=torch.tensor(tokens, dtype=torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.uint8),
        hidden=torch.cat([states[layer + 1][0] for layer in LAYERS], -1),
        teaching=teach(teacher, states[-1][0].clone(), model.lm_head, VOCABULARY),
    )


def write_features(corpus: Corpus, train: list[Sample], measured: list[Sample], **header: Any) -> None:
    """Publish a feature store with prompts."""
    folder = corpus.features
    fields: dict[str, Any] = {
        "layers": LAYERS,
        "hidden_size": HIDDEN,
        "dtype": "fp32",
        "teacher": "LastState",
        "vocabulary_size": VOCABULARY,
        "tokenizer_digest": tokenizer_digest(corpus.target),
        "chat_template_digest": "c" * 64,
    }
    writer = FeatureWriter(folder, Header(**(fields | header)))
    for split, samples in ((Split.TRAIN, train), (Split.HELD_OUT, measured)):
        writer.write(split, 0, [sample.input_ids.tolist() for sample in samples], samples)
    (folder / PROMPTS).write_text('{"messages": [{"role": "user", "content": "3 4"}], "input_ids": [1, 3, 4]}\n')
    writer.publish(key=FEATURES_KEY, made_from={"target": corpus.target_digest}, numbers={}, provenance={})


def proposed_by(trained: Path, corpus: Corpus, steps: int) -> Tensor:
    """(tokens, steps) int32: what a draft that was trained proposes on its held-out conversations."""
    draft = Draft(DraftConfig.model_validate_json((trained / CONFIG).read_bytes()))
    weights = load_file(trained / WEIGHTS)
    embedding = weights.pop("embed_tokens.weight", Target(corpus.target).embedding())
    draft.load_state_dict(weights)
    samples = list(Features.open(corpus.features).held_out)
    return proposed(draft, Vocabulary.load(trained / MAP), samples, embedding, steps)


@torch.no_grad()
def proposed(draft: Draft, vocabulary: Vocabulary, samples: list[Sample], embedding: Tensor, steps: int) -> Tensor:
    """(tokens, steps) int32: what a trainer records of a draft, by the plain forward."""
    batch = pack(samples, steps)
    logits = draft(batch.features, embedding.float()[batch.input_ids], batch.documents, batch.wanted)
    of_steps = [vocabulary.ids[of_step.argmax(-1)] for of_step in logits]
    return batch.table(of_steps, missing=held_out.NONE).to(torch.int32)


def step_on(learning: Learning, *batches: Batch, rate: float, notes: Tensor) -> Tensor:
    """An optimizer step on batches that are on its device, each in a pass of its own: what ``Learning.step`` returns."""
    answers = [learning.teacher.labels(batch.teaching) for batch in batches]
    known = [known_rows(of_batch, batch.label_rows) for of_batch, batch in zip(answers, batches, strict=True)]
    labelled = sum(len(batch.label_rows[0]) for batch in batches)
    counts = torch.cat([torch.stack(known).sum(0), torch.tensor([labelled], device=notes.device)])
    portions = [Portion(batch, counts) for batch in batches]
    return learning.step(portions, len(portions), rate, notes)


def train_config(corpus: Corpus, out: Path, **changes: Any) -> TrainConfig:
    """A short training on a corpus."""
    fields: dict[str, Any] = {
        "owner": ObjectReference(namespace="n", name="draft", uid="u"),
        "key": "4e" * 32,
        "folder": str(out / "draft"),
        "scratch": str(out / "scratch"),
        "features": str(corpus.features),
        "features_key": FEATURES_KEY,
        "target": str(corpus.target),
        "target_digest": corpus.target_digest,
        "layers": LAYERS,
        "vocabulary_size": 64,
        "epochs": 2,
        "tokens_per_step": 80,
        "learning_rate": 3e-3,
        "unroll_steps": 3,
        "seed": 1,
        "checkpoint_interval": 600.0,
    }
    return TrainConfig(**(fields | changes))
