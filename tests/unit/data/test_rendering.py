"""The assistant's tokens are exactly those that the model has to produce, whatever the chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from eagle3_api.conditions import Reason
from eagle3_draft.data.conversations import Conversation, Message, UnusableError
from eagle3_draft.data.rendering import ANSWER_CUT, TOKENS_JOINED, Rendered, Renderer, first_token
from eagle3_draft.data.spans import HISTORY_REWRITTEN, NO_ANSWER, REASONING_LEFT_OUT
from eagle3_draft.data.template import TEMPLATE_REFUSED
from eagle3_draft.data.tokenizer_files import template_day
from eagle3_draft.data.tools import Tool
from eagle3_draft.errors import StageError

SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "<|User|>",
    "<|Assistant|>",
    "<|channel|>",
    "<|message|>",
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
# In the manner of published ones: the reasoning of history is stripped, no line ends a turn, the last turn ends otherwise
QWEN3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set parts = m.content.split('</think>') if m.role == 'assistant' else [m.content] %}"
    "{% set reasoning = m.reasoning_content or (parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 else '') %}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or reasoning) %}"
    "<think>\n{{ reasoning.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ parts[-1].lstrip('\n') if m.role == 'assistant' else m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3_OPENED = QWEN3.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
DEEPSEEK = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}<|Assistant|>{{ m.content.split('</think>')[-1] }}</s>"
    "{% else %}<|User|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
RETURNING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}</s>{% else %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)

TURNS: list[Message] = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris. It's Paris!"},
    {"role": "user", "content": "And of Paris. It's Paris!"},
    {"role": "assistant", "content": "Ünïcode ☃ 東京\n\n  indented"},
]


MERGES = [("Ġ", "t"), ("i", "s"), ("a", "n"), ("P", "a"), ("Pa", "r"), ("Ċ", "Ċ"), (":", "Ġ")]


def bytelevel(merges: Sequence[tuple[str, str]] = MERGES, special: Sequence[str] = SPECIAL) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a few merges, so that tokens are longer and shorter than characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*special, *alphabet, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [*merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([*special])
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
        return 0x110040

    def get_vocab(self) -> dict[str, int]:
        return dict(self.added_tokens_encoder)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [*text]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token) + 64  # beyond the special ones

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index - 64)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


#: Each byte is a token, and each character: none is joined over a bound.
BYTES, CHARACTERS = bytelevel(merges=[]), CharacterTokenizer()


def answers(renderer: Renderer, tokenizer: Any, messages: list[Message], tools: Sequence[Tool] = ()) -> list[str]:
    """The text of each run of tokens that are marked as the assistant's."""
    rendered = renderer.conversation(messages, tools)
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
    expected = [before + TURNS[i]["content"] + after for i in (1, 3)]
    assert answers(Renderer(tokenizer, template, 4096), tokenizer, TURNS) == expected


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED], ids=["compared", "marked"])
def test_a_template_that_asks_what_day_it_is_is_told_the_same_day_every_day(template: str) -> None:
    """A run that goes on tomorrow finds its shards and its answers by the tokens of today."""
    asking = (
        "{%- macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro -%}"
        "<|im_start|>system\n{{ day() }}, {{ strftime_now('%Y-%m-%d') }}<|im_end|>\n" + template
    )
    renderer = Renderer(BYTES, asking, 4096)
    said = "<|im_start|>system\n15 Jun 2026, 2026-06-15<|im_end|>\n"
    for ids in (renderer.prompt(TURNS[:1]), list(renderer.conversation(TURNS).input_ids)):
        assert str(BYTES.decode(ids, skip_special_tokens=False)).startswith(said)
    assert (template_day(asking), template_day(template)) == ("2026-06-15", None)


