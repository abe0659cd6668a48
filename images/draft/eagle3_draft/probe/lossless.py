"""Greedy answers with speculation against those without: equal, tied, or different.

Verification computes the same logits as decoding does, in another shape (several tokens of a sequence at once), and so
with other roundings. Where the two best tokens are closer than that, either is a right greedy answer, and the rest of the
answer, having another context, says nothing more. So the first token that differs decides, by the baseline's own two best
tokens there: a *tie* if the other answer took the second and its log-probability is within epsilon of the first's; a
*difference* otherwise. The gap of two log-probabilities is that of the two logits, so epsilon is about logits.

Epsilon by dtype. Logits of language models lie around 10 to 30. A number in [16, 32) is rounded to a multiple of 2**-3 in
bfloat16 (8 significant bits) and of 2**-6 in float16 (11 bits), so two logits of which each is one such step off stand
two steps nearer or farther: 0.25 and 0.03. In float32 nothing of the kind is visible, but some hundred thousand
additions in another order are: about 1e-4 was measured between shapes on a CPU, and TensorFloat-32 makes it more.
A broken kernel does not hide behind a quarter: it changes tokens that the model was sure of by several.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from eagle3_api.base import Model

#: By the server's own name of its dtype; unknown ones are taken for bfloat16.
EPSILON = {"float32": 1e-3, "float16": 0.03, "half": 0.03, "bfloat16": 0.25}
#: For a server that computes in float32 on a CPU.
EXACT = 1e-4


class Answer(Model):
    """One line of ``answers.jsonl``."""

    prompt: int
    output_ids: list[int]
    #: Of the plain server alone, at each position: the best token's log-probability less the second's, and the second.
    gaps: list[float] = Field(default_factory=list)
    runners_up: list[int] = Field(default_factory=list)


class Deviation(Model):
    """Where an answer leaves the baseline's."""

    prompt: int
    position: int
    kind: Literal["tie", "different"]
    #: The baseline's, there; None where its answer had ended.
    gap: float | None = None


def epsilon(dtype: object, *, exact: bool) -> float:
    """The largest gap of two log-probabilities that is a tie.

    Args:
        dtype: as ``/server_info`` says it.
        exact: the server computes in float32 on a CPU.
    """
    return EXACT if exact else EPSILON.get(str(dtype), EPSILON["bfloat16"])


def deviation(baseline: Answer, output_ids: Sequence[int], epsilon: float) -> Deviation | None:
    """Where an answer leaves the baseline's, or None where both are equal."""
    if list(output_ids) == baseline.output_ids:
        return None
    length = min(len(output_ids), len(baseline.output_ids))
    at = next((i for i in range(length) if output_ids[i] != baseline.output_ids[i]), length)
    gap = baseline.gaps[at] if at < len(baseline.gaps) else None
    took_second = at == len(output_ids) or (at < len(baseline.runners_up) and output_ids[at] == baseline.runners_up[at])
    tie = gap is not None and gap <= epsilon and took_second
    return Deviation(prompt=baseline.prompt, position=at, kind="tie" if tie else "different", gap=gap)
