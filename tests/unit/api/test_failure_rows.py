"""Each known way to a useless draft that its headers show, planted on a good one: refused with its reason, or mended and said so.

The numbers are those of docs/failures.md, 5 to 12 and 36. What headers cannot show, layers that a checkpoint names
wrongly while nobody says the right ones, is left to the draft's own forward on the target (``unit.convert.test_agreement``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.checkpoints import Level, Served, report
from eagle3_api.checkpoints.safetensors import Tensor
from eagle3_api.conditions import Reason
from eagle3_api.sglang import Version
from published import shapes
from unit.api.test_checkpoint_headers import GOOD, KEPT, KIMI, MAPS, SERVED, draft, layers, look, without

WHOLE = shapes.tensors(GOOD)


@dataclass(frozen=True)
class Row:
    """A planted fault, and what is to be said of it.

    Attributes:
        number: of the row.
        fault: in words.
        outcome: the reason of the refusal, or the level of what is said.
        words: of the message.
        changes: of config.json; tensors, values: of the weights.
        served: what it is to serve.
    """

    number: int
    fault: str
    outcome: Reason | Level
    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=lambda: WHOLE)
    values: Mapping[str, bytes] = field(default_factory=dict)
    served: Served = SERVED


UNSAID = replace(SERVED, layers=None)
ABSOLUTE = b"".join(token.to_bytes(8, "little", signed=True) for token in KEPT)
REGENERATED = bytes(reversed(MAPS["t2d"]))
ROWS = (
    Row(
        5,
        "layers other than those that are captured",
        Reason.FEATURE_MISMATCH,
        "the object's are [2, 30, 58]",
        layers([-1, 2, 30]),
    ),
    Row(
        6,
        "ids of inputs where outputs are read (Llama)",
        Reason.FEATURE_MISMATCH,
        "outputs of layers [3, 31, 59]",
        layers([3, 31, 59]),
    ),
    Row(
        6,
        "ids of outputs where inputs are read (Kimi, DeepSeek)",
        Reason.FEATURE_MISMATCH,
        "outputs of layers [1, 29, 57]",
        layers([2, 30, 58]),
        served=replace(SERVED, target=KIMI),
    ),
    Row(
        6,
        "the same, and the object does not name the layers",
        Level.WARNING,
        "only its trainer knows which was meant",
        layers([2, 30, 58]),
        served=replace(UNSAID, target=KIMI),
    ),
    Row(
        7,
        "`layers.0.*` for `midlayer.*`",
        Level.MENDED,
        "layers.0.hidden_norm.weight becomes midlayer.hidden_norm.weight",
        tensors={name.replace("midlayer.", "layers.0."): tensor for name, tensor in WHOLE.items()},
    ),
    Row(
        7,
        "a tensor is missing",
        Reason.CHECKPOINT_INCOMPLETE,
        "missing: midlayer.mlp.up_proj.weight",
        tensors=without(WHOLE, "midlayer.mlp.up_proj.weight"),
    ),
    Row(
        7,
        "a tensor that SGLang does not know",
        Reason.CHECKPOINT_INCOMPLETE,
        "drop without a word: gate.weight",
        tensors=WHOLE | {"gate.weight": Tensor("BF16", (256,))},
    ),
    Row(
        8,
        "no `lm_head` beside a `draft_vocab_size`",
        Reason.CHECKPOINT_INCOMPLETE,
        "missing: lm_head.weight",
        tensors=without(WHOLE, "lm_head.weight"),
    ),
    Row(
        9,
        "`tie_word_embeddings` beside a head of its own",
        Level.MENDED,
        "head of its own",
        {"tie_word_embeddings": True},
    ),
    Row(9, "`target_hidden_size` null", Level.MENDED, "target_hidden_size is null", {"target_hidden_size": None}),
    Row(9, "`draft_vocab_size` null", Level.MENDED, "draft_vocab_size is null", {"draft_vocab_size": None}),
    Row(9, "`draft_vocab_size` missing", Level.MENDED, "draft_vocab_size is missing", {"draft_vocab_size": ...}),
    Row(10, "d2t of absolute ids", Level.MENDED, "absolute ids, which become offsets", values={"d2t": ABSOLUTE}),
    Row(
        10,
        "d2t or t2d of another training",
        Reason.VOCABULARY_MAP,
        "one of them was regenerated",
        values={"t2d": REGENERATED},
    ),
    Row(10, "no d2t", Reason.VOCABULARY_MAP, "d2t is missing", tensors=without(WHOLE, "d2t")),
    Row(
        11,
        "no `eagle_config`, and the object does not name the layers",
        Level.WARNING,
        "does not say which layers",
        {"eagle_config": ...},
        served=UNSAID,
    ),
    Row(
        11,
        "layers beside `eagle_config`",
        Reason.CONFIG_INVALID,
        "stands at the top level",
        {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
    ),
    Row(11, "`eagle_config` no object", Reason.CONFIG_INVALID, "not an object", {"eagle_config": [2, 30, 58]}),
    Row(
        12,
        "`max_position_embeddings` below the served context",
        Level.WARNING,
        "becomes the served context 4096",
        {"max_position_embeddings": 2048},
    ),
    Row(
        12,
        "the same, with a rotary embedding that another number would change",
        Reason.CONTEXT_TOO_SHORT,
        "another number would make it another draft",
        {
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        },
    ),
    Row(
        36,
        "P-EAGLE",
        Reason.UNSUPPORTED_DRAFT,
        "P-EAGLE",
        tensors=WHOLE | {"mask_hidden": Tensor("BF16", (256,))},
    ),
    Row(
        36,
        "a hybrid with `parallel_draft_heads`",
        Reason.UNSUPPORTED_DRAFT,
        "hybrid",
        tensors=WHOLE | {"parallel_draft_heads.0.weight": Tensor("BF16", (256, 256))},
    ),
    Row(36, "`norm_before_residual`", Reason.UNSUPPORTED_DRAFT, "no SGLang computes", {"norm_before_residual": True}),
    Row(
        36,
        "an SGLang that is older than all that are known",
        Reason.VERSION_UNSUPPORTED,
        "older than",
        served=replace(SERVED, version=Version(0, 5, 11)),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number}: {row.fault}")
def test_a_known_fault_is_refused_with_its_reason_or_mended_and_said(tmp_path: Path, row: Row) -> None:
    folder = draft(tmp_path, row.changes, dict(row.tensors), **row.values)
    found = look(folder, row.served)
    refusal = report.refusal(found)
    if isinstance(row.outcome, Reason):
        assert refusal is not None
        assert (refusal[0], row.words in refusal[1]) == (row.outcome, True), refusal[1]
    else:
        assert refusal is None
        assert any(row.words in finding.message for finding in found if finding.level is row.outcome)


def test_every_fault_is_documented_with_what_becomes_of_it() -> None:
    page = Path(__file__).parents[3] / "docs" / "checkpoints.md"
    (section,) = re.findall(r"^## Known faults$(.*?)^## ", page.read_text(), re.MULTILINE | re.DOTALL)
    documented = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in section.splitlines()
        if line.startswith("|")
    ]
    said = {Level.MENDED: "mended", Level.WARNING: "warning"}
    outcomes = [f"refused: `{row.outcome}`" if isinstance(row.outcome, Reason) else said[row.outcome] for row in ROWS]
    assert documented[2:] == list(zip([row.fault for row in ROWS], outcomes, strict=True))


def test_no_row_that_conversion_can_see_is_left_out() -> None:
    assert {row.number for row in ROWS} == {*range(5, 13), 36}
