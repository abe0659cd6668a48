"""A converted draft in a real registry and a real object store: what others get by its digest is what was converted, and says
where it comes from.
"""

import hashlib
import json
import operator
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.artifacts import CONFIG, PREDICATE, STATEMENT, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    BUCKET_ADDRESSING,
    ConvertResult,
    ExitCode,
    FetchConfig,
    FetchResult,
    ObjectReference,
    PublishConfig,
    PublishResult,
    StoredSource,
)
from eagle3_draft.convert import run as convert
from eagle3_draft.errors import StageError
from eagle3_draft.fetch import run as fetch
from eagle3_draft.publish import run
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.bucket import Bucket
from objectstore import Server, gateway, of_its_own, stuck
from stages.registries import out_of_order, registry
from unit.convert import drafts

USER = ("-user", "robot", "-password", "secret:word")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with registry("-referrers") as found:
        yield found


@pytest.fixture
def config(converted: tuple[Path, ConvertResult], address: str, tmp_path: Path) -> PublishConfig:
    return drafts.publish_config(converted, tmp_path / "published", address)


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
    assert f"sha256:{sha256(found)}" == result.digest
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
    pushed = get(address, f"blobs/{said['layers'][0]['digest']}")
    statement = json.loads(pushed)
    assert f"sha256:{statement['subject'][0]['digest']['sha256']}" == result.digest
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    # For those who sign it
    assert (Path(config.folder) / STATEMENT).read_bytes() == pushed
    assert json.loads((Path(config.folder) / PREDICATE).read_bytes()) == statement["predicate"]


def test_a_registry_without_a_list_of_referrers_gets_it_under_a_tag(config: PublishConfig) -> None:
    with registry() as address:
        result = run(at(config, f"{address}/llm/tiny-eagle3"))
        listed = json.loads(get(address, f"manifests/{str(result.digest).replace(':', '-')}"))
    assert [entry["digest"] for entry in listed["manifests"]] == [result.provenance]


def test_pushing_the_same_draft_again_changes_nothing(config: PublishConfig, tmp_path: Path, address: str) -> None:
    first = run(config)
    again = run(config.model_copy(update={"key": "b1" * 8, "folder": str(tmp_path / "again")}))
    assert again == first
    assert run(at(config, "nowhere.example.com/a/b")) == first  # it is finished, and nobody is asked
    tagged = run(at(config, f"{address}/llm/tiny-eagle3:stable", folder=str(tmp_path / "tagged"), key="b2" * 8))
    assert tagged.digest == first.digest
    assert f"sha256:{sha256(get(address, 'manifests/stable'))}" == first.digest


def test_a_tag_of_the_users_comes_back_with_the_draft_that_bore_it(config: PublishConfig, address: str) -> None:
    wanted = at(config, f"{address}/llm/tiny-eagle3:v1")
    former = run(wanted)
    statement = get(address, f"manifests/{former.provenance}")  # stands for another draft, which took the tag meanwhile
    kind = json.loads(statement)["mediaType"]
    request = urllib.request.Request(
        f"http://{address}/v2/llm/tiny-eagle3/manifests/v1", statement, {"Content-Type": kind}, method="PUT"
    )
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
    assert f"sha256:{sha256(get(address, 'manifests/v1'))}" == former.provenance
    assert run(wanted) == former
    assert f"sha256:{sha256(get(address, 'manifests/v1'))}" == former.digest


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
                assert str(run(wanted, login=secret).reference).startswith(address)
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


# ---------------------------------------------------------------------------------------------------- object stores


@pytest.fixture
def stored(config: PublishConfig, server: Server, monkeypatch: pytest.MonkeyPatch) -> PublishConfig:
    """To an empty object store alone."""
    server.empty()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = server.at.model_copy(update={"url": f"{server.at.url}/drafts/"})
    return config.model_copy(update={"reference": None, "object_store": bucket})


def again(config: PublishConfig, **changes: Any) -> PublishConfig:
    """By another Job, which finds no artifact of its own."""
    number = len(list(Path(config.folder).parent.iterdir()))
    return config.model_copy(update={"folder": f"{config.folder}-{number}", "key": f"{number:016x}", **changes})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def name_of(server: Server, address: str) -> str:
    """Of what lies at an address in the store."""
    return address.removeprefix(f"{server.at.url}/")


