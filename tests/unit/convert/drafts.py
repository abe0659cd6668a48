"""A target with a tokenizer, Train's artifact for it, and checkpoints with planted faults."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import CONFIG, HELD_OUT, PROMPTS, REPORT, VOCABULARY, WEIGHTS
from eagle3_api.jobs import ConvertConfig, ConvertResult, ObjectReference, PublishConfig, TrainResult
from eagle3_draft.convert import run
from eagle3_draft.data.inputs import inherited
from eagle3_draft.features import Sample
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model.config import DraftConfig, draft_config
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from eagle3_draft.storage import artifacts
from eagle3_draft.train import held_out
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher, step_sums
from eagle3_draft.train.vocabulary import Vocabulary, choose
from published.kinds import Kind
from published.layouts import Original
from unit.train import corpus

TRAINED_KEY, KEY, DATA_DIGEST = "7e" * 32, "c0" * 32, "da" * 32
#: The command of somebody else's, with a word that is nobody's business.
TRAINER = ["train", "--api-key=word"]
DRAFT_VOCABULARY = 64

#: Changes a checkpoint's configuration and tensors in place.
Fault = Callable[[dict[str, Any], dict[str, Tensor]], object]


@dataclass(frozen=True)
class Made:
    """What there is to convert."""

    target: Path
    trained: Path

    @property
    def sizes(self) -> DraftConfig:
        """The draft's, as the trainer left them."""
        return DraftConfig.model_validate_json((self.trained / CONFIG).read_bytes())


def make(folder: Path, dtype: torch.dtype = torch.float32) -> Made:
    """Write a target and a draft for it, as the trainer would leave it."""
    torch.manual_seed(0)
    target = corpus.new_target()
    samples = [corpus.converse(target) for _ in range(3)]
    target.to(dtype).save_pretrained(folder / "target")
    corpus.new_tokenizer().save_pretrained(folder / "target")
    sizes = draft_config(
        json.loads((folder / "target" / CONFIG).read_text()),
        layers=corpus.LAYERS,
        draft_vocabulary_size=DRAFT_VOCABULARY,
    )
    train(folder / "trained", sizes, folder / "target", samples)
    return Made(folder / "target", folder / "trained")


def with_switches(made: Made, folder: Path, switches: Mapping[str, object]) -> Made:
    """Another draft for the same target, whose configuration differs in these fields."""
    sizes = made.sizes.model_copy(update=dict(switches))
    read = len(sizes.layers) * sizes.target_hidden_size
    samples = [
        replace(sample, hidden=sample.hidden[:, :read].clone()) for sample in held_out.read(made.trained).samples
    ]
    train(folder, sizes, made.target, samples)
    return Made(made.target, folder)


def for_architecture(made: Made, folder: Path, architecture: str) -> Made:
    """The draft, and a target whose configuration says that it is of another architecture."""
    shutil.copytree(made.target, folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"architectures": [architecture]}))
    return Made(folder, made.trained)


