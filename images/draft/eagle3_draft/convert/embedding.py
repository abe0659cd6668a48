"""A draft's embedding against its target's, which SGLang puts in its place."""

from collections.abc import Iterator

import torch

from eagle3_api.checkpoints import Finding, Form, Level
from eagle3_api.checkpoints.rules.embedding import EMBEDDING
from eagle3_draft.model.target import Target
from eagle3_draft.tensors import pieces

#: A copy of the target's in another type differs by rounding: bfloat16 keeps eight bits, float16 loses what is tiny.
_RELATIVE, _ABSOLUTE = 2**-7, 1e-6


def compare(form: Form, target: Target) -> Iterator[Finding]:
    """Say how much of a draft's own embedding is lost; nothing where there is none, or it is kept.

    Both are read some megabytes at a time. A row of zeros is none: it was never filled.
    """
    stored = form.tensors.get("embed_tokens.weight")
    if stored is None or form.own_embedding or len(stored.shape) != 2 or not stored.shape[1]:
        return
    width = stored.shape[1]
    rows = lost = 0
    left = torch.empty(0)
    for piece in pieces(stored):
        known = torch.cat([left, piece.float()])
        whole = len(known) // width
        ours, left = known[: whole * width].view(whole, width), known[whole * width :].clone()
        theirs = target.embedding_rows(rows, rows + whole).float()
        if theirs.shape[1] != width:
            return  # another target's, which its own rule refuses
        ours = ours[: len(theirs)]
        apart = (ours - theirs).abs() > _RELATIVE * theirs.abs() + _ABSOLUTE
        lost += int((apart.any(-1) & ours.any(-1)).sum())
        rows += whole
    if lost:
        yield Finding(
            EMBEDDING,
            Level.WARNING,
            f"{lost:,} of {rows:,} rows of embed_tokens.weight are not the target's, and are lost: SGLang sets the target's in "
            "their place. What was trained into them does not serve",
        )
