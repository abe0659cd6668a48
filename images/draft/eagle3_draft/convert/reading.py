"""Whether a draft reads the layers that it is taken to read.

A list of layers says nothing of its notation. Where it names the layers' inputs and is read as their outputs, or the other way
round, a draft still agrees with its target, a few per cent less: nobody notices. But it agrees best from the very states that it
was trained on, so it is asked on those of the neighbouring layers too, at the same positions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3_api.checkpoints import Finding, Level
from eagle3_api.checkpoints.rules import Rule
from eagle3_api.conditions import Reason
from eagle3_api.sglang import UnsupportedLayersError, Version, capture_ids
from eagle3_draft.features import Sample
from eagle3_draft.model.draft import Draft
from eagle3_draft.train.batches import pack

#: Standard errors beyond which another reading is better not by chance: once in thirty thousand right drafts.
ERRORS = 4.0

READING = Rule(
    "reading",
    "which layers' states it agrees best from",
    "one layer off costs a tenth of the accept length, and no file shows it",
    "Write the layers in the message into its config.json, or into draft.auxiliaryLayers where it names none.",
)


@dataclass(frozen=True)
class Reading:
    """What a draft says from the states of these layers.

    Attributes:
        layers: whose outputs.
        right: (positions,) bool, whether its first proposal is the target's most likely token.
    """

    layers: list[int]
    right: Tensor

    @property
    def accuracy(self) -> float:
        """Share of its proposals that are right."""
        return float(self.right.float().mean()) if len(self.right) else 0.0


def neighbours(layers: Sequence[int], architecture: str, num_layers: int, version: Version) -> list[list[int]]:
    """The same layers in the other notations, all one lower or one higher, as far as this SGLang can capture them, and all of them
    at once."""
    found: list[list[int]] = []
    together = set(layers)
    for shifted in ([layer + by for layer in layers] for by in (-1, 1)):
        try:
            for wanted in (shifted, sorted(together.union(shifted))):
                capture_ids(wanted, architecture, num_layers, version)
        except UnsupportedLayersError:
            continue
        found.append(shifted)
        together.update(shifted)
    return found


def of_layers(samples: Sequence[Sample], heard: Sequence[int], layers: Sequence[int]) -> list[Sample]:
    """The samples with the states of some of the layers only.

    Args:
        samples: with the states of the layers ``heard`` side by side.
        heard: ascending.
        layers: of these.
    """
    return [replace(sample, hidden=_side_by_side(sample.hidden, heard, layers)) for sample in samples]


def _side_by_side(hidden: Tensor, heard: Sequence[int], layers: Sequence[int]) -> Tensor:
    """(tokens, heard x width) -> (tokens, layers x width)."""
    apart = hidden.view(len(hidden), len(heard), -1)
    return apart[:, [heard.index(layer) for layer in layers]].flatten(1)


@torch.no_grad()
def read(draft: Draft, ids: Tensor, samples: Sequence[Sample], embedding: Tensor, layers: Sequence[int]) -> Reading:
    """Ask for the first proposal at every position.

    Args:
        draft: on the device on which it is to run.
        ids: (draft vocabulary,), the target's ids of the tokens that it knows.
        samples: conversations with the states of the layers.
        embedding: that the draft reads, (vocabulary, hidden).
        layers: what the states are those of.
    """
    device, dtype = next((p.device, p.dtype) for p in draft.parameters())
    right = [torch.empty(0, dtype=torch.bool)]
    for sample in samples:
        batch = pack([sample], 1).to(device)
        embeds = embedding[sample.input_ids.long()].to(device, dtype)
        (logits,) = draft(batch.features.to(dtype), embeds, batch.documents, batch.wanted)
        proposed = ids.to(device)[logits.argmax(-1)]
        right.append((proposed == batch.teaching.greedy.long()[batch.label_rows[0]]).cpu())
    return Reading(list(layers), torch.cat(right))


def judge(own: Reading, others: Sequence[Reading]) -> Iterator[Finding]:
    """Refuse a draft that agrees better from other layers, by more than chance explains (McNemar 1947: of positions where only one
    of two readings is right, how many are the one's)."""
    for other in others:
        gained, lost = int((other.right & ~own.right).sum()), int((own.right & ~other.right).sum())
        if gained - lost > ERRORS * math.sqrt(gained + lost):
            yield Finding(
                READING,
                Level.REFUSED,
                f"it is taken to read the outputs of layers {own.layers}, and from those of {other.layers} its first proposal is the "
                f"target's token in {other.accuracy:.1%} of {len(own.right):,} positions instead of {own.accuracy:.1%}: its layers are "
                "named in another notation",
                Reason.LAYER_CONVENTION,
            )
            return
    if others:
        compared = ", ".join(f"{other.accuracy:.1%} from {other.layers}" for other in others)
        yield Finding(READING, Level.PASSED, f"{own.accuracy:.1%} from {own.layers}, {compared}")