def train(trained: Path, sizes: DraftConfig, target: Path, samples: list[Sample]) -> None:
    """Write Train's artifact of a draft with random weights."""
    trained.mkdir()
    draft = Draft(sizes)
    draft.initialise(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    embedding, weights = Target(target).embedding(), dict(draft.state_dict())
    if sizes.hidden_size != sizes.target_hidden_size:
        embedding = weights["embed_tokens.weight"] = torch.randn(sizes.vocabulary_size, sizes.hidden_size)
    save_file(weights, trained / WEIGHTS)
    vocabulary = choose(torch.randint(0, 9, (corpus.VOCABULARY,)), DRAFT_VOCABULARY, [1, 2])
    vocabulary.save(trained / VOCABULARY)
    (trained / CONFIG).write_text(json.dumps(sizes.to_json()))
    proposals = corpus.proposed(draft, vocabulary, samples, embedding, steps=2)
    held_out.save(trained / HELD_OUT, samples, torch.float32, proposals)
    (trained / PROMPTS).write_text('{"messages": [], "input_ids": [1, 3]}\n{"messages": [], "input_ids": [1, 4]}\n')
    told = {"config": {"epochs": 3, "trainer": TRAINER, "initFrom": None, "folder": "/somewhere"}}
    (trained / REPORT).write_text(json.dumps(told))
    result = TrainResult(
        steps=1,
        tokens=1,
        loss=1.0,
        accuracy=accuracy(draft, vocabulary, samples, target, embedding),
        expected_accept_lengths=[1.5, 1.75],
        held_out=3,
        vocabulary_size=DRAFT_VOCABULARY,
        vocabulary_coverage=1.0,
        tokens_per_second=1.0,
    )
    artifacts.publish(
        trained,
        stage="train",
        key=TRAINED_KEY,
        made_from={"features": corpus.FEATURES_KEY, "target": target_digest(target)}
        | inherited({"data": DATA_DIGEST, "target": target_digest(target), "maxLength": "256"}),
        numbers=result.to_json(),
        provenance={"torch": torch.__version__, "node": "a", "extraction.sglang": "0.5.21", "extraction.node": "b"},
    )


@torch.no_grad()
def accuracy(
    draft: Draft, vocabulary: Vocabulary, samples: list[Sample], target: Path, embedding: Tensor, steps: int = 2
) -> list[float]:
    """As the trainer measures it, by its plain loss."""
    batch = pack(samples, steps)
    labels = Teacher(Target(target).head().float(), vocabulary.ids).soft_labels(batch.teaching)
    logits = draft(batch.features, embedding.float()[batch.input_ids], batch.documents, batch.wanted)
    sums = step_sums(logits, labels, batch.label_rows, vocabulary.ids)
    shares: list[float] = (sums.right / sums.labelled).tolist()
    return shares


def convert_config(made: Made, folder: Path, **changes: Any) -> ConvertConfig:
    """The conversion of the trained draft."""
    fields: dict[str, Any] = {
        "owner": ObjectReference(namespace="n", name="draft", uid="u"),
        "key": KEY,
        "folder": str(folder),
        "trained": str(made.trained),
        "trained_key": TRAINED_KEY,
        "target": str(made.target),
        "target_digest": target_digest(made.target),
        "layers": corpus.LAYERS,
        "sglang_version": "0.5.21",
        "context_length": 128,
        "arguments": ["--dtype", "float32"],
    }
    return ConvertConfig(**(fields | changes))


def adopt_config(made: Made, folder: Path, checkpoint: Path, **changes: Any) -> ConvertConfig:
    """The conversion of a checkpoint from elsewhere."""
    return convert_config(made, folder, trained=None, trained_key=None, checkpoint=str(checkpoint), **changes)


def adopt(made: Made, folder: Path, checkpoint: Path, **changes: Any) -> ConvertResult:
    """Convert a checkpoint from elsewhere without asking it anything: its weights are random, and would be refused."""
    return run(adopt_config(made, folder, checkpoint, **changes), load=None)


def publish_config(converted: tuple[Path, ConvertResult], folder: Path, address: str, **changes: Any) -> PublishConfig:
    """The push of a converted draft to a registry."""
    fields: dict[str, Any] = {
        "owner": ObjectReference(namespace="n", name="draft", uid="u"),
        "key": "b0" * 8,
        "folder": str(folder),
        "converted": str(converted[0]),
        "converted_key": KEY,
        "draft": converted[1].digest,
        "reference": f"{address}/llm/tiny-eagle3",
        "plain_http": True,
    }
    return PublishConfig(**(fields | changes))


def with_fault(converted: Path, folder: Path, fault: Fault) -> Path:
    """A copy of a converted draft in which something is wrong."""
    folder.mkdir()
    config = json.loads((converted / CONFIG).read_text())
    tensors = load_file(converted / WEIGHTS)
    fault(config, tensors)
    (folder / CONFIG).write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS)
    return folder


def copy(made: Made, folder: Path) -> Made:
    """The same draft once more, to be spoiled."""
    shutil.copytree(made.trained, folder)
    return Made(made.target, folder)


def say(trained: Path, **numbers: Any) -> None:
    """Change what Train's artifact says of itself, as its trainer would have published it."""
    manifest = artifacts.read(trained)
    artifacts.publish(
        trained,
        stage="train",
        key=manifest.key,
        made_from=manifest.made_from,
        numbers=manifest.numbers | numbers,
        provenance=manifest.provenance,
    )


def draft_of(sizes: DraftConfig, weights: Mapping[str, Tensor]) -> Draft:
    """A draft with these weights, and no others."""
    draft = Draft(sizes)
    draft.load_state_dict(dict(weights))
    return draft


def original_of(made: Made) -> Original:
    """The trained draft, in neutral terms."""
    return Original(
        weights=load_file(made.trained / WEIGHTS),
        ids=Vocabulary.load(made.trained / VOCABULARY).ids,
        sizes=as_transformers(made.sizes),
        layers=tuple(made.sizes.layers),
        embedding=Target(made.target).embedding(),
    )


def as_transformers(sizes: DraftConfig) -> dict[str, Any]:
    """Sizes of a draft's layer, as Transformers spells them; what another draft need not say is left out."""
    said = {
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": sizes.rms_norm_eps,
        "max_position_embeddings": sizes.max_position_embeddings,
        "vocab_size": sizes.vocabulary_size,
    }
    if sizes.head_dim * sizes.heads != sizes.hidden_size:
        said["head_dim"] = sizes.head_dim
    if sizes.target_hidden_size != sizes.hidden_size:
        said["target_hidden_size"] = sizes.target_hidden_size
    if sizes.latent is not None:
        said |= sizes.latent.model_dump()
    if sizes.rope_scaling is not None:
        said["rope_scaling"] = sizes.rope_scaling.model_dump(exclude_none=True)
    return said


def original_of_kind(made: Made, kind: Kind) -> tuple[Original, Draft]:
    """A draft of another kind for the same target, with random weights: in neutral terms, and to be asked."""
    plain = original_of(made)
    sizes = made.sizes.model_copy(update=dict(kind.switches))
    draft = Draft(sizes)
    draft.initialise(1)
    ids, embedding = plain.ids, plain.embedding
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.1)
        if sizes.draft_vocabulary_size == sizes.vocabulary_size:
            ids = torch.arange(sizes.vocabulary_size)
        if kind.shares_head:
            draft.lm_head.weight.copy_(Target(made.target).head())
    if sizes.hidden_size != sizes.target_hidden_size:
        embedding = torch.randn(sizes.vocabulary_size, sizes.hidden_size, generator=noise)
    original = Original(dict(draft.state_dict()), ids, as_transformers(sizes), tuple(sizes.layers), embedding)
    return original, draft
