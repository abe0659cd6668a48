"""The assistant's tokens are exactly those that the model has to produce, whatever the chat template."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from eagle3_api.conditions import Reason
from eagle3_draft.data.conversations import Message
from eagle3_draft.data.rendering import (
    ANSWER_CUT,
    HISTORY_REWRITTEN,
    NO_ANSWER,
    TEMPLATE_REFUSED,
    TOKENS_JOINED,
    Rendered,
    Renderer,
    UnusableError,
)
from eagle3_draft.stage import StageError

SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{%- generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_MARKED_WITHOUT_END = CHATML_MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
LLAMA3 = (
    "<s>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>{% else %}{{ raise_exception('no system turn') }}{% endif %}"
    "{% endfor %}"
)
VICUNA = (
    "{% for m in messages %}{% if m.role == 'assistant' %}ASSISTANT: {{ m.content }}</s>"
    "{% else %}{{ m.role | upper }}: {{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
THINKING = (
    "{% set last = messages | length - 1 %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 == last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENED_THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
WITHOUT_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"

TURNS: list[Message] = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris. It's Paris!"},
    {"role": "user", "content": "And of Paris. It's Paris!"},
    {"role": "assistant", "content": "Ünïcode ☃ 東京\n\n  indented"},
]


def bytelevel() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a few merges, so that tokens are longer and shorter than characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("i", "s"), ("a", "n"), ("P", "a"), ("Pa", "r"), ("Ċ", "Ċ"), (":", "Ġ")]
    words = [*SPECIAL, *alphabet, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")  # type: ignore[no-untyped-call]


def word_level() -> PreTrainedTokenizerFast:
    """Whole words; spaces are no tokens."""
    words = [*SPECIAL, "[UNK]", "user", "assistant", "one", "two", "three", "four"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="[UNK]")  # type: ignore[no-untyped-call]


class CharacterTokenizer(PreTrainedTokenizer):
    """A slow tokenizer, in Python, as some targets bring: it cannot tell which characters a token came from."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(additional_special_tokens=SPECIAL[2:], bos_token="<s>", eos_token="</s>", **settings)  # type: ignore[no-untyped-call]

    @property
    def vocab_size(self) -> int:
        return 0x3000 * 8

    def get_vocab(self) -> dict[str, int]:
        return dict(self.added_tokens_encoder)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [*text]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def answers(renderer: Renderer, tokenizer: Any, messages: list[Message]) -> list[str]:
    """The text of each run of tokens that are marked as the assistant's."""
    rendered = renderer.conversation(messages)
    runs: list[list[int]] = []
    previous = 0
    for token, marked in zip(rendered.input_ids, rendered.loss_mask, strict=True):
        if marked:
            if not previous:
                runs.append([])
            runs[-1].append(token)
        previous = marked
    return [tokenizer.decode(run, skip_special_tokens=False, clean_up_tokenization_spaces=False) for run in runs]


@pytest.mark.parametrize("tokenizer", [bytelevel(), CharacterTokenizer()], ids=["fast", "slow"])
@pytest.mark.parametrize(
    ("template", "before", "after"),
    [
        (CHATML, "", "<|im_end|>"),
        (CHATML_MARKED, "", "<|im_end|>"),
        (CHATML_MARKED_WITHOUT_END, "", "<|im_end|>"),
        (LLAMA3, "", "<|eot_id|>"),
        (MISTRAL, " ", "</s>"),
        (VICUNA, "", "</s>"),
        (WITHOUT_END, " ", "\n"),
    ],
    ids=["chatml", "marked", "marked-without-end", "llama3", "mistral", "vicuna", "without-end"],
)
def test_the_answer_and_its_end_are_the_assistants_and_nothing_else(
    tokenizer: Any, template: str, before: str, after: str
) -> None:
    if template in (CHATML_MARKED, CHATML_MARKED_WITHOUT_END) and not tokenizer.is_fast:
        template = template.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
    expected = [before + TURNS[i]["content"] + after for i in (1, 3)]
    assert answers(Renderer(tokenizer, template, 4096), tokenizer, TURNS) == expected


def test_marks_of_the_template_and_comparison_agree() -> None:
    tokenizer = bytelevel()
    assert Renderer(tokenizer, CHATML_MARKED, 4096).conversation(TURNS) == Renderer(
        tokenizer, CHATML, 4096
    ).conversation(TURNS)


@pytest.mark.parametrize("tokenizer", [bytelevel(), CharacterTokenizer()], ids=["fast", "slow"])
def test_an_answer_that_is_rendered_otherwise_as_history_is_still_exact(tokenizer: Any) -> None:
    assert answers(Renderer(tokenizer, THINKING, 4096), tokenizer, TURNS) == [
        TURNS[1]["content"] + "<|im_end|>",
        "<think>\n\n</think>\n\n" + TURNS[3]["content"] + "<|im_end|>",
    ]