@dataclass(frozen=True)
class Shape:
    """What a template makes of an answer.

    Attributes:
        template: Jinja.
        end: what ends a turn.
        before: what the model has to produce before the words.
        before_last: the same in the last turn.
        strips: what is taken from the words' ends.
        end_of_last: what ends the last turn, where that is something else.
    """

    template: str
    end: str
    before: str = ""
    before_last: str | None = None
    lstrips: str = ""
    rstrips: str = ""
    end_of_last: str | None = None

    def taught(self, contents: Sequence[str]) -> list[str]:
        """What is to be learned from each of these answers."""
        found = [self.before + content.lstrip(self.lstrips).rstrip(self.rstrips) + self.end for content in contents]
        last = self.before if self.before_last is None else self.before_last
        end = self.end if self.end_of_last is None else self.end_of_last
        return [*found[:-1], last + found[-1].removeprefix(self.before).removesuffix(self.end) + end]


SPACES = " \n\t\r\u2003"
SHAPES = {
    "chatml": Shape(CHATML, "<|im_end|>"),
    "marked": Shape(CHATML_MARKED, "<|im_end|>"),
    "marked-without-end": Shape(CHATML_MARKED_WITHOUT_END, "<|im_end|>"),
    "llama3": Shape(LLAMA3, "<|eot_id|>", lstrips=SPACES, rstrips=SPACES),
    "mistral": Shape(MISTRAL, "</s>", before=" "),
    "vicuna": Shape(VICUNA, "</s>"),
    "thinking": Shape(THINKING, "<|im_end|>", before_last="<think>\n\n</think>\n\n"),
    "opened-thinking": Shape(OPENED_THINKING, "<|im_end|>"),
    "without-end": Shape(WITHOUT_END, "\n", before=" "),
    "qwen3": Shape(QWEN3, "<|im_end|>", before_last="<think>\n\n</think>\n\n", lstrips="\n"),
    "qwen3-opened": Shape(QWEN3_OPENED, "<|im_end|>", before_last="\n</think>\n\n", lstrips="\n"),
    "deepseek": Shape(DEEPSEEK, "</s>"),
    "returning": Shape(RETURNING, "<|im_end|>", before="<|channel|>final<|message|>", end_of_last="</s>"),
}
WORDS = [
    "",
    *"deinast_>|<",
    "end",
    "im",
    "start",
    "user",
    "assistant",
    "think",
    "header",
    "ASSISTANT:",
    "final",
    *SPECIAL,
]
CONTENTS = st.sampled_from(WORDS) | st.text(
    st.sampled_from("adeinmst_<>|:/ \n\t\u2003é東\U0001f600\U0001f468\u200d"), max_size=6
)


@pytest.mark.parametrize(
    ("name", "tokenizer"), [*((name, BYTES) for name in SHAPES), ("llama3", CHARACTERS), ("qwen3-opened", CHARACTERS)]
)
@settings(max_examples=50)
@given(exchanges=st.lists(st.tuples(CONTENTS, CONTENTS), min_size=1, max_size=3))
def test_whatever_is_said_the_answers_are_taught_with_what_ends_them_and_no_more(
    name: str, tokenizer: Any, exchanges: list[tuple[str, str]]
) -> None:
    shape = SHAPES[name]
    messages: list[Message] = [
        {"role": role, "content": content}
        for exchange in exchanges
        for role, content in zip(("user", "assistant"), exchange, strict=True)
    ]
    found = answers(Renderer(tokenizer, shape.template, 4096), tokenizer, messages)
    assert found == shape.taught([answer for _, answer in exchanges])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_answer_of_the_templates_own_words_is_not_taken_for_them(shape: Shape) -> None:
    renderer = Renderer(BYTES, shape.template, 4096)
    for word in WORDS:
        messages: list[Message] = [{"role": "user", "content": "Say it"}, {"role": "assistant", "content": word}]
        assert answers(renderer, BYTES, messages) == shape.taught([word])


def test_what_the_template_ends_only_the_last_turn_with_is_not_sought_in_the_next_ones_beginning() -> None:
    template = CHATML.replace("<|im_end|>\n", "{% if loop.last %}<|im_end|>{% endif %}")
    with pytest.raises(UnusableError, match=HISTORY_REWRITTEN):
        Renderer(BYTES, template, 4096).conversation(TURNS)
    assert answers(Renderer(BYTES, template, 4096), BYTES, TURNS[:2]) == [TURNS[1]["content"] + "<|im_end|>"]


