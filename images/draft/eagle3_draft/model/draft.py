"""The draft itself."""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor, nn

from eagle3_draft.model.attention import attend
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.rope import inverse_frequencies, rotate, rotation

#: Standard deviation of freshly initialised matrices, as Llama's.
INITIAL_STD = 0.02


class Attention(nn.Module):
    """Self-attention whose input is twice as wide as its output: the token's embedding beside the hidden state."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], keys: list[Tensor], values: list[Tensor], documents: list[int]
    ) -> Tensor:
        """(tokens, 2 hidden) -> (tokens, hidden). This step's keys and values are appended to those given."""
        query, key, value = (
            project(x).view(len(x), -1, self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys.append(rotate(key, *turn))
        values.append(value)
        mixed: Tensor = self.o_proj(attend(rotate(query, *turn), keys, values, documents).flatten(1))
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
    """The one decoder layer."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self,
        embeds: Tensor,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        keys: list[Tensor],
        values: list[Tensor],
        documents: list[int],
    ) -> Tensor:
        """Embeddings and hidden states, both (tokens, hidden) -> the next hidden states, before the final norm."""
        x = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(x, turn, keys, values, documents)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Draft(nn.Module):
    """EAGLE-3's draft model (arXiv 2503.01840), unrolled as it is served: training-time test.

    At position p of a document, step 0 reads the target's hidden states at p and the embedding of token p + 1, and proposes
    token p + 2. Step i reads the draft's own state of step i - 1 at p and the embedding of token p + 1 + i, stands at
    rotary position p + i, and proposes token p + 2 + i. The token fed is the document's own (teacher forcing): what a
    server feeds as well, for as long as the proposals before were accepted.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.layers) * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocabulary_size, bias=False)

    def initialise(self, seed: int) -> None:
        """Fresh weights on the CPU, the same for the same seed: small normal matrices, norms of one."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() == 1:
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
        frequencies = inverse_frequencies(self.config).to(hidden.device)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step, rows in enumerate(wanted):
            # Rows at a document's end get a token of the next one: nobody wants them, and nobody sees their keys
            shifted = F.pad(embeds[step + 1 :], (0, 0, 0, min(step + 1, len(embeds))))
            turn = rotation(frequencies, positions + step)
            hidden = self.midlayer(shifted, hidden, turn, keys, values, documents)
            logits.append(self.lm_head(self.norm(hidden[rows])))
        return logits

    def reduce(self, features: Tensor) -> Tensor:
        """The state that the first step reads: (tokens, layers x target hidden) -> (tokens, hidden)."""
        # SGLang takes states that are as wide as the draft for the draft's own and leaves fc out
        if features.shape[-1] == self.config.hidden_size:
            return features
        reduced: Tensor = self.fc(features)
        return reduced