@pytest.mark.parametrize("tokenizer", [bytelevel(), CharacterTokenizer()], ids=["fast", "slow"])
def test_a_generation_prompt_that_opens_thinking_is_not_part_of_the_answer(tokenizer: Any) -> None:
    expected = [TURNS[i]["content"] + "<|im_end|>" for i in (1, 3)]
    assert answers(Renderer(tokenizer, OPENED_THINKING, 4096), tokenizer, TURNS) == expected


def test_words_without_spaces_between_tokens_are_exact_too() -> None:
    tokenizer = word_level()
    template = CHATML.replace("\n", " ").replace("}<|im_end|>", "} <|im_end|>")
    messages: list[Message] = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three four"}]
    assert answers(Renderer(tokenizer, template, 64), tokenizer, messages) == ["three four <|im_end|>"]


def test_an_empty_answer_is_its_end_alone() -> None:
    tokenizer = bytelevel()
    messages: list[Message] = [{"role": "user", "content": "Hush"}, {"role": "assistant", "content": ""}]
    assert answers(Renderer(tokenizer, CHATML, 64), tokenizer, messages) == ["<|im_end|>"]


def test_a_long_conversation_is_cut() -> None:
    tokenizer = bytelevel()
    whole, cut = (Renderer(tokenizer, CHATML, length).conversation(TURNS) for length in (4096, 70))
    assert (len(whole.input_ids) > 70, len(cut.input_ids)) == (True, 70)
    assert whole.input_ids[:70] == cut.input_ids
    assert whole.loss_mask[:70] == cut.loss_mask


def test_a_conversation_renders_like_the_request_that_the_server_sees() -> None:
    tokenizer = bytelevel()
    renderer = Renderer(tokenizer, CHATML, 4096)
    prompt = renderer.prompt(TURNS[:1])
    whole = renderer.conversation(TURNS[:2])
    assert whole.input_ids[: len(prompt)].tolist() == prompt
    assert list(whole.loss_mask[: len(prompt)]) == [0] * len(prompt)
    assert whole.loss_mask[len(prompt)] == 1


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED, MISTRAL])
@pytest.mark.parametrize("tokenizer", [bytelevel(), CharacterTokenizer()], ids=["fast", "slow"])
def test_conversations_that_are_rendered_together_are_each_what_they_are_alone(tokenizer: Any, template: str) -> None:
    if not tokenizer.is_fast:
        template = template.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
    renderer = Renderer(tokenizer, template, 70)
    every = [TURNS, TURNS[:1], [{"role": "system", "content": "Be brief."}, *TURNS[:2]], TURNS[:2]]
    found = [one if isinstance(one, Rendered) else str(one) for one in renderer.conversations(every)]

    def alone(messages: list[Message]) -> Rendered | str:
        try:
            return renderer.conversation(messages)
        except UnusableError as why:
            return str(why)

    assert found == [alone(messages) for messages in every]
    assert found[1] == NO_ANSWER
    assert isinstance(found[3], Rendered)


@pytest.mark.parametrize(
    ("template", "messages", "length", "why"),
    [
        (CHATML, TURNS[:1], 4096, NO_ANSWER),
        (CHATML, TURNS, 10, ANSWER_CUT),
        (MISTRAL, [{"role": "system", "content": "Be brief."}, *TURNS], 4096, TEMPLATE_REFUSED),
        (CHATML.replace("{{ m.content }}", "{{ m.content | upper }}"), TURNS, 4096, HISTORY_REWRITTEN),
    ],
)
def test_what_cannot_be_learned_from_says_why(template: str, messages: list[Message], length: int, why: str) -> None:
    with pytest.raises(UnusableError, match=why):
        Renderer(bytelevel(), template, length).conversation(messages)


def test_a_slow_tokenizer_that_joins_prompt_and_answer_is_noticed() -> None:
    class Joining(CharacterTokenizer):
        def _tokenize(self, text: str, **_: Any) -> list[str]:
            return [*text.replace("\nP", "\u2424")]

    with pytest.raises(UnusableError, match=TOKENS_JOINED):
        Renderer(Joining(), CHATML, 4096).conversation(TURNS)


def test_a_template_that_is_no_jinja_is_named() -> None:
    with pytest.raises(StageError) as raised:
        Renderer(bytelevel(), "{% for m in messages %}", 64)
    assert raised.value.reason == Reason.TEMPLATE_MISSING


def test_reasoning_in_the_data_is_learned_from_where_the_template_renders_it() -> None:
    template = CHATML.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}",
    )
    messages = [TURNS[0], {**TURNS[1], "reasoning_content": "hm"}]
    tokenizer = bytelevel()
    assert answers(Renderer(tokenizer, template, 4096), tokenizer, messages) == [
        f"<think>hm</think>{TURNS[1]['content']}<|im_end|>"
    ]
