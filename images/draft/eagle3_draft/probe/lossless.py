"""Greedy answers with speculation against those without: equal, tied, or different.

Verification computes the same logits as decoding does, in another shape (several tokens of a sequence at once), and so
with other roundings. Where the best tokens are closer than that, each of them is a right greedy answer, and the rest of the
answer, having another context, says nothing more. So the first token that differs decides, by the baseline's own best
tokens there: a *tie* if the token that the other answer took is within epsilon of the best; a *difference* otherwise. The
gap of two log-probabilities is that of the two logits, so epsilon is about logits.

How far roundings move two logits is a property of the target, its kernels and its dtype, and is measured: the server without
speculation computes its own answers a second time as parts of prompts, many tokens at once as a verification does, and the
largest change of a gap, over some thousand positions, is its ``rounding``, and epsilon. For roundings to change a token beyond
that, a position must be moved farther than all of those, and be one of the few whose gap lies just between. A broken kernel does
not hide behind it, for it changes tokens that the model was sure of by several.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

from pydantic import Field

from eagle3_api.base import Model

#: Epsilon is no less than this, by the server's own name of its dtype; unknown ones are taken for bfloat16. Logits of
#: language models lie around 10 to 30. A number in [16, 32) is rounded to a multiple of 2**-3 in bfloat16 (8 significant
#: bits) and of 2**-6 in float16 (11 bits), so two logits of which each is one such step off stand two steps nearer or
#: farther. In float32 some hundred thousand additions in another order are what is seen, on a CPU about 1e-4.
LEAST = {"float32": 1e-4, "float16": 0.03, "half": 0.03, "bfloat16": 0.25}


class Answer(Model):
    """One line of ``answers.jsonl``."""

    prompt: int
    output_ids: list[int]
    #: Of the plain server alone, at each position: its best tokens, best first, and how far each is below the best.
    near: list[dict[int, float]] = Field(default_factory=list)


class Deviation(Model):
    """Where an answer leaves the baseline's."""

    prompt: int
    position: int
    kind: Literal["tie", "different"]
    #: How far the token it took is below the baseline's, by the baseline; None where that is not known to be near.
    gap: float | None = None


def rounding(decoded: Sequence[Mapping[int, float]], prefilled: Sequence[Mapping[int, float]]) -> float:
    """The largest change of the gap between a position's two best tokens, from decoding to a prefill of the same tokens.

    Args:
        decoded: of each position, the log-probabilities of the best tokens as they were decoded, best first; any constant
            may be taken from all of a position.
        prefilled: the same of these positions, computed together.

    Returns:
        A difference of logits; 0 where no position has both tokens twice.
    """
    changes = [0.0]
    for one, other in zip(decoded, prefilled, strict=True):
        best = list(islice(one, 2))
        if len(best) == 2 and all(token in other for token in best):
            first, second = best
            changes.append(abs((other[first] - other[second]) - (one[first] - one[second])))
    return max(changes)


def epsilon(dtype: object, rounding: float) -> float:
    """The largest gap of two log-probabilities that is a tie.

    Args:
        dtype: as ``/server_info`` says it.
        rounding: of the server without speculation.
    """
    return max(rounding, LEAST.get(str(dtype), LEAST["bfloat16"]))


def deviation(baseline: Answer, output_ids: Sequence[int], epsilon: float) -> Deviation | None:
    """Where an answer leaves the baseline's, or None where both are equal."""
    if list(output_ids) == baseline.output_ids:
        return None
    length = min(len(output_ids), len(baseline.output_ids))
    at = next((i for i in range(length) if output_ids[i] != baseline.output_ids[i]), length)
    near = baseline.near[at] if at < len(baseline.near) else {}
    if at < len(output_ids):
        gap = near.get(output_ids[at])
    else:  # by a token that is not told
        gap = min((far for token, far in near.items() if token != baseline.output_ids[at]), default=None)
    tie = gap is not None and gap <= epsilon
    return Deviation(prompt=baseline.prompt, position=at, kind="tie" if tie else "different", gap=gap)
