"""The draft itself."""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor, nn

from eagle3_draft.model.attention import Cache, attend
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.latent import LatentAttention
from eagle3_draft.model.rope import Rotary, rotate

#: Standard deviation of freshly initialised matrices, as Llama's.
INITIAL_STD = 0.02


class HeadAttention(nn.Module):
    """Self-attention, Llama's.

    Args:
        config: of the draft.
        width: numbers of its input.
    """

    def __init__(self, config: DraftConfig, width: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=config.output_bias)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache: Cache, documents: list[int]) -> Tensor:
        """(tokens, width) -> (tokens, hidden). This step's keys and values are added to the cache."""
        query, key, value = (
            project(x).view(len(x), -1, self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cache.keys.append(rotate(key, *turn))
        cache.values.append(value)
        mixed: Tensor = self.o_proj(attend(rotate(query, *turn), cache.keys, cache.values, documents).flatten(1))
        return mixed


class Mlp(nn.Module):
    """Llama's gated feed-forward network."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A decoder layer.

    Args:
        config: of the draft.
        first: it reads the token's embedding beside the hidden state; deeper ones read the hidden state alone.
    """

    def __init__(self, config: DraftConfig, *, first: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.input_layernorm = nn.RMSNorm(width, config.rms_norm_eps) if first else None
        self.hidden_norm = nn.RMSNorm(width, config.rms_norm_eps)
        read = 2 * width if first else width
        self.self_attn: HeadAttention | LatentAttention = (
            HeadAttention(config, read) if config.latent is None else LatentAttention(config, config.latent, read)
        )
        self.post_attention_layernorm = nn.RMSNorm(width, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self, embeds: Tensor, hidden: Tensor, turn: tuple[Tensor, Tensor], cache: Cache, documents: list[int]
    ) -> Tensor:
        """Embeddings and hidden states, both (tokens, hidden) -> the next hidden states, before any norm."""
        x = self.hidden_norm(hidden)
        if self.input_layernorm is not None:
            x = torch.cat([self.input_layernorm(embeds), x], -1)
        hidden = hidden + self.self_attn(x, turn, cache, documents)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Draft(nn.Module):
    """EAGLE-3's draft model (arXiv 2503.01840), unrolled as it is served: training-time test.

    At position p of a document, step 0 reads the target's hidden states at p and the embedding of token p + 1, and proposes
    token p + 2. Step i reads the draft's own state of step i - 1 at p and the embedding of token p + 1 + i, stands at
    rotary position p + i, and proposes token p + 2 + i. The token fed is the document's own (teacher forcing): what a
    server feeds as well, for as long as the proposals before were accepted.

    The state that a step leaves to the next is that before the final norm; with ``norm_output`` (EAGLE-3.1) that after it.
    """

    #: Of ``lm_head``.
    head_type: type[nn.Linear] = nn.Linear

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        states, width = len(config.layers), config.target_hidden_size
        self.input_norm = nn.RMSNorm(states * width, config.rms_norm_eps) if config.norm_before_fc else None
        norms = [nn.RMSNorm(width, config.rms_norm_eps) for _ in range(states if config.fc_norm else 0)]
        self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(states * width, config.hidden_size, bias=config.fc_bias)
        if self._bypasses_fc(states * width):
            # They get no gradient, hence no optimizer state, which a checkpoint would then be asked for in vain
            for bypassed in (self.input_norm, self.fc_norm, self.fc):
                if bypassed is not None:
                    bypassed.requires_grad_(False)
        self.midlayer = Layer(config, first=True)
        # SGLang's names: the first layer is "midlayer" in all of its versions, others go by their number
        self.layers = nn.ModuleDict({str(number): Layer(config, first=False) for number in range(1, config.depth)})
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = self.head_type(config.hidden_size, config.draft_vocabulary_size, bias=False)

    def initialise(self, seed: int) -> None:
        """Fresh weights on the CPU, the same for the same seed: small normal matrices, norms of one, biases of zero."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=INITIAL_STD, generator=generator)

    def forward(self, features: Tensor, embeds: Tensor, documents: list[int], wanted: list[Tensor]) -> list[Tensor]:
        """Logits of the wanted proposals, step by step.

        Args:
            features: (tokens, layers x target hidden), the target's auxiliary hidden states, documents packed.
            embeds: (tokens, hidden), the embedding of each token itself.
            documents: tokens of each document.
            wanted: for each step, the positions (wanted_i,) whose proposal is asked for. A position is a row of the pack;
                it must have a token at p + 1 + i in its document.

        Returns:
            For each step (wanted_i, draft vocabulary).
        """
        hidden = self.reduce(features)
        positions = torch.cat([torch.arange(length) for length in documents]).to(hidden.device)
        rotary = Rotary(self.config, hidden.device)
        caches = [Cache() for _ in self.decoder_layers]
        logits = []
        for step, rows in enumerate(wanted):
            # Rows at a document's end get a token of the next one: nobody wants them, and nobody sees their keys
            shifted = F.pad(embeds[step + 1 :], (0, 0, 0, min(step + 1, len(embeds))))
            turn = rotary.at(positions + step)
            for layer, cache in zip(self.decoder_layers, caches, strict=True):
                hidden = layer(shifted, hidden, turn, cache, documents)
            normed = self.norm(hidden)
            logits.append(self.lm_head(normed[rows]))
            if self.config.norm_output:
                hidden = normed
        return logits

    @property
    def decoder_layers(self) -> list[Layer]:
        """All of them, the first one first."""
        return [self.midlayer, *(layer for layer in self.layers.values() if isinstance(layer, Layer))]

    def reduce(self, features: Tensor) -> Tensor:
        """The state that the first step reads: (tokens, layers x target hidden) -> (tokens, hidden)."""
        if self._bypasses_fc(features.shape[-1]):
            return features
        if self.input_norm is not None:
            features = self.input_norm(features)
        if len(self.fc_norm):
            chunks = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], -1)
        reduced: Tensor = self.fc(features)
        return reduced

    def _bypasses_fc(self, width: int) -> bool:
        """SGLang takes states that are as wide as the draft for the draft's own, and leaves fc and its norms out."""
        return width == self.config.hidden_size
