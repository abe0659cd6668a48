"""Files from strangers: whatever is in them, they are read within bounds or refused with a sentence, and nothing is run."""

import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eagle3_api.checkpoints import Served, Target, UnreadableError, check, read_folder, read_form, report
from eagle3_api.checkpoints.files import SIDE_FILES, TENSORS_LIMIT, StoredTensor
from eagle3_api.checkpoints.form import LATENT_SIZES
from eagle3_api.checkpoints.pickled import DIRECTORY_LIMIT, PickleError, read_tensors
from eagle3_api.checkpoints.safetensors import BITS, DRAFT_HEADER_LIMIT, HeaderError, Tensor, read_header
from eagle3_api.sglang import Version
from eagle3_draft.tensors import pieces
from published import files, shapes

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "draft_vocab_size": 64,
}

#: What looking at a hostile folder may take beyond the interpreter's own.
MEMORY = 100_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good draft, to be spoiled."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files.write(tmp_path / "model.safetensors", shapes.tensors(CONFIG))
    return tmp_path


@contextmanager
def memory(limit: int) -> Iterator[None]:
    """What runs in here allocates no more than so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(UnreadableError) as no:
        read_folder(folder)
    for word in words:
        assert word in str(no.value)


# ------------------------------------------------------------------------------------------------- safetensors


def header(**tensors: Any) -> bytes:
    return json.dumps(tensors).encode()


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

HEADERS: dict[str, tuple[bytes, bytes, str]] = {
    "a shape whose product overflows": (
        header(a={"dtype": "F32", "shape": [2**40, 2**40, 2**40], "data_offsets": [0, 8]}),
        bytes(8),
        "has 8 bytes",
    ),
    "a size beyond every model": (
        header(a={"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}),
        b"",
        "broken",
    ),
    "a thousand dimensions": (
        header(a={"dtype": "F32", "shape": [1] * 1000, "data_offsets": [0, 4]}),
        bytes(4),
        "broken",
    ),
    "a negative size": (header(a={"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}), bytes(8), "broken"),
    "a truth value for a size": (
        header(a={"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}),
        bytes(4),
        "broken",
    ),
    "a fraction for a size": (header(a={"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}), bytes(8), "broken"),
    "values that overlap": (header(a=ONE, b=ONE), bytes(8), "not where those before end"),
    "a hole between values": (
        header(a=ONE, b={"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}),
        bytes(16),
        "not where those before end",
    ),
    "values behind the file": (
        header(a={"dtype": "F32", "shape": [2**30], "data_offsets": [0, 2**32]}),
        bytes(8),
        "was cut",
    ),
    "offsets that go back": (header(a={"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}), bytes(8), "broken"),
    "a name twice": (b'{"a": 1, "a": 2}', b"", "not JSON"),
    "a list": (b"[]", b"", "not a JSON object"),
    "brackets without end": (b"[" * 1_500_000, b"", "not JSON"),
    "a number without end": (b'{"a": ' + b"9" * 100_000 + b"}", b"", "not JSON"),
    "not UTF-8": (b"\xff\xfe{}", b"", "not JSON"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies_is_refused(folder: Path, name: str) -> None:
    text, data, words = HEADERS[name]
    files.write_raw(folder / "model.safetensors", text, data)
    refused(folder, "model.safetensors", words)


def test_a_header_longer_than_a_draft_can_need_is_not_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40))
    os.truncate(path, 2**41)
    with memory(DRAFT_HEADER_LIMIT):
        refused(folder, "is not a safetensors file, or was cut")
        path.write_bytes(struct.pack("<Q", DRAFT_HEADER_LIMIT + 1))
        os.truncate(path, 2 * DRAFT_HEADER_LIMIT)
        refused(folder, "is not a safetensors file, or was cut")


@pytest.mark.parametrize("size", [0, 4, 8, 9, 100])
def test_a_file_that_was_cut_anywhere_is_noticed(folder: Path, size: int) -> None:
    os.truncate(folder / "model.safetensors", size)
    refused(folder, "model.safetensors")


# ------------------------------------------------------------------------------------------------- folders


def test_a_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "model.safetensors"
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    refused(folder, "leads out of")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    refused(folder)


def test_config_json_may_be_no_link_to_elsewhere(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/hostname")
    refused(folder, "config.json leads out of")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, "is not a regular file")


def test_the_hubs_own_cache_is_read_through_its_links(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--a--draft"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "abc").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(cache / "blobs" / name)
        (cache / "snapshots" / "abc" / name).symlink_to(f"../../blobs/{name}")
    assert len(read_folder(cache / "snapshots" / "abc").tensors) == 15


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/shadow", "a/b.safetensors", "..", "", "a\0b", 7])
def test_an_index_that_names_another_folders_file_is_refused(folder: Path, file: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": file}}))
    refused(folder, "index.json")


def test_an_index_that_names_a_file_that_is_not_there_is_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "b.safetensors"}}))
    refused(folder, "lacks b.safetensors")


def test_a_tensor_that_stands_in_two_files_is_refused(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    refused(folder, "stands in model.safetensors and in other.safetensors")


def test_a_configuration_without_end_is_not_read(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"[" * 2_000_000)
    refused(folder, "longer than")
    (folder / "config.json").write_bytes(b"[" * 900_000)
    refused(folder, "not JSON")


WRONG_TYPES: list[Any] = [None, True, -1, 0, 1.5, 2**70, "text", "1e-5", [], {}, [[]], [1, 2, "a"], {"a": None}]


FIELDS = (
    *CONFIG,
    "head_dim",
    "num_hidden_layers",
    "target_hidden_size",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "model_type",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "tie_word_embeddings",
    "quantization_config",
    "eagle_config",
    "eagle_aux_hidden_state_layer_ids",
    "target_layer_ids",
    "transformer_layer_config",
    "speculators_model_type",
    "norm_before_residual",
    "norm_before_fc",
    "norm_output",
    "fc_norm",
    "use_aux_norm",
    "parallel_drafting",
    "rope_interleave",
    *LATENT_SIZES,
)

NESTED = {
    "rope_parameters": (
        *("rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "mrope_section", "short_factor"),
        *("low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "full_attention"),
    ),
    "eagle_config": (
        *("eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "fc_norm", "norm_before_fc", "norm_output"),
        "use_last_layernorm",
    ),
    "transformer_layer_config": FIELDS,
}

wrong = st.sampled_from(WRONG_TYPES)
wrong_configs = st.builds(
    lambda top, nested: top | nested,
    st.dictionaries(st.sampled_from(FIELDS), wrong),
    st.fixed_dictionaries(
        {}, optional={name: st.dictionaries(st.sampled_from(inner), wrong) for name, inner in NESTED.items()}
    ),
)

LLAMA = Target("LlamaForCausalLM", num_layers=36, hidden_size=16, vocabulary_size=64, context_length=4096)
KIMI = replace(LLAMA, architecture="KimiK25ForConditionalGeneration")
serving = st.builds(
    Served,
    st.sampled_from([Version(0, 4, 1), Version(0, 5, 11), Version(0, 5, 17), Version(0, 5, 23)]),
    st.sampled_from([None, LLAMA, KIMI]),
    st.sampled_from([None, (), (-1, 2, 30), (1, 17, 32), (5, 4), (10**9,), (-7,)]),
    st.sampled_from([None, 1, 4096, 2**40]),
)

#: What makes each reader recognise a folder: fields of the configuration, and the kind of its weights.
RECOGNISED: dict[str, tuple[dict[str, Any], str]] = {
    "SpecForge or SGLang": ({}, "safetensors"),
    "SpecForge training state": ({}, "pt"),
    "EAGLE": ({}, "bin"),
    "speculators": ({"architectures": ["Eagle3Speculator"]}, "safetensors"),
    "TorchSpec": ({"_torchspec_version": "1"}, "safetensors"),
    "NeMo Automodel": ({"architectures": ["LlamaEagle3DraftModel"]}, "pt"),
    "AngelSlim": ({"architectures": ["Eagle3LlamaForCausalLM"]}, "safetensors"),
    "ModelOpt": ({"eagle_config": {"use_last_layernorm": True}}, "safetensors"),
    "latent attention": ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "safetensors"),
    "P-EAGLE": ({"architectures": ["PEagleDraftModel"]}, "safetensors"),
    "unknown": ({"architectures": ["Qwen3ForCausalLM"]}, "safetensors"),
}


def published(folder: Path, family: str) -> dict[str, Any]:
    """Weights as a family keeps them, and its configuration."""
    changes, kind = RECOGNISED[family]
    if kind != "safetensors":
        (folder / "model.safetensors").unlink(missing_ok=True)
        weights = {name: torch.zeros(shape) for name, shape in shapes.shapes(CONFIG).items()}
        torch.save(weights, folder / f"weights.{kind}")
    return CONFIG | changes


@pytest.mark.parametrize("family", RECOGNISED)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changes=wrong_configs, served=serving)
def test_any_value_in_any_field_of_any_family_ends_in_findings(
    folder: Path, family: str, changes: dict[str, Any], served: Served
) -> None:
    config = published(folder, family)
    eagle = {**config.get("eagle_config", {}), **changes["eagle_config"]} if _is_object(changes) else None
    (folder / "config.json").write_text(json.dumps(config | changes | ({"eagle_config": eagle} if eagle else {})))
    findings = check(read_form(read_folder(folder)), served)
    assert report.table(findings)
    assert json.dumps(report.to_json(findings))


def _is_object(changes: dict[str, Any]) -> bool:
    return isinstance(changes.get("eagle_config"), dict)


@pytest.mark.parametrize("family", RECOGNISED)
def test_every_reader_is_among_those_that_are_tried(folder: Path, family: str) -> None:
    config = published(folder, family)
    (folder / "config.json").write_text(json.dumps(config))
    assert read_form(read_folder(folder)).family == family


# Parts of names that mean something to a reader, in any order
name_parts = st.sampled_from(
    (
        *(
            "midlayer.",
            "layers.",
            "0.",
            "1.",
            "99999.",
            "\u0661.",
            "model.",
            "draft_model.",
            "eagle_module.",
            "verifier_",
        ),
        *("fc.weight", "fc_norm.0.weight", "lm_head.weight", "norm.weight", "embed_tokens.weight", "d2t", "t2d", ""),
        *("self_attn.", "q_proj.weight", "kv_a_proj_with_mqa.weight", "hidden_norm.weight", "mask_hidden"),
        "parallel_draft_heads.",
    )
)
names = st.lists(name_parts, max_size=5).map("".join) | st.text(max_size=12)
small = st.builds(
    Tensor, st.sampled_from(["BF16", "I64", "BOOL", "U8"]), st.lists(st.integers(0, 3), max_size=3).map(tuple)
)
contents = st.dictionaries(names.filter(lambda name: name != "__metadata__"), small, max_size=6)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tensors=contents, served=serving, family=st.sampled_from(list(RECOGNISED)))
def test_tensors_of_any_name_and_shape_end_in_findings(
    folder: Path, tensors: dict[str, Tensor], served: Served, family: str
) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | RECOGNISED[family][0]))
    files.write(folder / "model.safetensors", tensors)
    assert check(read_form(read_folder(folder)), served)


shards = st.sampled_from(["a.safetensors", "b.safetensors", "c.safetensors"])


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    index=st.dictionaries(names, shards | st.text(max_size=6) | wrong, max_size=5) | wrong,
    spread=st.dictionaries(shards, contents, max_size=3),
)
def test_any_index_over_any_shards_is_read_or_refused(
    folder: Path, index: object, spread: dict[str, dict[str, Tensor]]
) -> None:
    for old in folder.glob("*.safetensors"):
        old.unlink()
    for name, tensors in spread.items():
        files.write(folder / name, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    try:
        found = read_folder(folder)
    except UnreadableError as error:
        assert str(folder) in str(error) or "stands in" in str(error)
        return
    assert {path.name for path in found.files} <= {"config.json", *spread}
    assert check(read_form(found), Served(Version(0, 5, 21), LLAMA))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    side=st.sampled_from(SIDE_FILES),
    key=st.none() | st.sampled_from(["selected_token_ids", "d2t", "x"]),
    values=st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 63), max_size=70),
    spoil=st.none() | st.binary(max_size=30),
)
def test_any_side_file_ends_in_findings_or_is_refused(
    folder: Path, side: str, key: str | None, values: list[int], spoil: bytes | None
) -> None:
    for old in SIDE_FILES:
        (folder / old).unlink(missing_ok=True)
    ids = torch.tensor(values, dtype=torch.int64)
    (folder / side).write_bytes(saved(ids if key is None else {key: ids}) if spoil is None else spoil)
    try:
        form = read_form(read_folder(folder))
    except UnreadableError as error:
        assert side in str(error)
        return
    assert check(form, Served(Version(0, 5, 21), LLAMA))


# ------------------------------------------------------------------------------------------------- pickles


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def saved(value: Any) -> bytes:
    """What torch.save makes of it."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def with_description(description: bytes, *, compress: int = zipfile.ZIP_STORED) -> bytes:
    """A file like torch.save's with another description."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as archive:
        archive.writestr("archive/data.pkl", description)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", bytes(16))
    return out.getvalue()


def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    trace = folder / "was-run"
    bombs = [Bomb(os.system, f"touch {trace}"), Bomb(Path.touch, trace), Bomb(exec, "raise SystemExit"), Bomb(print)]
    for bomb in bombs:
        (folder / "pytorch_model.bin").write_bytes(saved({"fc.weight": torch.zeros(2), "x": bomb}))
        refused(folder, "wants more than plain tensors", "not run")
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(bomb))
        refused(folder, "not a file of torch.save")
    assert not trace.exists()


def tensor(shape: str, strides: str, *, first: int = 0, length: int = 4) -> bytes:
    """The description of one tensor, in the pickle language."""
    storage = f"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK{chr(length)}t"
    arguments = f"({storage}QK{chr(first)}{shape}{strides}\x89}}t"
    return b"\x80\x02}X\x01\0\0\0ac" + f"torch._utils\n_rebuild_tensor_v2\n{arguments}Rs.".encode("latin-1")


DESCRIPTIONS: dict[str, tuple[bytes, str]] = {
    "a call by STACK_GLOBAL": (pickle.dumps(Bomb(os.getcwd), protocol=4), "wants more"),
    "an object": (pickle.dumps(Path("a")), "wants more"),
    "an extension": (b"\x80\x02\x82\x01.", "wants more"),
    "INST": (b"(S'ls'\nios\nsystem\n.", "wants more"),
    "the end missing": (b"\x80\x02}", "broken"),
    "an empty stack": (b"\x80\x02s.", "broken"),
    "an unknown memo": (b"\x80\x02h\x05.", "broken"),
    "a string of 4 GB": (b"\x80\x02X\xff\xff\xff\xff.", "broken"),
    "a memo of 2 billion": (b"\x80\x02}r\xff\xff\xff\x7f" + b"X\x01\0\0\0as.", "broken"),
    "a tensor behind its storage": (tensor("K\x08\x85", "K\x01\x85"), "reaches behind its storage"),
    "a tensor that begins behind it": (tensor("K\x04\x85", "K\x01\x85", first=2), "reaches behind its storage"),
    "a number repeated a million times": (tensor("J\0\0\x10\0\x85", "K\0\x85"), "repeats its storage"),
    "negative strides": (tensor("K\x02\x85", "J\xff\xff\xff\xff\x85"), "broken"),
    "strides for another shape": (tensor("K\x02\x85", "K\x01K\x01\x86"), "broken"),
    "a storage that is longer than its values": (tensor("K\x02\x85", "K\x01\x85", length=9), "has 16 bytes, not 36"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_that_is_more_or_less_than_plain_tensors_is_refused(tmp_path: Path, name: str) -> None:
    description, words = DESCRIPTIONS[name]
    path = tmp_path / "a.bin"
    path.write_bytes(with_description(description))
    with pytest.raises(PickleError, match=words):
        read_tensors(path)


def test_a_plain_description_is_what_torch_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(with_description(tensor("K\x02\x85", "K\x02\x85")))
    assert torch.load(path, weights_only=True)["a"].tolist() == [0.0, 0.0]
    assert read_tensors(path)["a"].strides == (2,)


def test_a_tree_that_hangs_in_itself_is_walked_once(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"a": torch.zeros(2)}
    for _ in range(60):  # 2**60 paths
        tree = {"left": tree, "right": tree}
    tree["again"] = tree
    path = tmp_path / "a.pt"
    torch.save(tree, path)
    assert len(read_tensors(path)) == 1


def test_nothing_compressed_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(with_description(tensor("K\x02\x85", "K\x01\x85"), compress=zipfile.ZIP_DEFLATED))
    with pytest.raises(PickleError, match=r"data\.pkl is compressed"):
        read_tensors(path)
    path.write_bytes(with_description(b"\x80\x02" + b"N" * 50_000_000, compress=zipfile.ZIP_DEFLATED))
    with pytest.raises(PickleError, match="more than"):
        read_tensors(path)


def entries_of(path: Path, entries: dict[str, tuple[bytes, int]]) -> Path:
    """An archive in which each entry is stored or compressed."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (content, kind) in entries.items():
            archive.writestr(f"archive/{name}", content, compress_type=kind)
    return path


