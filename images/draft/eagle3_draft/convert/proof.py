"""What is found of a converted draft before a server is started.

A draft that was trained here must have the trained one's numbers (``parity``), propose what it proposed when its trainer measured it
(``proposals``), and be as often right as its trainer says (``accuracy``). An adopted one is asked on the target's own answers: it must agree with them more
often than by chance (``agreement``), and not more often on the states of neighbouring layers (``reading``).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from eagle3_api.artifacts import PROMPTS
from eagle3_api.checkpoints import Finding, Form, Level
from eagle3_api.checkpoints.rope import turned_alike
from eagle3_api.conditions import Reason
from eagle3_api.features import FeatureDtype
from eagle3_api.jobs import ConvertConfig, ExitCode, TrainResult
from eagle3_api.sglang import Version
from eagle3_draft.convert import accuracy, parity, proposals, reading
from eagle3_draft.convert.agreement import AGREEMENT, Agreement, judge, measure
from eagle3_draft.convert.answers import ANSWER_TOKENS, PROMPT_TOKENS, Load, hear
from eagle3_draft.convert.emit import weight_type
from eagle3_draft.convert.parity import Parity
from eagle3_draft.convert.proposals import Step
from eagle3_draft.errors import StageError
from eagle3_draft.inspect.target import TargetFacts
from eagle3_draft.model.config import config_of
from eagle3_draft.model.target import Target
from eagle3_draft.train import held_out


@dataclass(frozen=True)
class Proof:
    """What was found.

    Attributes:
        parity: with the draft as the trainer left it.
        agreement: with the target.
        proposals: of a trained draft, by step: those of the converted one against those that its trainer recorded, if it did.
        findings: none of them a reason to refuse, unless the caller refuses.
    """

    parity: Parity | None = None
    agreement: Agreement | None = None
    proposals: list[Step] | None = None
    findings: list[Finding] = field(default_factory=list)


def prove_trained(config: ConvertConfig, trained: Path, result: TrainResult) -> Proof:
    """Hold the converted draft against the trained one, and against what the trainer said of it.

    Args:
        config: of the stage; its folder holds the converted draft.
        trained: Train's artifact, which brings held-out features.
        result: what the trainer said.

    Raises:
        StageError: it is another draft (ParityMismatch).
    """
    folder = Path(config.folder)
    same = parity.compare(trained, folder, config.layers)
    if same.different:
        raise StageError(
            ExitCode.REFUSED,
            Reason.PARITY_MISMATCH,
            f"the converted draft is not the trained one: {'; '.join(same.different[:8])}. This is a fault of the conversion, or "
            "of the disk",
        )
    draft, ids = parity.read_converted(folder, config.layers)
    steps = len(result.accuracy)
    sample = held_out.read(trained)
    asked = accuracy.chosen(draft, sample.samples, steps)
    embedding = parity.embedding_of(folder, Target(Path(config.target)))
    measured = accuracy.measure(draft, ids, asked.samples, embedding, steps, sample.proposals)
    findings = [
        *proposals.against_the_recorded(measured.steps or []),
        *accuracy.against_the_trainer(measured.agreement, result, asked),
    ]
    return Proof(same, measured.agreement, measured.steps, findings)


def prove_adopted(config: ConvertConfig, form: Form, facts: TargetFacts, load: Load) -> Proof:
    """Ask the converted draft on the target's own answers.

    Args:
        config: of the stage; its folder holds the converted draft and the prompts.
        form: of the draft.
        facts: of the target.
        load: makes what runs the target.

    Raises:
        StageError: the target cannot be run.
    """
    if (why := _not_run_here(form, config.layers)) is not None:
        return Proof(findings=[Finding(AGREEMENT, Level.UNKNOWN, why)])
    folder, target = Path(config.folder), Target(Path(config.target))
    prompts = [json.loads(line)["input_ids"] for line in (folder / PROMPTS).read_bytes().splitlines()]
    stored: FeatureDtype = "fp32" if weight_type(facts.dtype) is torch.float32 else "bf16"
    others = reading.neighbours(
        config.layers, facts.architecture, facts.num_layers, Version.parse(config.sglang_version)
    )
    heard = sorted({*config.layers, *(layer for other in others for layer in other)})
    samples = hear(config, prompts, stored, load, heard)
    draft, ids = parity.read_converted(folder, config.layers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draft, embedding = draft.to(device), parity.embedding_of(folder, target)
    own = reading.of_layers(samples, heard, config.layers)
    agreement = measure(draft, ids, own, embedding)
    first, *elsewhere = (
        reading.read(draft, ids, reading.of_layers(samples, heard, layers), embedding, layers)
        for layers in (config.layers, *others)
    )
    return Proof(agreement=agreement, findings=[*reading.judge(first, elsewhere), *judge(agreement)])


def _not_run_here(form: Form, layers: Sequence[int]) -> str | None:
    """Why this product's own forward is not the draft's."""
    left = "its agreement with the target is left to the probe"
    try:
        config_of(form, layers)
    except ValueError as error:
        return f"{error}: {left}"
    known = turned_alike(form.rope, form.max_position_embeddings)
    if known is not None and known < PROMPT_TOKENS + ANSWER_TOKENS:
        return (
            f"its rotary embedding is of type {form.rope['rope_type']}, and turns texts of more than {known} tokens by what is served "
            f"beside them: {left}"
        )
    return None
