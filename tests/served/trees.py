"""The trees that a draft grows on a real server, and those that the reference forward grows in their place.

A tree has branches, ``topk`` of them. In the first step they are the most likely tokens; in each later step every branch is gone on with
its most likely tokens, and the ``topk`` that are likeliest by the product of their probabilities are the branches of the next. Of all tokens
of all steps the likeliest are verified, in the order in which they were found (arXiv 2406.16858, and SGLang's own code).

A branch that goes on another's token gets that one's state, but SGLang leaves in its place in the cache what stood there: the key and value
of the token that this place had in the step before. So does the reference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_draft.features import Sample
from eagle3_draft.model.attention import Cache
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.rope import Rotary

#: Before the first token of a tree.
ROOT = -1


@dataclass(frozen=True)
class Shape:
    """Of trees.

    Attributes:
        steps: of the draft.
        topk: branches.
        size: tokens that are verified at once, the last known one included.
    """

    steps: int
    topk: int
    size: int


@dataclass(frozen=True)
class Tree:
    """What is verified.

    Attributes:
        tokens: the target's ids, in the order in which they were found.
        parents: of each the place in ``tokens`` of the one before it, or ``ROOT``.
    """

    tokens: list[int]
    parents: list[int]

    def accepted(self, following: Sequence[int]) -> int:
        """How many tokens of a text the tree has, from its root on."""
        at = ROOT
        for depth, token in enumerate(following):
            found = [i for i, parent in enumerate(self.parents) if parent == at and self.tokens[i] == token]
            if not found:
                return depth
            at = found[0]
        return len(following)


def expected(
    draft: Draft, ids: Tensor, sample: Sample, embedding: Tensor, prompt: int, shape: Shape
) -> Iterator[list[int]]:
    """The tokens of every verify step's tree over an answer, by the reference; as ``proposals.expected``."""
    tokens = sample.input_ids.tolist()
    known = prompt
    while known < len(tokens) - 1:
        tree = grown(draft, ids, sample.hidden[:known], tokens[1 : known + 1], embedding, shape)
        yield tree.tokens
        known += tree.accepted(tokens[known + 1 :]) + 1


@torch.no_grad()
def grown(
    draft: Draft, ids: Tensor, features: Tensor, following: Sequence[int], embedding: Tensor, shape: Shape
) -> Tree:
    """A tree.

    Args:
        draft: the reference.
        ids: (draft vocabulary,), the target's ids of the tokens that it knows.
        features: (known, layers x hidden), the target's states of the tokens before the last known one.
        following: of each of them the next token.
        embedding: the target's, (vocabulary, hidden).
        shape: of the tree.
    """
    known, topk = len(features), shape.topk
    turns, positions = Rotary(draft.config, features.device), torch.arange(known)
    caches = [Cache() for _ in draft.decoder_layers]
    state, embeds = draft.reduce(features), embedding[torch.tensor(following)]
    found: list[Tensor] = []
    chances: list[Tensor] = []
    parents: list[Tensor] = []
    branches, score = torch.tensor([ROOT]), torch.ones(1)
    for step in range(shape.steps):
        turn = turns.at((positions + step).repeat(len(branches)))
        for layer, cache in zip(draft.decoder_layers, caches, strict=True):
            state = layer(embeds, state, turn, cache, [known] * len(branches))
        normed = draft.norm(state)
        likely = draft.lm_head(normed[known - 1 :: known]).softmax(-1).topk(topk)
        first = sum(map(len, found))
        found.append(ids[likely.indices].flatten())
        chances.append((score[:, None] * likely.values).flatten())
        parents.append(branches.repeat_interleave(topk))
        score, chosen = chances[-1].topk(topk)
        state = (normed if draft.config.norm_output else state).view(len(branches), known, -1)[chosen // topk]
        state = state.reshape(topk * known, -1)
        if not step:
            for cache in caches:  # each branch has the text's before its own
                cache.keys = [key.repeat(topk, 1, 1) for key in cache.keys]
                cache.values = [value.repeat(topk, 1, 1) for value in cache.values]
        branches = first + chosen
        embeds = embedding[found[-1][chosen]].repeat_interleave(known, 0)  # only that of the last position is looked at
    tokens, above = torch.cat(found), torch.cat(parents)
    kept = torch.cat(chances).topk(shape.size - 1).indices.sort().values
    place = {ROOT: ROOT} | {node: number for number, node in enumerate(kept.tolist())}
    return Tree(tokens[kept].tolist(), [place[node] for node in above[kept].tolist()])