DESCRIBED = (tensor("K\x02\x85", "K\x01\x85"), zipfile.ZIP_STORED)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"data.pkl": DESCRIBED, "byteorder": (bytes(10**8), zipfile.ZIP_DEFLATED)}, "byteorder has 100000000 bytes"),
        ({"data.pkl": DESCRIBED, "byteorder": (b"little", zipfile.ZIP_DEFLATED)}, "byteorder is compressed"),
        (
            {"data.pkl": DESCRIBED, "data/0": (bytes(16), zipfile.ZIP_DEFLATED)},
            "the values of storage 0 are compressed",
        ),
    ],
)
def test_no_entry_of_an_archive_grows_when_it_is_read(
    tmp_path: Path, entries: dict[str, tuple[bytes, int]], words: str
) -> None:
    path = entries_of(tmp_path / "a.bin", entries)
    with memory(2 * DIRECTORY_LIMIT), pytest.raises(PickleError, match=words):
        read_tensors(path)


def test_a_directory_is_small_whatever_the_older_of_its_two_records_says(tmp_path: Path) -> None:
    """Where there is a ZIP64 record, it is the one that counts: the other may lie."""
    directory, at = 10**9, 1000
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, directory, at)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at + directory, 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 100, at, 0)
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        file.seek(at + directory)
        file.write(record + locator + end)
    with memory(2 * DIRECTORY_LIMIT), pytest.raises(PickleError, match="its directory has more than"):
        read_tensors(path)


