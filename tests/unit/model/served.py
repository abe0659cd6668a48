"""A draft as a server runs it: one token at a time, with a key-value cache. Slow, and written without the product's model.

Source: SGLang 0.5.21, ``models/llama_eagle3.py`` and ``speculative/eagle_worker_v2.py``.
"""

import math

import torch
from torch import Tensor

from eagle3_draft.model.config import DraftConfig, Latent, YarnScaling
from eagle3_draft.model.rope import inverse_frequencies


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
        if c.latent is not None:
            return self._attend_latent(x, at, position, cache, c.latent)
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

    def _attend_latent(
        self, x: Tensor, at: str, position: int, cache: list[tuple[Tensor, Tensor]], sizes: Latent
    ) -> Tensor:
        """Absorbed, as a server does: the cache holds short vectors, which queries and outputs are brought to."""
        w, c, plain = self.weights, self.config, sizes.qk_nope_head_dim
        both = w[at + "kv_a_proj_with_mqa.weight"] @ x
        short = self._norm(both[: sizes.kv_lora_rank], w[at + "kv_a_layernorm.weight"])
        cache.append((short, self._turn(both[None, sizes.kv_lora_rank :], position)[0]))
        query = w[at + "q_b_proj.weight"] @ self._norm(w[at + "q_a_proj.weight"] @ x, w[at + "q_a_layernorm.weight"])
        query = query.view(c.heads, -1)
        turned = self._turn(query[:, plain:], position)
        both_of = w[at + "kv_b_proj.weight"].view(c.heads, -1, sizes.kv_lora_rank)
        to_keys, to_values = both_of[:, :plain], both_of[:, plain:]
        scale = (plain + sizes.qk_rope_head_dim) ** -0.5 * self._sharpened() ** 2
        mixed = []
        for head in range(c.heads):
            absorbed = query[head, :plain] @ to_keys[head]
            scores = torch.stack([absorbed @ key + turned[head] @ rotated for key, rotated in cache]) * scale
            read = (scores.softmax(0)[:, None] * torch.stack([key for key, _ in cache])).sum(0)
            mixed.append(to_values[head] @ read)
        return w[at + "o_proj.weight"] @ torch.cat(mixed)

    def _sharpened(self) -> float:
        scaling = self.config.rope_scaling
        if not isinstance(scaling, YarnScaling):
            return 1.0
        return 1 + 0.1 * scaling.mscale_all_dim * math.log(scaling.factor)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean() + self.config.rms_norm_eps).sqrt() * weight

    def _turn(self, x: Tensor, position: int) -> Tensor:
        """Rotary embedding as a multiplication of complex numbers: element i with element i + half, or with its neighbour."""
        half = x.shape[1] // 2
        angles = position * inverse_frequencies(self.config)
        if self.config.latent is not None and self.config.latent.rope_interleave:
            turned = torch.view_as_complex(x.reshape(-1, half, 2).contiguous()) * torch.polar(torch.ones(half), angles)
            return torch.view_as_real(turned).flatten(1)
        turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones(half), angles)
        return torch.cat([turned.real, turned.imag], -1)
