"""Where artifacts lie and what their manifests may name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3_api.artifacts import DRAFTS_ROOT, folder
from eagle3_api.manifest import File, Manifest

DIGEST = "0" * 64


def manifest(*paths: str) -> Manifest:
    files = [File(path=path, size=1, sha256=DIGEST) for path in paths]
    return Manifest(stage="train", key="8c0e", files=files, made_from={})


def test_an_artifact_lies_under_its_object_its_stage_and_its_key() -> None:
    assert str(folder(DRAFTS_ROOT, "llm", "kimi", "train", "8c0e")) == "/eagle3/drafts/llm/kimi/train/8c0e"


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "..", "../other/model.safetensors", "a/../../b", "/", "a/.."])
def test_a_manifest_cannot_name_a_file_outside_its_folder(path: str) -> None:
    with pytest.raises(ValidationError, match="leaves the artifact's folder"):
        File(path=path, size=1, sha256=DIGEST)


@given(st.lists(st.sampled_from(["..", ".", "a", "b.c", ""]), min_size=1, max_size=6).map("/".join))
def test_whatever_path_is_accepted_stays_inside(path: str) -> None:
    try:
        accepted = File(path=path, size=1, sha256=DIGEST).path
    except ValidationError:
        return
    depth = 0
    for part in accepted.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        assert depth >= 0
    assert depth > 0


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_a_digest_is_64_hexadecimal_digits(digest: str) -> None:
    with pytest.raises(ValidationError, match="sha256"):
        File(path="model.safetensors", size=1, sha256=digest)


def test_a_file_that_the_manifest_does_not_list_is_named_with_its_stage() -> None:
    listed = manifest("model.safetensors", "part/train-00000.safetensors")
    assert listed.file("part/train-00000.safetensors").size == 1
    with pytest.raises(KeyError, match="the train artifact 8c0e lists no file report"):
        listed.file("report.json")


def test_a_manifest_is_read_back_as_it_was() -> None:
    made = manifest("model.safetensors")
    assert Manifest.model_validate(made.to_json()) == made
    assert made.to_json()["format"] == "eagle3.dev/artifact/v1"