def doubled(times: int) -> bytes:
    """A tuple of two tuples of two tuples, each the same: the memo makes 2**times of a few bytes."""
    return b")" + b"q\0h\0\x86" * times


DEAR: dict[str, tuple[bytes, str]] = {
    "marks that are looked for below a high stack": (b"N" * 150_000 + b"(t" * 70_000 + b".", ""),
    "a million dicts": (b"}" * 1_000_000 + b".", "more than 300000 instructions"),
    "a key that is nested in itself": (b"}" + doubled(60) + b"Ns.", "a key that is tuple"),
    "a storage that is nested in itself": (doubled(60) + b"Q.", "a storage of another kind"),
    "a call of what is nested in itself": (doubled(60) + b")R.", "to call tuple"),
    "a shape that is nested in itself": (tensor("K\x02\x85", doubled(60).decode("latin-1")), "strides are broken"),
    "a name that grows with every branch": (
        b"".join(b"}X\xd0\x07\0\0" + b"a" * 2000 for _ in range(200)) + b"}" + b"s" * 200 + b".",
        "more than 1000 characters",
    ),
}


@pytest.mark.parametrize("name", DEAR)
def test_a_short_description_takes_a_short_time_and_little_memory(tmp_path: Path, name: str) -> None:
    description, words = DEAR[name]
    path = entries_of(
        tmp_path / "a.bin",
        {"data.pkl": (b"\x80\x02" + description.removeprefix(b"\x80\x02"), 0), "data/0": (bytes(16), 0)},
    )
    began = time.process_time()
    with memory(60_000_000):
        if words:
            with pytest.raises(PickleError, match=words):
                read_tensors(path)
        else:
            assert read_tensors(path) == {}
    assert time.process_time() - began < 20


