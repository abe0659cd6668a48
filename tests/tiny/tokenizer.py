"""One token a word, and a chat template whose assistant turns are marked for training."""

from __future__ import annotations

import random
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast

from tiny.grammar import WORDS

VOCABULARY = 1024
UNKNOWN, BEGIN, END, USER, ASSISTANT = "<unk>", "<s>", "<end>", "<user>", "<assistant>"
SPECIAL = (UNKNOWN, BEGIN, END, USER, ASSISTANT)

#: What an answer under a JSON schema is made of; no conversation has them.
JSON_WORDS = ("{", "}", "[", "]", '"', ":", ",", "true", "false", "null")

CHAT_TEMPLATE = """\
{{- '<s>' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<user>' + message.content + '<end>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<assistant>' }}
        {%- generation %}{{- message.content + '<end>' }}{%- endgeneration %}
    {%- else %}
        {{- raise_exception('only user and assistant speak here, not ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""


def vocabulary() -> dict[str, int]:
    """Words to ids: special ones first, the others in no order, so that a draft's pruned vocabulary is not a prefix."""
    words = [*WORDS, *JSON_WORDS]
    words += [f"unused{i}" for i in range(VOCABULARY - len(SPECIAL) - len(words))]
    random.Random(0).shuffle(words)
    return {word: i for i, word in enumerate((*SPECIAL, *words))}


def new_tokenizer() -> Any:
    """The target's tokenizer, for ``save_pretrained`` and ``apply_chat_template``."""
    backend = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    fast: Any = PreTrainedTokenizerFast
    return fast(
        tokenizer_object=backend,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
    )
