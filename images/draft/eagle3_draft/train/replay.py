"""Expected accept length, by replay: what a server would accept, walking each held-out answer as the server would.

A server that holds an answer's tokens up to position j, the last of them the target's own, drafts a chain from position
p = j - 1: step i proposes token p + 2 + i and then feeds on its own proposal. It accepts proposals until the first one
that is not the target's greedy token, adds the target's own token, and goes on there: a accepted proposals move it by a + 1.

The teacher-forced unroll knows what each chain would have proposed. Step i of the unroll at p was fed the document's
tokens up to p + 1 + i; so was the chain, *if* its proposals before were right and the document's tokens are the target's
greedy ones. And no proposal after the first wrong one matters. So a table of the unroll's arg-max, (positions, steps), is
all that a replay of any number of steps needs, and on text that the target itself wrote greedily it is exact. On other
text the target's greedy token at each position still judges, and the replay is an estimate.

The first token of an answer comes from the prefill, and the last step's tokens beyond the answer's end do not exist:
both as in the counters of a server, (tokens - requests) / verify steps.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def accepted(right: Tensor, num_steps: int) -> Tensor:
    """Proposals that a chain of ``num_steps`` from each position gets accepted: (positions,) int64.

    Args:
        right: (positions, steps >= num_steps) bool, whether the proposal of each step is the target's greedy token;
            false where the proposed token would not be the assistant's, or is beyond the document.
    """
    return right[:, :num_steps].to(torch.int64).cumprod(-1).sum(-1)


def replay(accepted: Sequence[int], loss_mask: Sequence[int]) -> tuple[int, int]:
    """Walk a document's answers.

    Args:
        accepted: per position, of ``accepted``.
        loss_mask: per position, 1 where the token is the assistant's.

    Returns:
        Tokens that verify steps produced, and verify steps.
    """
    tokens = steps = 0
    for first, last in _answers(loss_mask):
        # A draft needs a hidden state before the token it continues from
        position = max(first, 1)
        while position < last:
            moved = min(accepted[position - 1] + 1, last - position)
            tokens += moved
            steps += 1
            position += moved
    return tokens, steps


def _answers(loss_mask: Sequence[int]) -> list[tuple[int, int]]:
    """First and last position of every run of assistant tokens."""
    found: list[tuple[int, int]] = []
    for position, inside in enumerate(loss_mask):
        if not inside:
            continue
        if found and found[-1][1] == position - 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found