def test_a_view_of_a_few_values_does_not_bring_its_whole_storage(tmp_path: Path) -> None:
    whole = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64)
    torch.save({"a": whole[:, 3:40].t(), "b": whole[10:12]}, tmp_path / "a.bin")
    found = read_tensors(tmp_path / "a.bin")
    stored = StoredTensor(tmp_path / "a.bin", "a", "F32", found["a"].shape, found["a"].begin, found["a"].strides)
    assert torch.equal(torch.cat([*pieces(stored)]).reshape(37, 64), whole[:, 3:40].t())
    assert found["b"].begin == found["a"].begin + (10 * 64 - 3) * 4
    torch.save({"a": whole[:, 3]}, tmp_path / "a.bin")
    with pytest.raises(PickleError, match=r"scattered over 4033 numbers of its storage. Save it again after \.contig"):
        read_tensors(tmp_path / "a.bin")


def test_a_folder_of_more_tensors_than_a_draft_has_is_refused(folder: Path) -> None:
    files.write(folder / "model.safetensors", {str(i): Tensor("U8", ()) for i in range(TENSORS_LIMIT + 1)})
    refused(folder, "holds more than 4096 tensors")


def test_an_index_longer_than_a_draft_can_need_is_not_read(folder: Path) -> None:
    named = {f"{i}.weight": "model.safetensors" for i in range(60_000)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    with memory(3_000_000):
        refused(folder, "index.json is longer than 1000000 bytes")


def test_looking_at_the_worst_of_them_takes_little_memory(folder: Path) -> None:
    files.write_raw(folder / "model.safetensors", b"[" + b"[]," * (DRAFT_HEADER_LIMIT // 3 - 10) + b"[]]")
    program = (
        "import resource, sys; from pathlib import Path; from eagle3_api.checkpoints import read_folder, UnreadableError\n"
        f"limit = {MEMORY} + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "try: read_folder(Path(sys.argv[1]))\nexcept UnreadableError: pass\nelse: raise SystemExit('it was read')\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "raise SystemExit(f'{used} of {limit}' if used > limit else 0)"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, preexec_fn=_little_memory)


def _little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))


# ------------------------------------------------------------------------------------------------- fuzz


WHOLE = header(a=ONE, __metadata__={"format": "pt"})


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200) | st.tuples(st.integers(0, len(WHOLE) + 15), st.binary(max_size=8)))
def test_any_bytes_are_a_safetensors_file_or_are_not(tmp_path: Path, spoil: bytes | tuple[int, bytes]) -> None:
    whole = struct.pack("<Q", len(WHOLE)) + WHOLE + bytes(8)
    data = spoil if isinstance(spoil, bytes) else whole[: spoil[0]] + spoil[1] + whole[spoil[0] + len(spoil[1]) :]
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    try:
        found = read_header(path)
    except HeaderError as error:
        assert str(path) in str(error)
    else:
        assert all(lies_within(tensor, path) for tensor in found.tensors.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "XX"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**50), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 2**50), max_size=3) | json_values,
    }
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A header as it should be, and the bytes of its values."""
    tensors: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(st.text(max_size=8), unique=True, max_size=4)):
        dtype, shape = draw(st.sampled_from(["F32", "BF16", "I64"])), draw(st.lists(st.integers(0, 3), max_size=2))
        begin, end = end, end + prod(shape) * BITS[dtype] // 8
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return tensors, end


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A header of which a tensor, a word about one, or the bytes of the values are something else."""
    tensors, size = draw(headers())
    if tensors:
        name = draw(st.sampled_from(sorted(tensors)))
        entry = tensors[name] | {draw(st.sampled_from(["dtype", "shape", "data_offsets"])): draw(json_values)}
        tensors[name] = draw(entries | json_values | st.just(entry))
    return tensors, max(size + draw(st.sampled_from([0, -1, 1, 64])), 0)


