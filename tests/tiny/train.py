"""The tiny target's model, its training, and how good it has become."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tiny.grammar import NUMBERS, STRIDES, Message, answer, conversations, question
from tiny.tokenizer import BEGIN, END, SPECIAL, UNKNOWN, VOCABULARY

TOKENS_PER_STEP = 1024
LEARNING_RATE = 3e-3
IGNORED = -100  # a label that the loss leaves out


def new_model() -> Any:
    """An untrained Llama of 2.9 million parameters, with grouped-query attention and a head of its own."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        bos_token_id=SPECIAL.index(BEGIN),
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(UNKNOWN),
        tie_word_embeddings=False,
    )
    model: Any = LlamaForCausalLM
    return model(config)


def encode(tokenizer: Any, messages: list[Message], prompt: bool = False) -> list[int]:
    """A conversation's token ids; with ``prompt``, up to where the assistant is to speak."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def batches(tokenizer: Any, steps: int) -> Iterator[torch.Tensor]:
    """Conversations of about one length, (conversations, tokens), padded; about TOKENS_PER_STEP tokens each."""
    rng = random.Random(0)
    waiting: list[list[list[int]]] = []
    for step in range(steps):
        if not waiting:
            # Not the seed of the conversations that are written: those are for the draft.
            made = [encode(tokenizer, messages) for messages in conversations(seed=1_000_000 + step, count=2000)]
            made.sort(key=len)
            while made:
                rows = max(1, TOKENS_PER_STEP // len(made[-1]))
                waiting.append(made[-rows:])
                del made[-rows:]
            rng.shuffle(waiting)
        batch = waiting.pop()
        width = len(batch[-1])
        yield torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in batch])


def train(model: Any, tokenizer: Any, steps: int) -> float:
    """Train on all tokens; returns the mean loss (nats a token) of the last tenth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.51 + 0.49 * math.cos(math.pi * step / steps))
    )
    losses: list[float] = []
    begin = time.monotonic()
    for step, ids in enumerate(batches(tokenizer, steps), start=1):
        loss = model(input_ids=ids, labels=ids.masked_fill(ids == tokenizer.pad_token_id, IGNORED)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0:
            took = time.monotonic() - begin
            print(f"tiny target: step {step} of {steps}, loss {losses[-1]:.3f}, {took:.0f} s", flush=True)
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def quality(model: Any, tokenizer: Any, questions: int = 48) -> dict[str, float]:
    """How far greedy answers agree with the grammar's likeliest ones, by the names of FLOORS."""
    rng = random.Random(0)
    asked = [(rng.randrange(NUMBERS), rng.choice(tuple(STRIDES))) for _ in range(questions)]
    wanted = [tokenizer.convert_tokens_to_ids([*answer(*numbers), END]) for numbers in asked]
    prompts = torch.tensor(
        [encode(tokenizer, [{"role": "user", "content": question(*numbers)}], prompt=True) for numbers in asked]
    )
    model.eval()
    made = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=max(map(len, wanted)), do_sample=False
    )[:, prompts.shape[1] :].tolist()
    agreed = [
        next((i for i, (got, want) in enumerate(zip(answered, words, strict=False)) if got != want), len(words))
        for answered, words in zip(made, wanted, strict=True)
    ]
    exact = sum(count == len(words) for count, words in zip(agreed, wanted, strict=True))
    return {"exact_answers": exact / questions, "correct_words": sum(agreed) / sum(map(len, wanted))}
