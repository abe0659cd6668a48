import torch

from tiny.tokenizer import new_tokenizer
from tiny.train import TOKENS_PER_STEP, batches, new_model, train


def test_the_same_seed_makes_the_same_target() -> None:
    first, second = new_model(), new_model()
    for model in (first, second):
        train(model, new_tokenizer(), steps=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_batches_hold_whole_conversations_of_about_one_length() -> None:
    tokenizer = new_tokenizer()
    for batch in batches(tokenizer, 5):
        assert batch.numel() <= TOKENS_PER_STEP
        assert (batch == tokenizer.pad_token_id).float().mean() < 0.05
        assert (batch[:, 0] == tokenizer.bos_token_id).all()
