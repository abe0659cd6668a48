"""What a draft's head makes of states on a CPU: some thousand rows of it at a time, for a product copies them."""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor

#: Of the head, that are multiplied at a time.
HEAD_ROWS = 4096


def logits(states: Tensor, head: Tensor) -> Tensor:
    """(rows, draft vocabulary) of states, (rows, hidden), and the head, (draft vocabulary, hidden): in the states' type."""
    return torch.cat([F.linear(states, rows.to(states.dtype)) for rows in torch.split(head, HEAD_ROWS)], -1)


def likeliest(states: Tensor, head: Tensor) -> Tensor:
    """(rows,), the row of the head that each state is most like; as ``logits(...).argmax(-1)``, of which never all are there."""
    parts = [F.linear(states, rows).max(-1) for rows in torch.split(head, HEAD_ROWS)]
    which = torch.stack([part.values for part in parts]).argmax(0)
    rows = torch.stack([part.indices for part in parts]).gather(0, which[None])[0]
    return which * HEAD_ROWS + rows
