"""What is found of a converted draft by its own forward, before a server is started.

A trained draft brings the features that its trainer measured it on: it must say there what it said in training. An adopted one
is asked on the target's own answers: it must agree with them more often than by chance.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from eagle3_api.artifacts import PROMPTS
from eagle3_api.checkpoints import Finding, Form, Level
from eagle3_api.checkpoints.rules import Rule
from eagle3_api.conditions import Reason
from eagle3_api.features import FeatureDtype
from eagle3_api.jobs import ConvertConfig, ExitCode, TrainResult
from eagle3_draft.convert import parity
from eagle3_draft.convert.agreement import AGREEMENT, Agreement, judge, measure
from eagle3_draft.convert.answers import Load, hear
from eagle3_draft.convert.emit import weight_type
from eagle3_draft.convert.parity import Parity
from eagle3_draft.features import Sample
from eagle3_draft.model.config import config_of
from eagle3_draft.model.target import Target
from eagle3_draft.stage import StageError
from eagle3_draft.train.publish import SAMPLE_CONVERSATIONS, SAMPLE_TOKENS

#: How far logits may be apart, as a share of their root mean square, and how many proposals must be the same. Rounding
#: weights to bfloat16 moves logits by a few hundredths; a wrong tensor moves them by about their own size.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25}
AGREED = {torch.float32: 1.0, torch.bfloat16: 0.9}

#: How far accuracies may be apart on what the trainer measured itself, where rounding alone is between them; and how many
#: standard errors more on a part of it, where conversations differ too.
APART, ERRORS_ON_A_PART = 0.03, 3

ACCURACY = Rule(
    "accuracy",
    "its accuracy on held-out features against the trainer's own",
    "a draft that was accepted in training and is not here will not be in serving either",
    "Look into the training's report: it measured another draft, or other features.",
)


@dataclass(frozen=True)
class Proof:
    """What was found.

    Attributes:
        parity: with the draft as the trainer left it.
        agreement: with the target.
        findings: none of them a reason to refuse, unless the caller refuses.
    """

    parity: Parity | None = None
    agreement: Agreement | None = None
    findings: list[Finding] = field(default_factory=list)


def prove_trained(config: ConvertConfig, trained: Path, result: TrainResult, target_dtype: str) -> Proof:
    """Hold the converted draft against the trained one, and against what the trainer said of it.

    Args:
        config: of the stage; its folder holds the converted draft.
        trained: Train's artifact, which brings held-out features.
        result: what the trainer said.
        target_dtype: of the target's weights.

    Raises:
        StageError: it is another draft (ParityMismatch).
    """
    folder, target, samples = Path(config.folder), Target(Path(config.target)), parity.read_held_out(trained)
    embedding, dtype = target.embedding(), weight_type(target_dtype)
    same = parity.compare(trained, folder, config.layers, embedding, samples)
    if same.error > TOLERANCE[dtype] * same.scale or same.agreement < AGREED[dtype]:
        raise StageError(
            ExitCode.REFUSED,
            Reason.PARITY_MISMATCH,
            f"the converted draft is not the trained one: on {same.rows} held-out rows its logits are up to "
            f"{same.error:.3g} apart (their size is {same.scale:.3g}), and {same.agreement:.1%} of its proposals are the "
            "same. This is a fault of the conversion, or of the disk",
        )
    agreement = measure(*parity.read_converted(folder, config.layers), samples, embedding)
    return Proof(same, agreement, list(_against_the_trainer(agreement, result, samples)))


def prove_adopted(config: ConvertConfig, form: Form, target_dtype: str, load: Load) -> Proof:
    """Ask the converted draft on the target's own answers.

    Args:
        config: of the stage; its folder holds the converted draft and the prompts.
        form: of the draft.
        target_dtype: of the target's weights.
        load: makes what runs the target.

    Raises:
        StageError: the target cannot be run.
    """
    if (why := _not_run_here(form, config.layers)) is not None:
        return Proof(findings=[Finding(AGREEMENT, Level.UNKNOWN, why)])
    folder, target = Path(config.folder), Target(Path(config.target))
    prompts = [json.loads(line)["input_ids"] for line in (folder / PROMPTS).read_bytes().splitlines()]
    stored: FeatureDtype = "fp32" if weight_type(target_dtype) is torch.float32 else "bf16"
    samples = hear(config, prompts, stored, load)
    draft, ids = parity.read_converted(folder, config.layers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    agreement = measure(draft.to(device), ids, samples, target.embedding())
    return Proof(agreement=agreement, findings=list(judge(agreement)))


def _not_run_here(form: Form, layers: Sequence[int]) -> str | None:
    """Why this product's own forward is not the draft's."""
    if form.own_embedding:
        return "it has an embedding of its own: its agreement with the target is left to the probe"
    try:
        config_of(form, layers)
    except ValueError as error:
        return f"{error}: its agreement with the target is left to the probe"
    return None


def _against_the_trainer(agreement: Agreement, result: TrainResult, samples: Sequence[Sample]) -> Iterator[Finding]:
    """The accuracies of the converted draft here and of the trained one there."""
    if not agreement.positions:
        yield Finding(
            ACCURACY, Level.UNKNOWN, "the held-out sample has no position of an answer to compare accuracies at"
        )
        return
    whole = result.held_out <= SAMPLE_CONVERSATIONS and all(len(sample) < SAMPLE_TOKENS for sample in samples)
    here, there = agreement.accuracy[0], result.accuracy[0]
    pairs = list(zip(agreement.accuracy, result.accuracy, strict=False))
    steps, apart = len(pairs), max(abs(a - b) for a, b in pairs)
    wrong = any(abs(a - b) > APART + (0 if whole else _sampling(b, len(samples))) for a, b in pairs)
    said = (
        f"the first proposals of the converted draft are right in {here:.1%} of {agreement.positions:,} held-out positions, of the "
        f"trained one they were in {there:.1%}; over {steps} steps they are at most {apart:.1%} apart"
    )
    said += "" if whole else f", on {len(samples)} of the conversations that it was measured on"
    if wrong:
        yield Finding(ACCURACY, Level.REFUSED, said, Reason.PARITY_MISMATCH)
    else:
        yield Finding(ACCURACY, Level.PASSED, said)


def _sampling(accuracy: float, conversations: int) -> float:
    """How far a part of what was measured may be from the whole by chance.

    Binomial, with a conversation as one draw: its positions are alike, and at worst all right or all wrong. Two right and
    two wrong ones are added (Agresti and Coull 1998), else an accuracy of one would have no error.
    """
    draws = conversations + 4
    share = (accuracy * conversations + 2) / draws
    return ERRORS_ON_A_PART * math.sqrt(share * (1 - share) / draws)
