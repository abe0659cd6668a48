"""A converted draft in a real registry: what others pull by its digest is what was converted, and says where it comes from."""

import hashlib
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, ExitCode, ObjectReference, PublishConfig, PublishResult
from eagle3_draft import artifacts
from eagle3_draft.convert import run as convert
from eagle3_draft.publish import run
from eagle3_draft.stage import StageError
from stages.registries import out_of_order, registry
from unit.convert import drafts

USER = ("-user", "robot", "-password", "secret:word")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ConvertResult]:
    made = drafts.make(tmp_path_factory.mktemp("made"))
    folder = tmp_path_factory.mktemp("converted") / "draft"
    return folder, convert(drafts.convert_config(made, folder))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with registry("-referrers") as found:
        yield found


@pytest.fixture
def config(converted: tuple[Path, ConvertResult], address: str, tmp_path: Path) -> PublishConfig:
    return PublishConfig(
        owner=ObjectReference(namespace="n", name="draft", uid="u"),
        key="b0" * 8,
        folder=str(tmp_path / "published"),
        converted=str(converted[0]),
        converted_key=drafts.KEY,
        draft=converted[1].digest,
        reference=f"{address}/llm/tiny-eagle3",
        plain_http=True,
    )


def at(config: PublishConfig, reference: str, **changes: Any) -> PublishConfig:
    return config.model_copy(update={"reference": reference, **changes})


