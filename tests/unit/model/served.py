"""A draft as a server runs it: one token at a time, with a key-value cache. Slow, and written without the product's model.

Source: SGLang 0.5.21, ``models/llama_eagle3.py`` and ``speculative/eagle_worker_v2.py``.
"""

import torch
from torch import Tensor

from eagle3_draft.model.config import DraftConfig


class ServedDraft:
    """A draft model with its cache.

    Args:
        config: its sizes.
        weights: by the names of SGLang's checkpoint.
        embedding: the target's, (vocabulary, hidden).
        ids: the target's ids of the draft's vocabulary.
    """

    def __init__(self, config: DraftConfig, weights: dict[str, Tensor], embedding: Tensor, ids: Tensor) -> None:
        self.config = config
        self.weights = weights
        self.embedding = embedding
        self.ids = ids

    def chain(self, tokens: list[int], features: Tensor, steps: int) -> list[int]:
        """Propose ``steps`` tokens after ``tokens``, whose last one has no hidden state yet.

        Args:
            tokens: of the text so far.
            features: (tokens - 1 or more, layers x hidden), the target's auxiliary hidden states.
        """
        cache: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(self.config.depth)]
        hidden = features[0]
        for position in range(len(tokens) - 1):
            hidden = self._reduce(features[position])
            hidden, logits = self._forward(tokens[position + 1], hidden, position, cache)
        proposals = [int(self.ids[logits.argmax()])]
        for step in range(1, steps):
            hidden, logits = self._forward(proposals[-1], hidden, len(tokens) - 2 + step, cache)
            proposals.append(int(self.ids[logits.argmax()]))
        return proposals

    def _reduce(self, feature: Tensor) -> Tensor:
        w, c = self.weights, self.config
        if len(feature) == c.hidden_size:
            return feature
        if c.norm_before_fc:
            feature = self._norm(feature, w["input_norm.weight"])
        if c.fc_norm:
            states = feature.chunk(len(c.layers))
            feature = torch.cat([self._norm(one, w[f"fc_norm.{i}.weight"]) for i, one in enumerate(states)])
        return w["fc.weight"] @ feature + w.get("fc.bias", torch.zeros(()))

    def _forward(
        self, token: int, hidden: Tensor, position: int, caches: list[list[tuple[Tensor, Tensor]]]
    ) -> tuple[Tensor, Tensor]:
        """One step: the state that is fed back, and the logits."""
        w = self.weights
        for number, cache in enumerate(caches):
            at = f"layers.{number}." if number else "midlayer."
            x = self._norm(hidden, w[at + "hidden_norm.weight"])
            if number == 0:
                x = torch.cat([self._norm(self.embedding[token], w[at + "input_layernorm.weight"]), x])
            hidden = hidden + self._attend(x, at + "self_attn.", position, cache)
            x = self._norm(hidden, w[at + "post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(w[at + "mlp.gate_proj.weight"] @ x)
            hidden = hidden + w[at + "mlp.down_proj.weight"] @ (gate * (w[at + "mlp.up_proj.weight"] @ x))
        normed = self._norm(hidden, w["norm.weight"])
        return normed if self.config.norm_output else hidden, w["lm_head.weight"] @ normed

    def _attend(self, x: Tensor, at: str, position: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        w, c = self.weights, self.config
        query = self._turn((w[at + "q_proj.weight"] @ x).view(c.heads, c.head_dim), position)
        key = self._turn((w[at + "k_proj.weight"] @ x).view(c.kv_heads, c.head_dim), position)
        value = (w[at + "v_proj.weight"] @ x).view(c.kv_heads, c.head_dim)
        cache.append((key, value))
        mixed = []
        for head in range(c.heads):
            group = head // (c.heads // c.kv_heads)
            scores = torch.stack([query[head] @ cached[group] for cached, _ in cache]) / c.head_dim**0.5
            share = scores.softmax(0)
            mixed.append(
                sum((share[i] * cached[group] for i, (_, cached) in enumerate(cache)), torch.zeros(c.head_dim))
            )
        return w[at + "o_proj.weight"] @ torch.cat(mixed) + w.get(at + "o_proj.bias", torch.zeros(()))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean() + self.config.rms_norm_eps).sqrt() * weight

    def _turn(self, x: Tensor, position: int) -> Tensor:
        """Rotary embedding as a multiplication of complex numbers: element i with element i + head_dim / 2."""
        half = self.config.head_dim // 2
        angles = position * self.config.rope_theta ** -(torch.arange(half) / half)
        turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones(half), angles)
        return torch.cat([turned.real, turned.imag], -1)
