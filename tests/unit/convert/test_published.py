"""A draft in any published layout becomes the draft that it was, or is refused with its reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import CONFIG, REPORT, WEIGHTS
from eagle3_api.checkpoints import read_folder, read_form
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, ExitCode
from eagle3_draft.convert import parity, run
from eagle3_draft.errors import StageError
from eagle3_draft.model.config import config_of
from eagle3_draft.model.draft import Draft
from eagle3_draft.train import held_out
from eagle3_draft.train.batches import pack
from published.layouts import LAYOUTS, ROUNDED, SILENT, Original
from unit.convert import drafts
from unit.train import corpus


@torch.no_grad()
def logits(folder: Path, made: drafts.Made) -> Tensor:
    """What a converted draft says to the held-out features, over the target's whole vocabulary."""
    tensors = load_file(folder / WEIGHTS)
    weights = {name: tensor.float() for name, tensor in parity._as_sglang_reads(tensors)}
    draft = drafts.draft_of(config_of(read_form(read_folder(folder)), corpus.LAYERS), weights)
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids.sort().values)
    return said(draft, ids, made)


@torch.no_grad()
def said(draft: Draft, ids: Tensor, made: drafts.Made) -> Tensor:
    embedding = load_file(made.target / "model.safetensors")["model.embed_tokens.weight"].float()
    batch = pack(held_out.read(made.trained).samples, 3)
    steps = draft(batch.features.float(), embedding[batch.input_ids], batch.documents, batch.wanted)
    rows = torch.cat(steps)
    return torch.full((len(rows), corpus.VOCABULARY), float("-inf")).index_copy(1, ids, rows)


@pytest.fixture(scope="module")
def trained(made: drafts.Made, tmp_path_factory: pytest.TempPathFactory) -> ConvertResult:
    return run(drafts.convert_config(made, tmp_path_factory.mktemp("trained") / "out"))


@pytest.fixture(scope="module")
def reference(made: drafts.Made, original: Original) -> Tensor:
    return said(drafts.draft_of(made.sizes, original.weights), original.ids, made)


def rounded(made: drafts.Made, original: Original) -> Draft:
    return drafts.draft_of(made.sizes, {name: weight.half().float() for name, weight in original.weights.items()})


def convert(made: drafts.Made, checkpoint: Path, out: Path, **changes: Any) -> ConvertResult:
    return drafts.adopt(made, out, checkpoint, **changes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_draft_says_after_conversion_what_it_said_before(
    made: drafts.Made, original: Original, reference: Tensor, tmp_path: Path, name: str
) -> None:
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS[name](original, checkpoint)
    result = convert(made, checkpoint, tmp_path / "out")
    if name in ROUNDED:  # fp16 is what EAGLE publishes
        reference = said(rounded(made, original), original.ids, made)
    assert torch.allclose(logits(tmp_path / "out", made), reference, atol=1e-5, rtol=0)
    assert result.layers == result.capture_ids == corpus.LAYERS
    assert [("which layers" in warning) for warning in result.warnings] == [True] * (name in SILENT)
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert report["family"] != "unknown"
    mended = any(check["verdict"] == "mended" for check in report["checks"])
    assert mended == (name not in ("SpecForge", "SpecForge, sharded", "TorchSpec"))


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in (*ROUNDED, "ModelOpt")])
def test_a_published_draft_becomes_byte_for_byte_what_the_trained_one_does(
    made: drafts.Made, original: Original, trained: ConvertResult, tmp_path: Path, name: str
) -> None:
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS[name](original, checkpoint)
    assert convert(made, checkpoint, tmp_path / "out").digest == trained.digest


@pytest.mark.parametrize("name", LAYOUTS)
def test_converting_what_was_converted_changes_nothing(
    made: drafts.Made, original: Original, tmp_path: Path, name: str
) -> None:
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS[name](original, checkpoint)
    first = convert(made, checkpoint, tmp_path / "out")
    assert convert(made, tmp_path / "out", tmp_path / "again").digest == first.digest


# ------------------------------------------------------------------------------------------------- heads


def whole_vocabulary(original: Original) -> Original:
    """The same draft with a head for every token."""
    size = original.sizes["vocab_size"]
    head = torch.randn(size, original.sizes["hidden_size"], generator=torch.Generator().manual_seed(5))
    return Original({**original.weights, "lm_head.weight": head}, torch.arange(size), original.sizes, original.layers)