def get(address: str, path: str, accept: str = "*/*") -> bytes:
    """What anybody gets from the registry."""
    request = urllib.request.Request(f"http://{address}/v2/llm/tiny-eagle3/{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        data: bytes = answer.read()
        return data


def test_what_others_pull_by_the_digest_is_what_was_converted(
    config: PublishConfig, converted: tuple[Path, ConvertResult], address: str
) -> None:
    result = run(config)
    assert result.reference == f"{address}/llm/tiny-eagle3@{result.digest}"
    found = get(address, f"manifests/{result.digest}")
    assert f"sha256:{hashlib.sha256(found).hexdigest()}" == result.digest
    manifest = json.loads(found)
    files = {
        layer["annotations"]["org.opencontainers.image.title"]: get(address, f"blobs/{layer['digest']}")
        for layer in manifest["layers"]
    }
    # Prompts are held-out data, and stay
    assert files == {name: (converted[0] / name).read_bytes() for name in (CONFIG, WEIGHTS)}
    assert manifest["annotations"]["eagle3.dev/draft"] == converted[1].digest
    assert get(address, f"manifests/draft-{converted[1].digest[:12]}") == found


def test_where_it_comes_from_refers_to_it(config: PublishConfig, address: str) -> None:
    result = run(config)
    listed = json.loads(get(address, f"referrers/{result.digest}"))
    assert [entry["digest"] for entry in listed["manifests"]] == [result.provenance]
    said = json.loads(get(address, f"manifests/{result.provenance}"))
    statement = json.loads(get(address, f"blobs/{said['layers'][0]['digest']}"))
    assert statement["subject"][0]["digest"] == {"sha256": result.digest.removeprefix("sha256:")}
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"


def test_a_registry_without_a_list_of_referrers_gets_it_under_a_tag(config: PublishConfig) -> None:
    with registry() as address:
        result = run(at(config, f"{address}/llm/tiny-eagle3"))
        listed = json.loads(get(address, f"manifests/{result.digest.replace(':', '-')}"))
    assert [entry["digest"] for entry in listed["manifests"]] == [result.provenance]


def test_pushing_the_same_draft_again_changes_nothing(config: PublishConfig, tmp_path: Path, address: str) -> None:
    first = run(config)
    again = run(config.model_copy(update={"key": "b1" * 8, "folder": str(tmp_path / "again")}))
    assert again == first
    assert run(at(config, "nowhere.example.com/a/b")) == first  # it is finished, and nobody is asked
    tagged = run(at(config, f"{address}/llm/tiny-eagle3:stable", folder=str(tmp_path / "tagged"), key="b2" * 8))
    assert tagged.digest == first.digest
    assert hashlib.sha256(get(address, "manifests/stable")).hexdigest() == first.digest.removeprefix("sha256:")


@pytest.mark.parametrize("kind", [(), ("-token",)], ids=["by password", "by token"])
def test_the_user_of_the_secret_may_push_and_nobody_else(
    config: PublishConfig, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    with registry(*USER, *kind) as address:
        wanted = at(config, f"{address}/llm/tiny-eagle3", login=True)
        secret = tmp_path / "login.json"
        for password, reason in (("wrong", Reason.REGISTRY_DENIED), ("secret:word", None)):
            secret.write_text(json.dumps({"auths": {address: {"username": "robot", "password": password}}}))
            if reason is None:
                assert run(wanted, login=secret).reference.startswith(address)
                continue
            with pytest.raises(StageError, match=r"publish\.oci\.secret") as no:
                run(wanted, login=secret)
            assert (no.value.code, no.value.reason) == (ExitCode.BAD_CONFIGURATION, reason)
            assert "secret:word" not in no.value.message


def test_without_a_secret_a_registry_that_wants_one_is_named(config: PublishConfig) -> None:
    with registry(*USER) as address, pytest.raises(StageError, match="it wants a login") as no:
        run(at(config, f"{address}/llm/tiny-eagle3"))
    assert no.value.reason == Reason.REGISTRY_DENIED


@pytest.mark.parametrize(
    ("status", "code", "reason", "words"),
    [
        (503, ExitCode.INTERRUPTED, Reason.REGISTRY_UNAVAILABLE, "next try pushes what is missing"),
        (429, ExitCode.INTERRUPTED, Reason.REGISTRY_UNAVAILABLE, "429"),
        (403, ExitCode.BAD_CONFIGURATION, Reason.REGISTRY_DENIED, "403"),
        (404, ExitCode.BAD_CONFIGURATION, Reason.REGISTRY_DENIED, "there is no repository llm/tiny-eagle3"),
    ],
)
def test_a_stand_in_that_refuses_is_told_from_one_that_is_out_of_order(
    config: PublishConfig, status: int, code: ExitCode, reason: Reason, words: str
) -> None:
    with out_of_order(status) as address, pytest.raises(StageError, match=words) as no:
        run(at(config, f"{address}/llm/tiny-eagle3"))
    assert (no.value.code, no.value.reason) == (code, reason)
    assert artifacts.finished(Path(config.folder), config.key) is None


def test_a_registry_that_is_away_is_tried_again(config: PublishConfig) -> None:
    with pytest.raises(StageError, match="cannot be reached") as no:
        run(at(config, "127.0.0.1:1/llm/tiny-eagle3"))
    assert (no.value.code, no.value.reason) == (ExitCode.INTERRUPTED, Reason.REGISTRY_UNAVAILABLE)
    assert run(config).bytes > 0


def test_a_draft_that_was_changed_since_its_conversion_is_not_published(
    config: PublishConfig, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(converted[0], changed)
    weights = bytearray((changed / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (changed / WEIGHTS).write_bytes(weights)
    with pytest.raises(StageError) as no:
        run(config.model_copy(update={"converted": str(changed)}))
    assert no.value.reason == Reason.CORRUPT_ARTIFACT


def test_the_stage_runs_where_there_is_no_torch(config: PublishConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": config.to_json()}))
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = sys.modules['httpx'] = None\n"
        "from pathlib import Path; from eagle3_draft import child; from eagle3_api.jobs import StageName\n"
        f"sys.exit(child.run(StageName.PUBLISH, Path({str(tmp_path / 'config.json')!r}), Path({str(tmp_path / 'result')!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "result").read_text())["report"]
    assert PublishResult.model_validate(report["result"]).reference.startswith("127.0.0.1")
