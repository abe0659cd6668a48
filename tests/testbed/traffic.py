"""Requests as clients send them: chat completions at an address, one after the other."""

import json
import random
import urllib.request
from collections.abc import Sequence
from typing import Any


def post(url: str, path: str, body: dict[str, Any], timeout: float = 60.0) -> Any:
    """POST JSON, return JSON."""
    request = urllib.request.Request(  # noqa: S310 - the address of a test's own Service
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
        return json.loads(answer.read())


def chat(url: str, conversations: Sequence[list[dict[str, str]]], *, max_tokens: int = 64) -> int:
    """Send each conversation once, greedily; returns the tokens that were answered."""
    tokens = 0
    for messages in conversations:
        body = {"model": "any", "messages": messages, "temperature": 0, "max_tokens": max_tokens}
        tokens += post(url, "/v1/chat/completions", body)["usage"]["completion_tokens"]
    return tokens


def nonsense(url: str, seed: int, *, max_tokens: int = 64) -> None:
    """One request of random tokens, which no conversation has prepared the draft for."""
    ids = random.Random(seed).choices(range(10, 1000), k=20)
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    post(url, "/generate", {"input_ids": ids, "sampling_params": sampling})