def test_a_folder_in_a_store_is_named_after_its_manifest_which_names_the_rest(
    stored: PublishConfig, converted: tuple[Path, ConvertResult], server: Server
) -> None:
    result = run(stored).stored
    assert result is not None
    assert result.address == f"{server.at.url}/drafts/{result.digest.replace(':', '-')}"
    folder = name_of(server, result.address)
    manifest = server.read(f"{folder}/manifest.json")
    assert f"sha256:{sha256(manifest)}" == result.digest
    named = {file["path"]: file["sha256"] for file in json.loads(manifest)["files"]}
    assert named == {name: sha256(server.read(f"{folder}/{name}")) for name in (CONFIG, WEIGHTS)}
    assert server.read(f"{folder}/{WEIGHTS}") == (converted[0] / WEIGHTS).read_bytes()
    statement = server.read(name_of(server, result.provenance))
    assert result.provenance.endswith(f"provenance/sha256-{sha256(statement)}.json")
    assert (Path(stored.folder) / STATEMENT).read_bytes() == statement
    assert json.loads(statement)["subject"][0] == {
        "name": f"{result.address}/manifest.json",
        "digest": {"sha256": sha256(manifest)},
    }
    # Prompts are held-out data, and stay
    assert len(server.objects()) == 4


@pytest.fixture
def elsewhere(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], FetchResult]:
    """Fetch in another cluster, which knows the address and the store."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_REGION", server.at.region)
    if server.at.addressing is not None:
        monkeypatch.setenv(BUCKET_ADDRESSING, server.at.addressing)

    def fetched(address: str) -> FetchResult:
        owner = ObjectReference(namespace="n", name="other", uid="u")
        source = StoredSource(address=address, key="f0" * 8, folder=str(tmp_path / "models" / "f0"))
        return fetch(FetchConfig(owner=owner, key="f1" * 8, stored=source))

    return fetched


def test_what_lies_in_a_store_is_fetched_and_adopted_elsewhere_as_the_same_draft(
    stored: PublishConfig, made: drafts.Made, elsewhere: Callable[[str], FetchResult], tmp_path: Path
) -> None:
    result = run(stored).stored
    assert result is not None
    came = elsewhere(result.address).draft
    assert came is not None
    assert f"sha256:{came.commit}" == result.digest
    assert {path.name for path in Path(came.path).iterdir()} == {CONFIG, WEIGHTS, "manifest.json"}
    assert drafts.adopt(made, tmp_path / "adopted", Path(came.path)).digest == stored.draft


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (WEIGHTS, lambda data: data[:-1] + b"x", "model.safetensors is not the one"),
        (WEIGHTS, lambda _: b"short", "model.safetensors is not the one"),
        (CONFIG, None, "config.json is missing"),
        ("manifest.json", lambda data: data + b" ", "manifest.json has another digest"),
        ("manifest.json", None, "there is no manifest.json"),
    ],
)
def test_what_was_changed_in_a_store_is_not_adopted(
    stored: PublishConfig,
    server: Server,
    elsewhere: Callable[[str], FetchResult],
    tmp_path: Path,
    name: str,
    change: Callable[[bytes], bytes] | None,
    words: str,
) -> None:
    result = run(stored).stored
    assert result is not None
    changed = f"{name_of(server, result.address)}/{name}"
    if change is None:
        server.remove(changed)
    else:
        server.write(changed, change(server.read(changed)))
    with pytest.raises(StageError, match=words) as no:
        elsewhere(result.address)
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE)
    assert not (tmp_path / "models" / "f0" / "manifest.json").exists()


def test_a_fetch_that_is_ended_amid_a_file_leaves_nothing_of_it_and_of_one_that_was_killed(
    stored: PublishConfig,
    plain: Server,
    elsewhere: Callable[[str], FetchResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(stored).stored
    assert result is not None
    monkeypatch.setattr("eagle3_draft.storage.bucket.BLOCK_BYTES", 1000)
    folder = tmp_path / "models" / "f0"
    folder.mkdir(parents=True)
    (folder / f".{WEIGHTS}.0a0a0a0a.partial").write_bytes(b"killed here")
    there = list[set[str]]()
    with stuck(plain.url, "bytes=1000-1999") as way, ThreadPoolExecutor(1) as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)

        def end() -> None:
            assert way.reached.wait(20)
            there.append({path.name for path in folder.iterdir()})
            os.kill(os.getpid(), signal.SIGTERM)

        ended = other.submit(end)
        with pytest.raises(KeyboardInterrupt):
            elsewhere(result.address)
        ended.result()
    (begun,) = (name for name in there[0] if name.endswith(".partial"))
    assert "0a0a0a0a" not in begun, "its bytes are free before the room is looked at"
    assert not list(folder.glob(".*"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", plain.url)
    assert elsewhere(result.address).draft is not None


@pytest.mark.parametrize(
    ("variable", "value", "words", "reason"),
    [
        (
            "AWS_SECRET_ACCESS_KEY",
            "wrong",
            r"draft\.checkpoint .* see .*AWS_SECRET_ACCESS_KEY .* in placement\.env",
            Reason.STORAGE_UNAVAILABLE,
        ),
        ("AWS_REGION", "xx-nowhere-9", r"; set AWS_REGION in placement\.env", Reason.STORAGE_UNAVAILABLE),
        (BUCKET_ADDRESSING, "Virtual", r"in placement\.env is neither Path nor Virt", Reason.INVALID_CONFIGURATION),
    ],
)
def test_a_store_that_lets_nobody_in_is_told_by_what_a_user_sets(
    stored: PublishConfig,
    server: Server,
    elsewhere: Callable[[str], FetchResult],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: str,
    reason: Reason,
) -> None:
    if variable == "AWS_REGION" and not server.is_own:
        pytest.skip("the store that is named may take any region")
    result = run(stored).stored
    assert result is not None
    monkeypatch.setenv(variable, value)
    with pytest.raises(StageError, match=words) as no:
        elsewhere(result.address)
    assert no.value.reason == reason


def test_a_bucket_that_is_not_there_is_told_from_a_draft_that_is_not(
    stored: PublishConfig, server: Server, elsewhere: Callable[[str], FetchResult]
) -> None:
    result = run(stored).stored
    assert result is not None
    with pytest.raises(StageError, match="there is no such bucket"):
        elsewhere(result.address.replace(f"s3://{server.bucket}/", "s3://eagle3-tests-nowhere/"))


@of_its_own
def test_a_draft_goes_to_a_store_that_wants_the_bucket_in_the_host_s_name_and_comes_back_from_there(
    stored: PublishConfig, elsewhere: Callable[[str], FetchResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        gateway(tmp_path / "s3", "--virtual-domain", "s3.test") as server,
        stuck(server.url, "host: s3.test") as resolver,  # stands for one that knows the names below s3.test alone
    ):
        environment = server.environment | {"http_proxy": resolver.url, "AWS_ENDPOINT_URL": "http://s3.test"}
        for name, value in (environment | {BUCKET_ADDRESSING: "VirtualHost"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("no_proxy", raising=False)
        there = server.at.model_copy(update={"endpoint": "http://s3.test", "addressing": "VirtualHost"})
        result = run(stored.model_copy(update={"object_store": there})).stored
        assert result is not None
        came = elsewhere(result.address).draft
        assert not resolver.reached.is_set()
    assert came is not None
    assert f"sha256:{came.commit}" == result.digest


def test_a_draft_that_is_read_back_is_told_of(stored: PublishConfig, capsys: pytest.CaptureFixture[str]) -> None:
    run(stored)
    capsys.readouterr()
    run(again(stored))
    assert "config.json is read back" in capsys.readouterr().out


def test_a_file_that_somebody_deleted_is_put_back_by_another_push(stored: PublishConfig, server: Server) -> None:
    result = run(stored).stored
    assert result is not None
    weights = f"{name_of(server, result.address)}/{WEIGHTS}"
    whole = server.read(weights)
    server.remove(weights)
    assert run(again(stored)).stored == result
    assert server.read(weights) == whole


def test_a_draft_goes_to_a_registry_and_to_a_store(stored: PublishConfig, address: str) -> None:
    result = run(at(stored, f"{address}/llm/tiny-eagle3"))
    assert result.reference is not None
    assert result.stored is not None
    assert result.told().split("; ")[0].startswith(result.reference)


def test_another_conversion_of_the_same_draft_adds_its_statement_and_changes_nothing(
    stored: PublishConfig, made: drafts.Made, server: Server, tmp_path: Path
) -> None:
    first = run(stored).stored
    before = {name: server.read(name) for name in server.objects()}
    convert(drafts.convert_config(made, tmp_path / "anew"))
    second = run(again(stored, converted=str(tmp_path / "anew"))).stored
    assert first is not None
    assert second is not None
    assert (second.address, second.digest) == (first.address, first.digest)
    assert second.provenance != first.provenance
    assert {name: server.read(name) for name in before} == before
    assert len(server.objects()) == len(before) + 1


@pytest.mark.parametrize("written", range(5))
def test_a_push_that_dies_after_any_write_has_no_manifest_and_the_next_one_ends_it(
    stored: PublishConfig, server: Server, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The store is real; what is injected is the death between two writes."""
    with monkeypatch.context() as dying:
        dying.setattr("eagle3_draft.publish.store.Bucket", dying_after(written))
        if written < 4:
            with pytest.raises(SystemExit):
                run(stored)
        else:
            run(stored)
    assert len(server.objects()) == written
    assert any(name.endswith("manifest.json") for name in server.objects()) == (written == 4)
    monkeypatch.setattr(
        "eagle3_draft.publish.store.Bucket", dying_after(4 - written)
    )  # it writes no more than is missing
    run(again(stored))
    assert len(server.objects()) == 4


