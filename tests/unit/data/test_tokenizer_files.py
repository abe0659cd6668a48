"""Which tokens are special is read from the tokenizer's files as transformers reads it, without loading it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models  # type: ignore[import-untyped]
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from eagle3_draft.data.tokenizer_files import own_template, special_tokens, tokenizer_digest
from tiny.tokenizer import SPECIAL, new_tokenizer


def reserving() -> Any:
    """A tokenizer as Llama 3's: 256 special tokens that it names, few of which anything writes."""
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    backend.add_tokens([AddedToken("<tool_call>", special=False)])
    backend.add_special_tokens(["<|begin|>", "<|eot|>", *(f"<|reserved_{number}|>" for number in range(254))])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|eot|>")


@pytest.mark.parametrize("make", [new_tokenizer, reserving])
def test_they_are_those_that_transformers_takes_for_special(make: Any, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    loaded: Any = AutoTokenizer.from_pretrained(tmp_path)
    expected = set(loaded.all_special_ids) | {
        number for number, token in loaded.added_tokens_decoder.items() if token.special
    }
    found = special_tokens(tmp_path)
    assert set(found.texts) == expected
    assert {number: loaded.convert_ids_to_tokens(number) for number in found.texts} == found.texts
    named = (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id)
    assert found.framing == {number for number in named if number is not None}


def test_a_tokenizer_that_only_its_own_code_can_load_names_them_beside_it(tmp_path: Path) -> None:
    """Kimi's: a vocabulary for tiktoken, and the special tokens in the settings."""
    (tmp_path / "tiktoken.model").write_text("")
    settings = {
        "added_tokens_decoder": {
            "163584": {"content": "[BOS]", "special": True},
            "163586": {"content": "<|im_end|>", "special": True},
            "163606": {"content": "<think>", "special": False},
            "163838": {"content": "[PAD]", "special": False},
        },
        "bos_token": "[BOS]",
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "[PAD]",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = special_tokens(tmp_path)
    assert found.texts == {163584: "[BOS]", 163586: "<|im_end|>", 163838: "[PAD]"}
    assert found.framing == {163584, 163586, 163838}


def test_files_that_name_none_have_none(tmp_path: Path) -> None:
    assert special_tokens(tmp_path).texts == {}
    assert own_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert special_tokens(tmp_path).framing == frozenset()


def test_the_template_of_several_is_the_default_one(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "said"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert own_template(tmp_path) == "said"
    new_tokenizer().save_pretrained(tmp_path)
    assert all(text in (own_template(tmp_path) or "") for text in SPECIAL if text not in ("<unk>",))


def test_a_template_for_tools_beside_the_default_one_is_one_of_the_tokenizers_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tool_use.jinja").write_text("no template that anybody takes")
    alone = tokenizer_digest(tmp_path)
    # What it was before such templates counted: the keys of what is finished do not change
    assert alone == hashlib.sha256(f"tokenizer.json {hashlib.sha256(b'{}').hexdigest()}".encode()).hexdigest()
    (tmp_path / "additional_chat_templates").mkdir()
    template = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    template.write_text("tools")
    before = tokenizer_digest(tmp_path)
    template.write_text("other tools")
    assert len({alone, before, tokenizer_digest(tmp_path)}) == 3
