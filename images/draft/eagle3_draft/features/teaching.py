"""What the target says after each token: what a draft is taught, in one of two forms.

``LastState`` keeps the last hidden state, of which the target's head makes the logit of any token, besides two numbers that
need the whole vocabulary. ``TopK`` keeps the probabilities of the most likely tokens and no state. Both are made from the
logits where the target runs, a few rows at a time: (tokens, target vocabulary) never exists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eagle3_api.features import TOP_K, TeacherKind
from eagle3_draft.features.likeliest_kernel import likeliest
from eagle3_draft.features.scaled import restored

#: Bytes of logits, in float32, that exist at a time.
LOGIT_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class LastState:
    """All that the target says, up to the rounding of its state.

    Attributes:
        last: (tokens, hidden), the last layer's output after the final norm: what the head multiplies.
        greedy: (tokens,) int32, the most likely token of the whole vocabulary.
        log_normaliser: (tokens,) float32, log-sum-exp of the logits of the whole vocabulary.
        last_scale: (tokens, 1) float32, where ``last`` is stored in FP8.
    """

    last: Tensor
    greedy: Tensor
    log_normaliser: Tensor
    last_scale: Tensor | None = None

    @classmethod
    def of(cls, last: Tensor, logits: Tensor) -> "LastState":
        """From the logits, (tokens, target vocabulary), that belong to the states."""
        return cls(last, *likeliest(logits))

    def state(self, dtype: torch.dtype) -> Tensor:
        """(tokens, hidden), the state as a number of this type."""
        return restored(self.last, self.last_scale, dtype)


@dataclass(frozen=True)
class TopK:
    """The most likely tokens of the whole vocabulary, by descending probability.

    Attributes:
        top_tokens: (tokens, k) int32; of equally likely ones the lower id comes first.
        top_log_probabilities: (tokens, k) float16, natural logarithms, normalised over the whole vocabulary.
    """

    top_tokens: Tensor
    top_log_probabilities: Tensor

    @classmethod
    def of(cls, logits: Tensor, k: int = TOP_K) -> "TopK":
        """From logits, (tokens, target vocabulary); all of a vocabulary that is smaller than k."""
        wide = logits.float()
        ids = wide.topk(min(k, wide.shape[-1])).indices.sort(-1).values  # by id, for a stable sort by probability
        values, order = wide.gather(-1, ids).sort(stable=True, descending=True)
        return cls(ids.gather(-1, order).to(torch.int32), (values - wide.logsumexp(-1, keepdim=True)).to(torch.float16))

    @property
    def greedy(self) -> Tensor:
        """(tokens,) int32, the most likely token."""
        return self.top_tokens[:, 0]

    @property
    def log_normaliser(self) -> Tensor:
        """(tokens,) float32, of the logarithms: they are normalised."""
        return torch.zeros(len(self.top_tokens), device=self.top_tokens.device)


Teaching = LastState | TopK


def teach(kind: TeacherKind, last: Tensor, logits: Callable[[Tensor], Tensor], vocabulary_size: int) -> Teaching:
    """What the target says after each token.

    Args:
        kind: in which form.
        last: (tokens, hidden), after the final norm.
        logits: makes of some of these rows their logits, (rows, vocabulary).
        vocabulary_size: of the target.
    """
    rows = max(1, LOGIT_BYTES // (4 * vocabulary_size))
    parts = torch.split(last, rows)
    if kind == "TopK":
        return joined([TopK.of(logits(part)) for part in parts])
    return joined([LastState.of(part, logits(part)) for part in parts])


def teaching_of(columns: Mapping[str, Tensor]) -> Teaching:
    """The inverse of ``tensors``; other columns may be among them."""
    if "top_tokens" in columns:
        return TopK(columns["top_tokens"], columns["top_log_probabilities"])
    return LastState(columns["last"], columns["greedy"], columns["log_normaliser"], columns.get("last_scale"))


def mapped(teaching: Teaching, change: Callable[[Tensor], Tensor]) -> Teaching:
    """The same with every tensor changed alike: some of its rows, or another device."""
    return teaching_of({name: change(tensor) for name, tensor in tensors(teaching).items()})


def joined(parts: Sequence[Teaching], join: Callable[[list[Tensor]], Tensor] | None = None) -> Teaching:
    """Parts of one form, one after the other. At least one.

    Args:
        parts: them.
        join: how, where it is not torch's ``cat``.
    """
    columns = [tensors(part) for part in parts]
    return teaching_of({name: (join or torch.cat)([part[name] for part in columns]) for name in columns[0]})


def tensors(teaching: Teaching) -> dict[str, Tensor]:
    """Its tensors, each with one row a token, by the names that they have in a shard."""
    found = {field.name: getattr(teaching, field.name) for field in fields(teaching)}
    return {name: tensor for name, tensor in found.items() if tensor is not None}
