"""What a draft proposes on a real server, and what the reference forward proposes in its place."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor

from eagle3_draft.features import Sample
from eagle3_draft.model.draft import Draft
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher, right_rows
from eagle3_draft.train.replay import accepted, replay

RECORDER = Path(__file__).with_name("recorder")


def recording(file: Path) -> dict[str, str]:
    """The environment of a server that records its draft's proposals in a file."""
    found_by = filter(None, [str(RECORDER), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(found_by), "EAGLE3_PROPOSALS": str(file)}


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
        known += _accepted(tokens, known, proposed) + 1


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
        logits = unrolled(draft, hidden, [(len(hidden), [*tokens, *proposed])], embedding)[-1]
        proposed.append(int(ids[logits.argmax()]))
    return proposed


@torch.no_grad()
def replayed(draft: Draft, ids: Tensor, sample: Sample, embedding: Tensor, head: Tensor, steps: int) -> tuple[int, int]:
    """Tokens that verify steps produce of an answer, and verify steps, by the replay of a training.

    Args:
        draft, ids, sample, embedding, steps: as in ``expected``.
        head: the target's, (vocabulary, hidden).
    """
    batch = pack([sample], steps)
    logits = draft(batch.features, embedding[batch.input_ids], batch.documents, batch.wanted)
    said = Teacher(head, ids).labels(batch.teaching)
    proposed = zip(logits, batch.label_rows, strict=True)
    right = batch.table([right_rows(of_step, said, rows, ids) for of_step, rows in proposed], missing=False)
    return replay(accepted(right, steps).tolist(), sample.loss_mask.tolist())


def behind(
    draft: Draft, ids: Tensor, sample: Sample, embedding: Tensor, prompt: int, proposed: Sequence[Sequence[int]]
) -> list[list[float]]:
    """How far the reference is from proposing what a server did: for servers that round otherwise than the reference.

    Args:
        draft, ids, sample, embedding, prompt: as in ``expected``, all on one device.
        proposed: by the server, of every verify step.

    Returns:
        Of each verify step and each of its proposals by how much the proposal's logit is below the highest, in standard
        deviations of the logits; 0 where it is the reference's own, infinite where the draft does not know the token. A chain
        is fed on what the server proposed, and the steps follow each other as the server accepted.
    """
    tokens = sample.input_ids.tolist()
    begun = list(_begun(tokens, prompt, proposed))
    if not begun:
        return []
    chains = [(known, [*tokens[: known + 1], *of_step[:-1]]) for known, of_step in begun]
    rows = {token: row for row, token in enumerate(ids.tolist())}
    # A last column for tokens that the draft does not know
    chosen = torch.tensor(
        [[rows.get(token, len(rows)) for token in of_step] for _, of_step in begun], device=ids.device
    )
    found = []
    for logits, rows_of_step in zip(unrolled(draft, sample.hidden, chains, embedding), chosen.T, strict=True):
        known_or_not = F.pad(logits, (0, 1), value=-math.inf)
        said = known_or_not.gather(-1, rows_of_step[:, None])[:, 0]
        found.append((logits.amax(-1) - said) / logits.std(-1))
    return torch.stack(found, -1).tolist()


def _begun(
    tokens: Sequence[int], prompt: int, proposed: Iterable[Sequence[int]]
) -> Iterator[tuple[int, Sequence[int]]]:
    """Verify steps of an answer: the position of the last token that the server holds when it begins, and its proposals."""
    known = prompt
    for of_step in proposed:
        if known >= len(tokens) - 1:
            return
        yield known, of_step
        known += _accepted(tokens, known, of_step) + 1


def _accepted(tokens: Sequence[int], known: int, proposed: Sequence[int]) -> int:
    """How many proposals are what the text goes on with."""
    following = tokens[known + 1 : known + 1 + len(proposed)]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(proposed, following, strict=False)))


@torch.no_grad()
def unrolled(
    draft: Draft, hidden: Tensor, chains: Sequence[tuple[int, Sequence[int]]], embedding: Tensor
) -> list[Tensor]:
    """What the draft proposes at each step of chains of equal length, in one pass: for each step (chains, draft vocabulary).

    Args:
        draft, embedding: as in ``expected``.
        hidden: (tokens, layers x hidden), the target's states of the text that the chains begin in.
        chains: of each the position of the last token that is known when it begins, and the tokens up to there with the
            proposals that it was fed on.
    """
    lengths = [len(text) for _, text in chains]
    steps = lengths[0] - chains[0][0]
    # The states of tokens that are only proposed are not read: no row that is asked for sees them
    features = torch.cat([F.pad(hidden[:known], (0, 0, 0, len(text) - known)) for known, text in chains])
    ends = accumulate(lengths)
    rows = torch.tensor([end - steps - 1 for end in ends], device=hidden.device)
    embeds = embedding[torch.tensor([token for _, text in chains for token in text], device=embedding.device)]
    logits: list[Tensor] = draft(features, embeds, lengths, [rows] * steps)
    return logits