def publish(folder: Path, draft: Original, drop: tuple[str, ...] = (), **config: Any) -> Path:
    """A folder of SpecForge's kind without some tensors."""
    folder.mkdir()
    eagle = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(draft.layers)}
    (folder / CONFIG).write_text(json.dumps(draft.config(eagle_config=eagle, **config)))
    save_file({name: tensor for name, tensor in draft.weights.items() if name not in drop}, folder / WEIGHTS)
    return folder


@pytest.mark.parametrize(("tied", "matrix"), [(False, "lm_head.weight"), (True, "model.embed_tokens.weight")])
def test_a_draft_that_shares_the_targets_head_gets_it_written_out(
    made: drafts.Made, original: Original, tmp_path: Path, tied: bool, matrix: str
) -> None:
    draft = whole_vocabulary(original)
    checkpoint = publish(
        tmp_path / "shared", draft, ("lm_head.weight",), draft_vocab_size=None, tie_word_embeddings=tied
    )
    result = convert(made, checkpoint, tmp_path / "out")
    written = load_file(tmp_path / "out" / WEIGHTS)["lm_head.weight"]
    assert torch.equal(written, load_file(made.target / "model.safetensors")[matrix])
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert config["draft_vocab_size"] == result.draft_vocabulary_size == corpus.VOCABULARY
    assert config["tie_word_embeddings"] is False


