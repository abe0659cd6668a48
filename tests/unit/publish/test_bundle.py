"""What is pushed is the same for the same draft, and says what it is to those who know OCI and in-toto alone."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.conditions import Reason
from eagle3_api.manifest import File
from eagle3_api.references import Reference
from eagle3_draft.errors import StageError
from eagle3_draft.publish.bundle import INDEX_TYPE, Document, fallback_tag, model, provenance, referrers
from eagle3_draft.publish.login import Login, read_login

FILES = [
    File(path="config.json", sha256="ab" * 32, size=900),
    File(path="model.safetensors", sha256="cd" * 32, size=70_000),
]
DRAFT = {"digest": "ef" * 32, "target": "01" * 32, "parameters": 17728, "dtype": "bfloat16", "layers": [1, 15, 28]}
STATEMENT: dict[str, Any] = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "model.safetensors", "digest": {"sha256": "cd" * 32}}],
    "predicateType": "https://slsa.dev/provenance/v1",
    "predicate": {"buildDefinition": {}},
}


def test_the_same_draft_has_the_same_digest_for_ever() -> None:
    made = model(FILES, name="kimi-eagle3", draft=DRAFT)
    assert made.manifest.digest == "sha256:d64695b4b3979d03ece3ebb0c63dc0b4495c4cc2d82d3c6532f20d34df4116fc"


def test_a_draft_is_a_model_of_modelpack_whose_layers_are_its_files() -> None:
    made = model(FILES, name="kimi-eagle3", draft=DRAFT)
    manifest = json.loads(made.manifest.data)
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert manifest["config"]["digest"] == made.blobs[0].digest
    assert [layer["digest"] for layer in manifest["layers"]] == [f"sha256:{file.sha256}" for file in FILES]
    assert [layer["annotations"]["org.opencontainers.image.title"] for layer in manifest["layers"]] == [
        "config.json",
        "model.safetensors",
    ]
    assert json.loads(made.blobs[0].data)["modelfs"]["diffIds"] == [f"sha256:{file.sha256}" for file in FILES]


def test_what_refers_to_a_draft_names_its_manifest_first() -> None:
    subject = model(FILES, name="kimi-eagle3", draft=DRAFT).manifest
    made = provenance(STATEMENT, subject, "registry.example.com/llm/kimi-eagle3")
    manifest = json.loads(made.manifest.data)
    assert manifest["subject"]["digest"] == subject.digest
    said = json.loads(made.blobs[1].data)
    assert said["subject"][0] == {
        "name": "registry.example.com/llm/kimi-eagle3",
        "digest": {"sha256": subject.digest.removeprefix("sha256:")},
    }
    assert said["subject"][1:] == STATEMENT["subject"]
    assert manifest["layers"][0]["annotations"] == {"in-toto.io/predicate-type": "https://slsa.dev/provenance/v1"}


def test_an_index_of_referrers_keeps_the_others_and_names_each_once() -> None:
    subject = model(FILES, name="kimi-eagle3", draft=DRAFT).manifest
    ours = provenance(STATEMENT, subject, "r.io/llm/kimi").manifest
    others = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [{"digest": "sha256:aa", "size": 1}]}
    once = json.loads(referrers(others, ours).data)
    assert [entry["digest"] for entry in once["manifests"]] == ["sha256:aa", ours.digest]
    assert json.loads(referrers(once, ours).data) == once
    assert fallback_tag(Document("", b"")).startswith("sha256-e3b0c442")


# ------------------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("registry.example.com/llm/kimi:v1", ("registry.example.com", "llm/kimi", "v1")),
        ("registry.example.com:5000/kimi", ("registry.example.com:5000", "kimi", None)),
        ("localhost:5000/a/b/c", ("localhost:5000", "a/b/c", None)),
        ("127.0.0.1:41000/team/kimi_k2.5--eagle3", ("127.0.0.1:41000", "team/kimi_k2.5--eagle3", None)),
        ("docker.io/team/kimi", ("docker.io", "team/kimi", None)),
    ],
)
def test_a_reference_has_a_registry_a_repository_and_perhaps_a_tag(
    text: str, parts: tuple[str, str, str | None]
) -> None:
    found = Reference.parse(text)
    assert (found.host, found.repository, found.tag) == parts
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "team/kimi",
        "registry.example.com",
        "registry.example.com/Kimi",
        "https://registry.example.com/kimi",
        "a.b/../c",
        "a.b/c:",
    ],
)
def test_what_is_no_reference_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a place in a registry"):
        Reference.parse(text)


def test_docker_hub_is_reached_and_logged_in_to_by_its_other_names() -> None:
    hub = Reference.parse("docker.io/team/kimi")
    assert (hub.api_host, hub.login_host) == ("registry-1.docker.io", "index.docker.io")


# ------------------------------------------------------------------------------------------------------- credentials


def secret(folder: Path, auths: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"auths": auths}))
    return path


def encoded(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_the_most_particular_entry_counts(tmp_path: Path) -> None:
    auths = {
        "r.io": encoded("all", "1"),
        "https://r.io/v1/": encoded("docker's", "2"),
        "r.io/llm": encoded("team", "3:4"),
        "r.io/ll": encoded("others", "5"),
    }
    file = secret(tmp_path, auths)
    assert read_login(file, "r.io", "llm/kimi") == Login("team", "3:4")
    assert read_login(file, "other.io", "llm/kimi") is None
    hub = secret(tmp_path, {"https://index.docker.io/v1/": {"username": "u", "password": "p"}})
    assert read_login(hub, "index.docker.io", "team/kimi") == Login("u", "p")


@pytest.mark.parametrize("auths", [None, [], {"r.io": {}}, {"r.io": {"auth": "no base64!"}}, {"r.io": None}])
def test_credentials_that_cannot_be_read_are_told_by_the_field_that_names_them(tmp_path: Path, auths: object) -> None:
    with pytest.raises(StageError, match=r"publish\.oci\.secret") as no:
        read_login(secret(tmp_path, auths), "r.io", "llm/kimi")
    assert no.value.reason == Reason.INVALID_CONFIGURATION


@given(
    user=st.text(st.characters(blacklist_characters=":", codec="utf-8")), password=st.text(st.characters(codec="utf-8"))
)
def test_credentials_survive_their_encoding(user: str, password: str) -> None:
    kind, _, said = Login(user, password).basic.partition(" ")
    assert (kind, base64.b64decode(said).decode()) == ("Basic", f"{user}:{password}")