def dying_after(writes: int) -> type[Bucket]:
    class Dying(Bucket):
        left = writes

        def write(self, path: str, data: bytes) -> None:
            self.count()
            super().write(path, data)

        def upload(self, files: Mapping[str, Path], attend: Callable[[int], None]) -> None:
            self.count()
            super().upload(files, attend)

        def count(self) -> None:
            if self.left == 0:
                raise SystemExit
            self.left -= 1

    return Dying


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", [WEIGHTS, "manifest.json"])
@pytest.mark.parametrize("change", [operator.itemgetter(slice(1, None)), lambda data: bytes([data[0] ^ 1]) + data[1:]])
def test_what_others_wrote_in_the_place_of_a_draft_is_named_and_stays(
    stored: PublishConfig, server: Server, name: str, change: Any, finished: bool
) -> None:
    result = run(stored).stored
    assert result is not None
    folder = name_of(server, result.address)
    if not finished:
        server.remove(f"{folder}/manifest.json")
    others = change(server.read(f"{folder}/{name}") if name == WEIGHTS else b"{}")
    server.write(f"{folder}/{name}", others)
    with pytest.raises(StageError, match=f"{name} exists, but its content is not what") as no:
        run(again(stored))
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT)
    assert server.read(f"{folder}/{name}") == others