def test_a_draft_that_names_a_head_and_has_none_is_refused(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    checkpoint = publish(tmp_path / "headless", whole_vocabulary(original), ("lm_head.weight",))
    with pytest.raises(StageError, match=r"missing: lm_head\.weight") as no:
        convert(made, checkpoint, tmp_path / "out")
    assert no.value.reason == Reason.CHECKPOINT_INCOMPLETE


def test_weights_that_were_saved_transposed_are_read_in_order(
    made: drafts.Made, original: Original, reference: Tensor, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "transposed"
    checkpoint.mkdir()
    LAYOUTS["EAGLE official"](original, checkpoint)
    state = {
        name: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for name, tensor in original.weights.items()
    }
    torch.save(state | {"d2t": original.offsets, "t2d": original.members}, checkpoint / "pytorch_model.bin")
    convert(made, checkpoint, tmp_path / "out")
    assert torch.allclose(logits(tmp_path / "out", made), reference, atol=1e-5, rtol=0)


def with_embedding(original: Original, embedding: Tensor) -> Original:
    return Original(original.weights, original.ids, original.sizes, original.layers, embedding)


def test_rows_of_an_embedding_that_are_not_the_targets_are_counted_and_said_to_be_lost(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    assert original.embedding is not None
    trained = original.embedding.clone()
    trained[[3, 140]] += 0.05
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS["SpecForge"](with_embedding(original, trained), checkpoint)
    (warning,) = convert(made, checkpoint, tmp_path / "out").warnings
    assert "2 of 150 rows of embed_tokens.weight are not the target's, and are lost" in warning


@pytest.mark.parametrize(
    "copied",
    [
        lambda table: table.bfloat16(),
        lambda table: table.half(),
        torch.zeros_like,
        lambda table: torch.cat([table] * 2),
    ],
    ids=["in bfloat16", "in float16", "never filled", "with more rows"],
)
def test_a_copy_of_the_targets_embedding_loses_nothing(
    made: drafts.Made, original: Original, tmp_path: Path, copied: Callable[[Tensor], Tensor]
) -> None:
    assert original.embedding is not None
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS["SpecForge"](with_embedding(original, copied(original.embedding)), checkpoint)
    assert convert(made, checkpoint, tmp_path / "out").warnings == []


def test_a_speculators_draft_that_says_its_embedding_was_trained_is_warned_of(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS["speculators"](original, checkpoint)
    config = json.loads((checkpoint / CONFIG).read_text())
    (checkpoint / CONFIG).write_text(json.dumps(config | {"embed_requires_grad": True}))
    (warning,) = convert(made, checkpoint, tmp_path / "out").warnings
    assert "embed_requires_grad is true" in warning


# ------------------------------------------------------------------------------------------------- refused


def test_a_head_that_was_cut_by_offsets_is_told_by_its_repeated_rows(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    """Row 10, as TorchSpec's export plants it: names, shapes and map are in order."""
    whole = torch.randn(original.sizes["vocab_size"], original.sizes["hidden_size"])
    cut = {**original.weights, "lm_head.weight": whole[original.offsets].contiguous()}
    checkpoint = tmp_path / "published"
    checkpoint.mkdir()
    LAYOUTS["TorchSpec"](Original(cut, original.ids, original.sizes, original.layers), checkpoint)
    with pytest.raises(StageError, match=r"rows of lm_head\.weight are the row before once more") as no:
        convert(made, checkpoint, tmp_path / "out")
    assert (no.value.code, no.value.reason) == (ExitCode.REFUSED, Reason.VOCABULARY_MAP)


def test_a_sharded_training_checkpoint_is_refused_with_the_tool_that_exports_it(
    made: drafts.Made, original: Original, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".metadata").write_bytes(b"a pickle that is not read")
    (tmp_path / CONFIG).write_text(json.dumps(original.config()))
    with pytest.raises(StageError, match=r"export it first \(TorchSpec: tools/convert_to_hf\.py") as no:
        convert(made, tmp_path, tmp_path / "out")
    assert no.value.reason == Reason.CHECKPOINT_UNREADABLE


Spoil = Callable[[dict[str, Any]], object]

FAULTS: dict[str, tuple[str, Spoil, Reason, str]] = {
    "row 36: speculators with norm_before_residual": (
        "speculators",
        lambda config: config.update(norm_before_residual=True),
        Reason.UNSUPPORTED_DRAFT,
        "norm_before_residual is set",
    ),
    "row 36: speculators that do not say": (
        "speculators",
        lambda config: config.pop("norm_before_residual"),
        Reason.UNSUPPORTED_DRAFT,
        "does not say norm_before_residual",
    ),
    "row 36: another algorithm of speculators": (
        "speculators",
        lambda config: config.update(speculators_model_type="dflash"),
        Reason.UNSUPPORTED_DRAFT,
        "not eagle3",
    ),
    "row 36: P-EAGLE of NeMo": (
        "NeMo Automodel",
        lambda config: config.update(parallel_drafting=True),
        Reason.UNSUPPORTED_DRAFT,
        "parallel_drafting",
    ),
    "row 36: latent attention": (
        "ModelOpt",
        lambda config: config.update(architectures=["Eagle3DeepseekV2ForCausalLM"]),
        Reason.UNSUPPORTED_DRAFT,
        "latent",
    ),
    "row 5: speculators' layers taken for outputs": (
        "speculators",
        lambda config: config.update(eagle_aux_hidden_state_layer_ids=[0, 1, 2]),
        Reason.FEATURE_MISMATCH,
        r"outputs of layers \[-1, 0, 1\] .*which name inputs",
    ),
    "row 5: ModelOpt's other layers": (
        "ModelOpt",
        lambda config: config["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[0, 1, 3]),
        Reason.FEATURE_MISMATCH,
        r"outputs of layers \[0, 1, 3\]",
    ),
    "row 9: nested sizes left out": (
        "speculators",
        lambda config: config.pop("transformer_layer_config"),
        Reason.CONFIG_INVALID,
        "hidden_size",
    ),
    "row 10: another vocabulary": (
        "AngelSlim",
        lambda config: config.update(vocab_size=corpus.VOCABULARY + 2),
        Reason.CONFIG_INVALID,
        "another model",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_published_draft_with_a_fault_is_refused_with_its_reason(
    made: drafts.Made, original: Original, tmp_path: Path, name: str
) -> None:
    layout, spoil, reason, words = FAULTS[name]
    LAYOUTS[layout](original, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    spoil(config)
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(StageError, match=words) as no:
        convert(made, tmp_path, tmp_path / "out")
    assert no.value.reason == reason
    assert no.value.code == ExitCode.REFUSED


def test_a_missing_tensor_is_noticed_in_every_layout(made: drafts.Made, original: Original, tmp_path: Path) -> None:
    lacking = {name: tensor for name, tensor in original.weights.items() if "up_proj" not in name}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        layout(Original(lacking, original.ids, original.sizes, original.layers), folder)
        with pytest.raises(StageError, match=r"missing: midlayer\.mlp\.up_proj\.weight") as no:
            convert(made, folder, tmp_path / "out")
        assert no.value.reason == Reason.CHECKPOINT_INCOMPLETE, name
