from typing import Any

import pytest
from jinja2 import TemplateError

from tiny.grammar import WORDS, conversations, tokens
from tiny.tokenizer import ASSISTANT, END, SPECIAL, VOCABULARY, new_tokenizer, vocabulary
from tiny.train import encode


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return new_tokenizer()


def test_every_word_is_one_known_token(tokenizer: Any) -> None:
    ids = tokenizer.convert_tokens_to_ids(list(WORDS))
    assert tokenizer.unk_token_id not in ids
    assert len(set(ids)) == len(WORDS)


def test_ids_fill_the_vocabulary_and_the_words_in_use_are_no_prefix_of_it() -> None:
    ids = vocabulary()
    assert sorted(ids.values()) == list(range(VOCABULARY))
    assert max(ids[word] for word in WORDS) > 2 * len(WORDS)


def test_a_conversation_is_as_long_as_its_words_and_markers(tokenizer: Any) -> None:
    for messages in conversations(1, 50):
        assert len(encode(tokenizer, messages)) == tokens(messages)


def test_the_prompt_is_the_beginning_of_the_conversation(tokenizer: Any) -> None:
    for messages in conversations(2, 50):
        whole, prompt = encode(tokenizer, messages), encode(tokenizer, messages[:-1], prompt=True)
        assert whole[: len(prompt)] == prompt
        assert tokenizer.decode(prompt[-1]) == ASSISTANT


def test_the_template_marks_what_the_assistant_says_and_its_end(tokenizer: Any) -> None:
    for messages in conversations(3, 50):
        made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        marked = [i for i, said in zip(made["input_ids"], made["assistant_masks"], strict=True) if said]
        said = " ".join(f"{m['content']} {END}" for m in messages if m["role"] == "assistant")
        assert tokenizer.convert_ids_to_tokens(marked) == said.split()


def test_another_role_is_refused(tokenizer: Any) -> None:
    with pytest.raises(TemplateError, match="only user and assistant speak here, not system"):
        tokenizer.apply_chat_template([{"role": "system", "content": "ones"}], tokenize=False)


def test_markers_are_special_tokens_that_decoding_leaves_out(tokenizer: Any) -> None:
    assert set(SPECIAL) <= set(tokenizer.all_special_tokens)
    assert tokenizer.decode(tokenizer.encode("<s><user>count on<end>"), skip_special_tokens=True) == "count on"