def lies_within(tensor: Tensor, path: Path) -> bool:
    return tensor.begin + prod(tensor.shape) * BITS.get(tensor.dtype, 0) // 8 <= path.stat().st_size


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(headers())
def test_a_header_as_it_should_be_is_read(tmp_path: Path, made: tuple[dict[str, Any], int]) -> None:
    path = tmp_path / "a.safetensors"
    files.write_raw(path, json.dumps(made[0]).encode(), bytes(made[1]))
    found = read_header(path).tensors
    assert {name: (one.dtype, list(one.shape)) for name, one in found.items()} == {
        name: (one["dtype"], one["shape"]) for name, one in made[0].items()
    }
    assert all(lies_within(tensor, path) for tensor in found.values())


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(spoilt())
def test_any_header_is_read_within_the_file_or_refused(tmp_path: Path, made: tuple[dict[str, Any], int]) -> None:
    path = tmp_path / "a.safetensors"
    files.write_raw(path, json.dumps(made[0]).encode(), bytes(made[1]))
    try:
        found = read_header(path)
    except HeaderError:
        return
    assert all(lies_within(tensor, path) for tensor in found.tensors.values())


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 2000), change=st.binary(min_size=1, max_size=4))
@example(at=1845, change=b"\x01")
def test_any_change_of_a_file_of_torch_is_read_within_the_file_or_refused(
    tmp_path: Path, at: int, change: bytes
) -> None:
    whole = bytearray(saved({"fc.weight": torch.zeros(3, 2), "d2t": torch.arange(4)}))
    at %= len(whole)
    whole[at : at + len(change)] = change
    path = tmp_path / "a.bin"
    path.write_bytes(whole)
    try:
        found = read_tensors(path)
    except PickleError:
        return
    assert all(0 <= tensor.begin <= len(whole) for tensor in found.values())
