"""Multi-head latent attention (arXiv 2405.04434), as the drafts of DeepSeek and Kimi have it.

A server keeps the short vectors and multiplies what makes keys and values of them into queries and outputs. Here keys and
values are made, which is the same, and cheaper where many queries read them.
"""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor, nn

from eagle3_api.checkpoints.rope import magnitude
from eagle3_draft.model.attention import Cache, attend
from eagle3_draft.model.config import DraftConfig, Latent, YarnScaling
from eagle3_draft.model.rope import rotate


class LatentAttention(nn.Module):
    """Self-attention.

    Args:
        config: of the draft.
        sizes: of its latent attention.
        width: numbers of its input.
    """

    def __init__(self, config: DraftConfig, sizes: Latent, width: int) -> None:
        super().__init__()
        heads = config.heads
        self.sizes = sizes
        self.factor = query_factor(config)
        self.q_a_proj = nn.Linear(width, sizes.q_lora_rank, bias=False)
        self.q_a_layernorm = nn.RMSNorm(sizes.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = nn.Linear(sizes.q_lora_rank, heads * config.head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, sizes.kv_lora_rank + sizes.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(sizes.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(sizes.kv_lora_rank, heads * (sizes.qk_nope_head_dim + sizes.v_head_dim), bias=False)
        self.o_proj = nn.Linear(heads * sizes.v_head_dim, config.hidden_size, bias=config.output_bias)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache: Cache, documents: list[int]) -> Tensor:
        """(tokens, width) -> (tokens, hidden). This step's keys and values are added to the cache."""
        short, turned = self.kv_a_proj_with_mqa(x).split([self.sizes.kv_lora_rank, self.sizes.qk_rope_head_dim], -1)
        query, key, value = heads_of(
            self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))),
            self.kv_b_proj(self.kv_a_layernorm(short)),
            turned,
            *turn,
            self.sizes,
            self.factor,
        )
        cache.keys.append(key)
        cache.values.append(value)
        mixed: Tensor = self.o_proj(attend(query, cache.keys, cache.values, documents).flatten(1))
        return mixed


def heads_of(
    queries: Tensor, both: Tensor, turned: Tensor, cosines: Tensor, sines: Tensor, sizes: Latent, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, (tokens, heads, plain + turned numbers), and values, (tokens, heads, v_head_dim).

    Args:
        queries: (tokens, heads x (plain + turned)), of ``q_b_proj``.
        both: (tokens, heads x (plain + value)), of ``kv_b_proj``.
        turned: (tokens, qk_rope_head_dim), what is rotated of all heads' keys.
        cosines, sines: of the tokens' positions.
        sizes: of the attention.
        factor: what queries are multiplied with.
    """
    tokens, plain = len(queries), sizes.qk_nope_head_dim
    query = queries.view(tokens, -1, plain + sizes.qk_rope_head_dim)
    key, value = torch.split(both.view(tokens, query.shape[1], -1), [plain, sizes.v_head_dim], -1)
    of_query = rotate(_in_halves(query[..., plain:], sizes), cosines, sines)
    of_key = rotate(_in_halves(turned[:, None], sizes), cosines, sines).expand(-1, query.shape[1], -1)
    query = torch.cat([query[..., :plain], of_query], -1) * factor
    return query, torch.cat([key, of_key], -1), value.contiguous()


def _in_halves(x: Tensor, sizes: Latent) -> Tensor:
    """Numbers that are rotated against each other, to the two halves: scores are the same in any order of the numbers."""
    return torch.cat([x[..., ::2], x[..., 1::2]], -1) if sizes.rope_interleave else x


def padded(x: Tensor, width: int) -> Tensor:
    """Heads with zeros up to a width."""
    return F.pad(x, (0, width - x.shape[-1]))


def query_factor(config: DraftConfig) -> float:
    """YaRN sharpens latent attention by its magnitude once for the queries and once for the keys."""
    scaling = config.rope_scaling
    return magnitude(scaling.factor, scaling.mscale_all_dim) ** 2 if isinstance(scaling, YarnScaling) else 1.0