def test_reasoning_is_taught_after_what_the_prompt_opens_and_not_in_history() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "<think>\ni\n</think>\n\nd"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "i", "reasoning_content": "d"},
    ]
    for template, opened in ((QWEN3, "<think>\n"), (QWEN3_OPENED, "")):
        found = answers(Renderer(BYTES, template, 4096), BYTES, messages)
        assert found == ["d<|im_end|>", f"{opened}d\n</think>\n\ni<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "said"),
    [(CHATML, "\U000f0000Answer\U000f0000"), (CHATML_MARKED, "\U000f0001"), (CHATML_MARKED, "\U000f0002")],
)
def test_a_conversation_that_holds_what_stands_for_an_answer_is_dropped(template: str, said: str) -> None:
    messages: list[Message] = [{"role": "user", "content": said}, TURNS[1]]
    with pytest.raises(UnusableError, match=HISTORY_REWRITTEN):
        Renderer(BYTES, template, 4096).conversation(messages)


@pytest.mark.parametrize("tokenizer", [bytelevel(), BYTES, word_level()], ids=["bytelevel", "bytes", "words"])
@given(text=st.lists(CONTENTS, max_size=8).map("".join))
def test_the_first_token_at_a_character_is_the_first_whose_characters_begin_there_or_later(
    tokenizer: Any, text: str
) -> None:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    for character in range(len(text) + 1):
        found = first_token(encoded.encodings[0], character, len(text))
        there = [begin >= character and end > character for begin, end in encoded["offset_mapping"]]
        assert found == (there.index(True) if True in there else len(there))


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


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED, LLAMA3])
def test_a_conversation_that_the_assistant_begins_is_learned_from_too(template: str) -> None:
    end = "<|eot_id|>" if template == LLAMA3 else "<|im_end|>"
    found = answers(Renderer(BYTES, template, 4096), BYTES, [TURNS[1], *TURNS])
    assert found == [TURNS[i]["content"] + end for i in (1, 1, 3)]


def test_an_empty_answer_is_its_end_alone() -> None:
    tokenizer = bytelevel()
    messages: list[Message] = [{"role": "user", "content": "Hush"}, {"role": "assistant", "content": ""}]
    assert answers(Renderer(tokenizer, CHATML, 64), tokenizer, messages) == ["<|im_end|>"]


def test_a_slow_tokenizer_is_given_a_text_some_times_over_however_many_turns_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer, given = Renderer(CHARACTERS, CHATML, 1 << 16), list[str]()
    encode = renderer._encode

    def encoded(text: str) -> list[int]:
        given.append(text)
        return encode(text)

    monkeypatch.setattr(renderer, "_encode", encoded)
    renderer.conversation(TURNS * 10)
    assert sum(map(len, given)) <= 3 * max(map(len, given))


def test_a_slow_tokenizer_that_begins_each_text_with_a_token_of_its_own_tells_the_answers_too() -> None:
    class Beginning(CharacterTokenizer):
        def tokenize(
            self, text: str, pair: str | None = None, add_special_tokens: bool = False, **options: Any
        ) -> list[str]:
            return ["_", *super().tokenize(text, **options)]

    tokenizer = Beginning()
    assert answers(Renderer(tokenizer, VICUNA, 1 << 16), tokenizer, TURNS) == answers(
        Renderer(CHARACTERS, VICUNA, 1 << 16), CHARACTERS, TURNS
    )


def test_a_long_conversation_is_cut() -> None:
    tokenizer = bytelevel()
    whole, cut = (Renderer(tokenizer, CHATML, length).conversation(TURNS) for length in (4096, 70))
    assert (len(whole.input_ids) > 70, len(cut.input_ids)) == (True, 70)
    assert whole.input_ids[:70] == cut.input_ids
    assert whole.loss_mask[:70] == cut.loss_mask
    assert (whole.lost, cut.lost) == (0, len(whole.input_ids) - 70)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=5)
