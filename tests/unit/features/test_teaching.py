"""What the target says after each token, found a few rows at a time."""

import pytest
import torch
from torch import Tensor

from eagle3_api.features import TeacherKind
from eagle3_draft.features import teach, teaching
from eagle3_draft.features.teaching import tensors

ROWS, HIDDEN, VOCABULARY = 23, 8, 300


@pytest.mark.parametrize("kind", ["LastState", "TopK"])
def test_logits_of_all_tokens_are_never_held_at_once(kind: TeacherKind, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_numbers = torch.Generator().manual_seed(0)  # their products are exact, in whichever order they are added up
    last, head = (torch.randint(-3, 4, (rows, HIDDEN), generator=whole_numbers).float() for rows in (ROWS, VOCABULARY))
    held: list[int] = []

    def logits(rows: Tensor) -> Tensor:
        held.append(len(rows))
        return rows @ head.T

    whole = tensors(teach(kind, last, logits, VOCABULARY))
    assert held == [ROWS]
    monkeypatch.setattr(teaching, "LOGIT_BYTES", 5 * 4 * VOCABULARY)
    in_parts = tensors(teach(kind, last, logits, VOCABULARY))
    assert held == [ROWS, 5, 5, 5, 5, 3]
    assert in_parts.keys() == whole.keys()
    assert all(torch.allclose(in_parts[name].double(), whole[name].double(), rtol=2e-3) for name in whole)