@pytest.mark.parametrize(
    ("url", "environment", "words"),
    [
        ("s3://eagle3-tests-nowhere/drafts", {}, "no such bucket"),
        (None, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "it does not let us at .* see the Secret in"),
        (None, {"AWS_ACCESS_KEY_ID": "nobody"}, "it does not let us at .* see the Secret in"),
        (
            None,
            {"AWS_SESSION_TOKEN": "of-nobody"},
            "not let us at .*, or the session token has expired; see the Secret in",
        ),
    ],
)
def test_a_store_that_lets_us_not_in_is_told_by_the_field_that_names_it(
    stored: PublishConfig,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    url: str | None,
    environment: dict[str, str],
    words: str,
) -> None:
    if "AWS_SESSION_TOKEN" in environment and not server.is_own:
        pytest.skip("the store that is named may look at no token")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    there = server.at.model_copy(update={"url": url or server.at.url})
    with pytest.raises(StageError, match=words) as no:
        run(stored.model_copy(update={"object_store": there}))
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE)
    assert no.value.message.startswith("publish.objectStore")


# -------------------------------------------------------------------------------------------------------- both


def test_the_stage_runs_where_there_is_no_torch(stored: PublishConfig, address: str, tmp_path: Path) -> None:
    config = at(stored, f"{address}/llm/tiny-eagle3")
    (tmp_path / "config.json").write_text(json.dumps({"config": config.to_json()}))
    program = (
        "import os, sys; sys.modules['torch'] = sys.modules['numpy'] = sys.modules['httpx'] = None\n"
        "from pathlib import Path; from eagle3_draft.runtime import child; from eagle3_api.jobs import StageName\n"
        f"os._exit(child.run(StageName.PUBLISH, Path({str(tmp_path / 'config.json')!r}), Path({str(tmp_path / 'result')!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "result").read_text())["report"]
    result = PublishResult.model_validate(report["result"])
    assert str(result.reference).startswith("127.0.0.1")
    assert result.stored is not None
