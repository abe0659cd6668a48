"""What a draft proposes on a real server, and what the reference forward proposes in its place."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagle3_draft.features import Sample
from eagle3_draft.model import Draft

RECORDER = Path(__file__).with_name("recorder")


def recording(file: Path) -> dict[str, str]:
    """The environment of a server that records its draft's proposals in a file."""
    return {"PYTHONPATH": str(RECORDER), "EAGLE3_PROPOSALS": str(file)}


def recorded(file: Path) -> Mapping[str, list[list[int]]]:
    """Of each request, the proposals of its verify steps in order, by the target's ids."""
    found: dict[str, list[list[int]]] = {}
    for line in file.read_text().splitlines():
        said = json.loads(line)
        found.setdefault(said["request"], []).append(said["proposed"])
    return found


def expected(
    draft: Draft, ids: Tensor, sample: Sample, embedding: Tensor, prompt: int, steps: int
) -> Iterator[list[int]]:
    """The proposals of every verify step over an answer, by the reference.

    Args:
        draft: the reference.
        ids: (draft vocabulary,), the target's ids of the tokens that it knows.
        sample: prompt and greedy answer, with the target's states.
        embedding: the target's, (vocabulary, hidden).
        prompt: tokens of the prompt.
        steps: proposals of a verify step.
    """
    tokens = sample.input_ids.tolist()
    known = (
        prompt  # the position of the last token that the server holds; the first of an answer comes from the prefill
    )
    while known < len(tokens) - 1:
        proposed = chain(draft, ids, sample.hidden[:known], tokens[: known + 1], embedding, steps)
        yield proposed
        accepted = 0
        while accepted < steps and tokens[known + 1 + accepted : known + 2 + accepted] == [proposed[accepted]]:
            accepted += 1
        known += accepted + 1


def chain(draft: Draft, ids: Tensor, hidden: Tensor, tokens: Sequence[int], embedding: Tensor, steps: int) -> list[int]:
    """A chain of proposals, each fed on those before it.

    Args:
        draft, ids, embedding: as in ``expected``.
        hidden: (known, layers x hidden), the target's states up to the token before the last.
        tokens: known + 1 of them.
        steps: proposals.
    """
    proposed: list[int] = []
    for _ in range(steps):
        proposed.append(int(ids[_logits(draft, hidden, tokens, proposed, embedding).argmax()]))
    return proposed


def behind(
    draft: Draft, ids: Tensor, sample: Sample, embedding: Tensor, prompt: int, proposed: Iterable[Sequence[int]]
) -> Iterator[list[float]]:
    """How far the reference is from proposing what a server did: for servers that round otherwise than the reference.

    Args:
        draft, ids, sample, embedding, prompt: as in ``expected``.
        proposed: by the server, of every verify step.

    Returns:
        Of each proposal by how much its logit is below the highest, in standard deviations of the logits; 0 where it is the
        reference's own. A chain is fed on what the server proposed, and the steps follow each other as the server accepted.
    """
    tokens, known = sample.input_ids.tolist(), prompt
    places = {token: place for place, token in enumerate(ids.tolist())}
    for of_step in proposed:
        if known >= len(tokens) - 1:
            return
        found = []
        for count, token in enumerate(of_step):
            logits = _logits(draft, sample.hidden[:known], tokens[: known + 1], of_step[:count], embedding)
            found.append(float((logits.max() - logits[places[token]]) / logits.std()))
        yield found
        accepted = 0
        while accepted < len(of_step) and tokens[known + 1 + accepted : known + 2 + accepted] == [of_step[accepted]]:
            accepted += 1
        known += accepted + 1


@torch.no_grad()
def _logits(draft: Draft, hidden: Tensor, tokens: Sequence[int], proposed: Sequence[int], embedding: Tensor) -> Tensor:
    """Of the next proposal of a chain, (draft vocabulary,)."""
    text = torch.tensor([*tokens, *proposed])
    # The states of tokens that are only proposed are not read: no row that is asked for sees them
    features = torch.cat([hidden, hidden.new_zeros(len(text) - len(hidden), hidden.shape[1])])
    wanted = [torch.tensor([len(hidden) - 1])] * (len(proposed) + 1)
    logits: Tensor = draft(features, embedding[text], [len(text)], wanted)[-1].flatten()
    return logits
