"""What was pushed, in the hands of others' own tools: oras pulls it, and cosign signs it as a hook and verifies it.

The hook's commands are those of docs/publishing.md, in the container that the operator makes for them.
"""

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_api.artifacts import CONFIG, PROVENANCE, WEIGHTS
from eagle3_api.jobs import ConvertResult, HookConfig, ObjectReference, PublishResult
from eagle3_draft.publish import run
from eagle3_operator.manifests.jobs import job
from stages.registries import registry
from testcluster.build import binary
from unit.convert import drafts
from unit.samples import SETTINGS, draft

pytestmark = [pytest.mark.stages, pytest.mark.long]

PAGE = Path(__file__).parents[2] / "docs" / "publishing.md"
VERIFY = {"sign": ["verify"], "attest": ["verify-attestation", "--type", "slsaprovenance1"]}


@dataclass(frozen=True)
class Pushed:
    """A draft in a registry that wants a token.

    Attributes:
        folder: of the conversion.
        published: Publish's artifact.
        result: of Publish.
        login: folder of docker's configuration.
    """

    folder: Path
    published: Path
    result: PublishResult
    login: Path


@pytest.fixture(params=[["-referrers"], []], ids=["with a list of referrers", "without"])
def pushed(converted: tuple[Path, ConvertResult], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pushed]:
    login = tmp_path / "login"
    login.mkdir()
    with registry("-user", "robot", "-password", "word", "-token", *request.param) as address:
        auths = {address: {"username": "robot", "password": "word", "auth": "cm9ib3Q6d29yZA=="}}
        (login / "config.json").write_text(json.dumps({"auths": auths}))
        config = drafts.publish_config(converted, tmp_path / "published", address, login=True)
        yield Pushed(converted[0], tmp_path / "published", run(config, login=login / "config.json"), login)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs of cosign's, ``mine`` and ``another``."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "another"):
        cosign(folder, "generate-key-pair", f"--output-key-prefix={name}", COSIGN_PASSWORD="word")
    return folder


def cosign(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    known = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [str(binary("cosign")), *words],
        cwd=folder,
        env=known | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def commands() -> dict[str, dict[str, Any]]:
    """The hooks of the page, by cosign's word."""
    whole, other = re.findall(r"```yaml\n(.*?)```", PAGE.read_text().partition("## Signing")[2], re.DOTALL)
    hook: dict[str, Any] = yaml.safe_load(whole)["spec"]["publish"]["hook"]
    attest: dict[str, Any] = yaml.safe_load(other)
    return {"sign": hook, "attest": hook | attest}


def hooked(pushed: Pushed, hook: dict[str, Any], keys: Path) -> "subprocess.CompletedProcess[str]":
    """Run a hook as its container is: the kubelet's part, Secrets, mounts and variables in words, is done here."""
    config = HookConfig(
        owner=ObjectReference(namespace="llm", name="tiny", uid="u"),
        key="c0" * 8,
        published="/eagle3/drafts/llm/tiny/publish/b0",
        command=hook["command"],
        digest=str(pushed.result.digest),
        reference=pushed.result.reference,
    )
    oci = {"reference": "registry.example.com/llm/tiny-eagle3", "secret": "registry"}
    manifest = job(draft(publish={"oci": oci, "hook": hook}), SETTINGS, config=config)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    secret = {"cosign.key": (keys / "mine.key").read_text(), "cosign.password": "word"}
    mounts = {"/eagle3/registry": pushed.login, "/eagle3/published": pushed.published, "/eagle3/home": keys}
    environment = {}
    for variable in container["env"]:
        value = variable.get("value") or secret[variable["valueFrom"]["secretKeyRef"]["key"]]
        for path, here in mounts.items():
            value = value.replace(path, str(here))
        environment[variable["name"]] = value
    words = [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in container["command"]]
    assert words[0] == "cosign"
    return cosign(keys, *words[1:], **environment)


def verify(pushed: Pushed, keys: Path, word: str, name: str) -> "subprocess.CompletedProcess[str]":
    words = [*VERIFY[word], "--key", f"{name}.pub", "--insecure-ignore-tlog", str(pushed.result.reference)]
    return cosign(keys, *words, DOCKER_CONFIG=str(pushed.login))


def test_oras_pulls_what_was_converted(pushed: Pushed, tmp_path: Path) -> None:
    words = ["pull", "--plain-http", str(pushed.result.reference), "--output", str(tmp_path / "pulled")]
    environment = os.environ | {"DOCKER_CONFIG": str(pushed.login)}
    subprocess.run([str(binary("oras")), *words], env=environment, check=True, capture_output=True)
    pulled = {path.name: path.read_bytes() for path in (tmp_path / "pulled").iterdir()}
    assert pulled == {name: (pushed.folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}


@pytest.mark.parametrize("word", ["sign", "attest"])
def test_what_cosign_signs_as_a_hook_it_verifies_with_that_key_alone(pushed: Pushed, keys: Path, word: str) -> None:
    assert verify(pushed, keys, word, "mine").returncode != 0
    for _ in range(2):
        done = hooked(pushed, commands()[word], keys)
        assert done.returncode == 0, done.stderr
    verified = verify(pushed, keys, word, "mine")
    assert verified.returncode == 0, verified.stderr
    assert len(verified.stdout.strip().splitlines()) == 1  # twice signed, one signature
    assert verify(pushed, keys, word, "another").returncode != 0


def test_what_is_attested_is_where_the_draft_comes_from(pushed: Pushed, keys: Path) -> None:
    assert hooked(pushed, commands()["attest"], keys).returncode == 0
    payload = json.loads(verify(pushed, keys, "attest", "mine").stdout)["payload"]
    statement = json.loads(base64.b64decode(payload))
    run = statement["predicate"]["runDetails"]["metadata"]
    run["invocationId"] = run.pop("invocationID")  # cosign reads the predicate, and spells one name otherwise than SLSA
    assert statement["predicate"] == json.loads((pushed.folder / PROVENANCE).read_text())["predicate"]
    assert f"sha256:{statement['subject'][0]['digest']['sha256']}" == pushed.result.digest


def test_a_hook_that_fails_says_why_last(pushed: Pushed, keys: Path) -> None:
    hook = commands()["sign"]
    wrong = hook | {"env": [hook["env"][0], {"name": "COSIGN_PASSWORD", "value": "wrong"}]}
    done = hooked(pushed, wrong, keys)
    assert done.returncode == 1
    assert "decryption failed" in done.stderr[-300:]