@given(exchanges=st.lists(st.tuples(CONTENTS, CONTENTS), min_size=2, max_size=3))
def test_wherever_a_conversation_is_cut_the_rest_is_taught_as_in_the_whole(
    name: str, exchanges: list[tuple[str, str]]
) -> None:
    """Though answers that begin behind the cut are not looked at."""
    said = [
        (asked, answer) for exchange in exchanges for asked, answer in zip(("user", "assistant"), exchange, strict=True)
    ]
    messages: list[Message] = [{"role": role, "content": content} for role, content in said]
    whole = Renderer(BYTES, SHAPES[name].template, 1 << 16).conversation(messages)
    for length in range(1, len(whole.input_ids) + 1):
        (cut,) = Renderer(BYTES, SHAPES[name].template, length).conversations([Conversation(messages, b"")])
        if 1 not in whole.loss_mask[:length]:
            assert str(cut) == ANSWER_CUT
        else:
            assert isinstance(cut, Rendered)
            assert (cut.input_ids, cut.loss_mask) == (whole.input_ids[:length], whole.loss_mask[:length])


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
    renderer = Renderer(tokenizer, template, 70)
    every = [TURNS, TURNS[:1], [{"role": "system", "content": "Be brief."}, *TURNS[:2]], TURNS[:2]]
    together = renderer.conversations([Conversation(messages, b"") for messages in every])
    found = [one if isinstance(one, Rendered) else str(one) for one in together]

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


HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"]

#: In the manner of gpt-oss's: an answer's reasoning is its thinking, a message of its own that history does not have.
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}"
    "{% if loop.last and 'thinking' in m %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "<|channel|>final{% endif %}<|message|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            CHANNELS,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Madrid.<|return|>",
        ),
        (
            CHATML.replace(
                "{{ m.content", "{% if m.get('reasoning') %}<think>{{ m['reasoning'] }}</think>{% endif %}{{ m.content"
            ),
            "<think>hm</think>Madrid.<|im_end|>",
        ),
    ],
    ids=["thinking", "reasoning"],
)
def test_reasoning_is_handed_to_the_template_by_the_name_that_it_asks_for(template: str, expected: str) -> None:
    messages: list[Message] = [
        TURNS[0],
        {"role": "assistant", "content": "Paris.", "reasoning_content": "dropped by a server"},
        {"role": "user", "content": "And of Spain?"},
        {"role": "assistant", "content": "Madrid.", "reasoning_content": "hm"},
    ]
    tokenizer = bytelevel(merges=[], special=[*SPECIAL, *HARMONY])
    renderer = Renderer(tokenizer, template, 4096)
    assert answers(renderer, tokenizer, messages)[-1] == expected
    assert "dropped by a server" not in tokenizer.decode(list(renderer.conversation(messages).input_ids))


@pytest.mark.parametrize(
    "template",
    [CHATML, CHATML_MARKED, DEEPSEEK, CHATML + "{# reasoning_content #}"],
    ids=["compared", "marked", "of its own", "named alone"],
)
def test_an_answer_is_not_learned_without_the_reasoning_that_led_to_it(template: str) -> None:
    """The target would reason first: what it is served with is mostly that."""
    messages = [*TURNS[:3], {**TURNS[3], "reasoning_content": "hm"}]
    with pytest.raises(UnusableError, match=REASONING_LEFT_OUT):
        Renderer(BYTES, template, 4096).conversation(messages)
    if template == DEEPSEEK:
        with pytest.raises(UnusableError, match=REASONING_LEFT_OUT):
            Renderer(BYTES, template, 4096).conversation([TURNS[0], {**TURNS[1], "content": "<think>hm</think>Paris."}])
    Renderer(BYTES, template, 4096).conversation([TURNS[0], {**TURNS[1], "content": "<think>\n</think>Paris."}])
    # A server leaves that of former answers out as well
    Renderer(BYTES, template, 4096).conversation([TURNS[0], {**TURNS[1], "reasoning_content": "hm"}, *TURNS[2:]])
