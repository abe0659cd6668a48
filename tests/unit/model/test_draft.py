"""The draft's forward is that of a drafting server."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle3_draft.model import attention
from eagle3_draft.model.config import DraftConfig, Latent, YarnScaling, scaling_of
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.rope import Rotary
from unit.model.served import ServedDraft

STEPS = 4


def config(**changes: object) -> DraftConfig:
    sizes = DraftConfig(
        hidden_size=32,
        target_hidden_size=32,
        layers=[0, 1, 2],
        intermediate_size=48,
        heads=4,
        kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        vocabulary_size=96,
        draft_vocabulary_size=64,
        max_position_embeddings=128,
    )
    return sizes.model_copy(update=changes)


LATENT = Latent(q_lora_rank=18, kv_lora_rank=14, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)

#: What a draft may have that EAGLE-3's own has not, each alone and all together.
SWITCHES: dict[str, dict[str, object]] = {
    "plain": {},
    "no groups": {"heads": 2, "head_dim": 8},
    "one state": {"layers": [1]},
    "a norm for each state": {"fc_norm": True},
    "a norm before fc": {"norm_before_fc": True},
    "normed states fed back": {"norm_output": True},
    "biases": {"fc_bias": True, "output_bias": True},
    "three layers": {"depth": 3},
    "latent attention": {"latent": LATENT, "kv_heads": 4, "head_dim": 20},
    "latent attention, yarn, EAGLE-3.1": {
        "latent": LATENT.model_copy(update={"rope_interleave": False}),
        "kv_heads": 4,
        "head_dim": 20,
        "rope_scaling": YarnScaling(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0
        ),
        "fc_norm": True,
        "norm_output": True,
    },
    "all": {
        "depth": 2,
        "fc_norm": True,
        "norm_before_fc": True,
        "norm_output": True,
        "fc_bias": True,
        "output_bias": True,
        "head_dim": 24,
    },
}


def new_draft(sizes: DraftConfig, seed: int = 0) -> Draft:
    draft = Draft(sizes)
    draft.initialise(seed)
    with torch.no_grad():
        for parameter in draft.parameters():  # far from the initial values, where every part has a say
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.3)
    return draft


def unroll(draft: Draft, features: Tensor, tokens: Tensor, embedding: Tensor, documents: list[int]) -> list[Tensor]:
    """Logits of every row that has its token in its document: a list of (positions, draft vocabulary), NaN elsewhere."""
    wanted = []
    for step in range(STEPS):
        rows: list[int] = []
        start = 0
        for length in documents:
            rows += range(start, start + length - 1 - step)
            start += length
        wanted.append(torch.tensor(rows, dtype=torch.int64))
    tables = []
    for present, logits in zip(wanted, draft(features, embedding[tokens], documents, wanted), strict=True):
        table = torch.full((len(tokens), draft.config.draft_vocabulary_size), float("nan"))
        table[present] = logits
        tables.append(table)
    return tables


@pytest.mark.parametrize("switches", SWITCHES)
def test_the_unroll_proposes_what_a_server_would_that_feeds_on_its_own_proposals(switches: str) -> None:
    torch.manual_seed(1)
    sizes = config(**SWITCHES[switches])
    draft, embedding = new_draft(sizes), torch.randn(96, 32)
    ids = torch.randperm(96)[:64].sort().values
    features = torch.randn(10, len(sizes.layers) * 32)
    prompt = torch.randint(0, 96, (6,)).tolist()
    served = ServedDraft(sizes, dict(draft.state_dict()), embedding, ids)
    chain = served.chain(prompt, features, STEPS)

    # Teacher forcing with the chain's own tokens, as if all had been accepted
    tokens = torch.tensor([*prompt, *chain])
    tables = unroll(draft, features, tokens, embedding, [10])
    last = len(prompt) - 2
    assert [int(ids[table[last].argmax()]) for table in tables] == chain


def test_documents_of_a_pack_do_not_see_each_other() -> None:
    torch.manual_seed(2)
    draft, embedding = new_draft(config()), torch.randn(96, 32)
    features, tokens = torch.randn(14, 96), torch.randint(0, 96, (14,))
    packed = unroll(draft, features, tokens, embedding, [5, 1, 8])
    start = 0
    for length in (5, 1, 8):
        own = slice(start, start + length)
        alone = unroll(draft, features[own], tokens[own], embedding, [length])
        for together, single in zip(packed, alone, strict=True):
            torch.testing.assert_close(together[own], single, equal_nan=True)
        start += length


def test_the_size_of_a_query_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    draft, embedding = new_draft(config()), torch.randn(96, 32)
    features, tokens = torch.randn(11, 96), torch.randint(0, 96, (11,))
    whole = unroll(draft, features, tokens, embedding, [11])
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
    for one, other in zip(whole, unroll(draft, features, tokens, embedding, [11]), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_later_documents_and_later_tokens_get_no_gradient_from_earlier_rows() -> None:
    torch.manual_seed(4)
    draft, embedding = new_draft(config()), torch.randn(96, 32)
    features = torch.randn(9, 96, requires_grad=True)
    wanted = [torch.tensor([3])] * 2
    loss = sum(logits.sum() for logits in draft(features, embedding[torch.arange(9)], [6, 3], wanted))
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    reached = features.grad.abs().sum(1) > 0
    assert reached.tolist() == [True] * 4 + [False] * 5


def test_a_single_auxiliary_state_as_wide_as_the_draft_bypasses_fc_as_in_sglang() -> None:
    draft = new_draft(config(layers=[1]))
    features, embeds = torch.randn(4, 32), torch.randn(4, 32)
    before = draft(features, embeds, [4], [torch.arange(3)])[0]
    with torch.no_grad():
        draft.fc.weight.zero_()
    torch.testing.assert_close(draft(features, embeds, [4], [torch.arange(3)])[0], before)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 4.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
            "truncate": False,
        },
        {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0],
            "long_factor": [8.0] * 8,
            "original_max_position_embeddings": 200,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_embeddings_are_those_of_transformers(rope: dict[str, Any]) -> None:
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=64,
            num_attention_heads=4,
            head_dim=16,
            max_position_embeddings=256,
            rope_parameters={"rope_theta": 500.0, **rope},
        )
    )
    ours = config(rope_theta=500.0, rope_scaling=scaling_of(rope, 256), max_position_embeddings=256)
    positions = torch.arange(200)
    cosines, sines = Rotary(ours, positions.device).at(positions)
    expected = theirs(torch.zeros(1), positions[None])
    torch.testing.assert_close(cosines[:, 0], expected[0][0])
    torch.testing.assert_close(sines[:, 0], expected[1][0])


def test_a_rotary_embedding_that_turns_as_it_should_in_sglang_alone_is_named() -> None:
    with pytest.raises(ValueError, match="of type deepseek_yarn: SGLang's class of it is made for latent attention"):
        scaling_of({"rope_type": "deepseek_yarn", "factor": 4.0, "rope_theta": 1e4}, 4096)


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two, other = (Draft(config()) for _ in range(3))
    one.initialise(5)
    two.initialise(5)
    other.initialise(6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.fc.weight, other.fc.weight)
