"""A target in Transformers, which says what SGLang's must say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from eagle3_draft.features import LastState, Sample


class Reference:
    """A target in float32.

    Args:
        folder: its checkpoint.
        layers: whose outputs a draft reads.
    """

    def __init__(self, folder: Path, layers: Sequence[int]) -> None:
        self.folder = folder
        self.layers = layers
        load: Any = AutoModelForCausalLM.from_pretrained
        self.model = load(folder, dtype=torch.float32)
        self.embedding: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        self.head: torch.Tensor = self.model.get_output_embeddings().weight.detach()

    @torch.no_grad()
    def sample(self, prompt: list[int], answer: list[int]) -> Sample:
        """What Extract would store of a text."""
        ids = torch.tensor(prompt + answer)
        states = self.model(input_ids=ids[None], output_hidden_states=True).hidden_states
        return Sample(
            input_ids=ids.to(torch.int32),
            loss_mask=torch.tensor([0] * len(prompt) + [1] * len(answer), dtype=torch.uint8),
            hidden=torch.cat([states[layer + 1][0] for layer in self.layers], -1),
            teaching=LastState.of(states[-1][0], states[-1][0] @ self.head.T),
        )
