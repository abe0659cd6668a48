"""What comes from a hub comes once, whole and from one commit; what does not come says why.

The client is the hub's own; the hub is a stand-in (``hub.stand_in``).
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from eagle3_api.artifacts import MANIFEST
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, FetchConfig, FetchResult, HubDataset, HubSource, ObjectReference, Report
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.errors import StageError
from eagle3_draft.fetch import run
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.storage import artifacts
from hub.stand_in import Fault, Hub, hub
from testcluster.wait import wait_for

pytestmark = pytest.mark.stages  # each goes through a whole stage, which takes seconds

MODEL = "acme/tiny"
WEIGHTS = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
TARGET = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": len(WEIGHTS).to_bytes(8, "little") + WEIGHTS + bytes(16),
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"in another form",
    "consolidated.safetensors": b"once more",
    "original/params.json": b"{}",
    "manifest.json": b"somebody else's",
    "README.md": b"# tiny",
}
FETCHED = {"config.json", "model.safetensors", "tokenizer.json"}


def talk(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]}


def lines(*texts: str) -> bytes:
    return "\n".join(json.dumps(talk(text)) for text in texts).encode()  # the last line has no end


def table(*texts: str) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([talk(text) for text in texts]), out)
    return out.getvalue()


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        made.put(MODEL, TARGET)
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


def config(folder: Path, revision: str | None = None, **dataset: Any) -> FetchConfig:
    """Of the target alone, or of a data set alone where there is anything said of one."""
    source = {"repository": MODEL, "revision": revision, "key": "t" * 16, "folder": str(folder / "target")}
    wanted = {"repository": "acme/talks", "key": "d" * 16, "folder": str(folder / "data"), **dataset}
    return FetchConfig(
        owner=ObjectReference(namespace="llm", name="tiny", uid="u"),
        key="f" * 16,
        target=None if dataset else HubSource.model_validate(source),
        dataset=HubDataset.model_validate(wanted) if dataset else None,
    )


def refused(call: Callable[[], object], code: ExitCode, reason: Reason, *words: str) -> str:
    with pytest.raises(StageError) as raised:
        call()
    assert (raised.value.code, raised.value.reason) == (code, reason), raised.value.message
    for word in words:
        assert word in raised.value.message
    return raised.value.message


def names(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}


def of_target(result: FetchResult) -> Any:
    assert result.target is not None
    return result.target


def test_a_target_comes_as_one_commit_with_the_files_that_serve_it_and_no_others(there: Hub, folder: Path) -> None:
    fetched = of_target(run(config(folder)))
    assert fetched.commit == there.branches[f"models/{MODEL}"]
    assert (fetched.repository, fetched.path, fetched.files) == (MODEL, str(folder / "target"), 3)
    assert names(folder / "target") == FETCHED | {MANIFEST}
    assert all((folder / "target" / name).read_bytes() == TARGET[name] for name in FETCHED)
    manifest = artifacts.read(folder / "target")
    assert manifest.made_from == {"repository": f"model/{MODEL}", "commit": fetched.commit}
    assert (folder / "target" / "config.json").stat().st_mode & 0o777 == 0o644


SIDE = "eagle3_meta.pt"

DRAFTS: dict[str, tuple[dict[str, bytes], set[str]]] = {
    "safetensors, with what lies beside them": (
        {"model.safetensors": TARGET["model.safetensors"], SIDE: b"ids", "pytorch_model.bin": b"in another form"},
        {"model.safetensors", SIDE},
    ),
    "sharded safetensors": (
        {"a-1.safetensors": b"1", "a-2.safetensors": b"2", "model.safetensors.index.json": b"{}"},
        {"a-1.safetensors", "a-2.safetensors", "model.safetensors.index.json"},
    ),
    "a .bin": ({"pytorch_model.bin": b"weights", "training_args.bin": b"a pickle"}, {"pytorch_model.bin"}),
    "a .pt, of a trainer": (
        {"draft_model.pt": b"weights", SIDE: b"ids", "optimizer.pt": b"much"},
        {"draft_model.pt", SIDE},
    ),
}


@pytest.mark.parametrize("layout", DRAFTS)
def test_a_draft_comes_in_whatever_layout_it_was_published(there: Hub, folder: Path, layout: str) -> None:
    files, wanted = DRAFTS[layout]
    there.put("acme/draft", files | {"config.json": b"{}", "README.md": b"# draft", "runs/events.bin": b"a log"})
    source = HubSource(repository="acme/draft", key="d" * 16, folder=str(folder / "draft"))
    fetched = run(config(folder).model_copy(update={"target": None, "draft": source})).draft
    assert fetched is not None
    assert fetched.path == str(folder / "draft")
    assert names(folder / "draft") == wanted | {"config.json", MANIFEST}


def test_a_repository_without_a_draft_is_refused_by_the_field_that_names_it(there: Hub, folder: Path) -> None:
    there.put("acme/draft", {"config.json": b"{}", "d2t.pt": b"a map alone"})
    source = HubSource(repository="acme/draft", key="d" * 16, folder=str(folder / "draft"))
    asked = config(folder).model_copy(update={"target": None, "draft": source})
    refused(
        lambda: run(asked), ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, "draft.checkpoint: acme/draft", "d2t.pt"
    )
    nowhere = asked.model_copy(update={"draft": source.model_copy(update={"repository": "acme/nowhere"})})
    refused(lambda: run(nowhere), ExitCode.BAD_INPUT, Reason.HUB_NOT_FOUND, "draft.checkpoint: acme/nowhere")


def test_what_was_fetched_is_not_asked_for_again(there: Hub, folder: Path) -> None:
    first = run(config(folder))
    there.asked.clear()
    assert run(config(folder)) == first
    assert there.asked == []


def test_a_branch_that_moves_does_not_move_what_was_fetched_and_a_commit_can_be_named(there: Hub, folder: Path) -> None:
    old = of_target(run(config(folder))).commit
    new = there.put(MODEL, TARGET | {"config.json": b'{"architectures": ["Other"]}'})
    assert of_target(run(config(folder))).commit == old
    assert of_target(run(config(folder.with_name("new")))).commit == new
    assert of_target(run(config(folder.with_name("pinned"), revision=old))).commit == old


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    there: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500_000)
    weights = TARGET["model.safetensors"] + bytes(3_000_000)
    there.put(MODEL, TARGET | {"model.safetensors": weights})
    breaks = [Fault(break_after=2_000_000)]

    def once(method: str, path: str) -> Fault | None:
        return breaks.pop() if breaks and method == "GET" and path.endswith("model.safetensors") else None

    there.fault = once
    run(config(folder))
    assert (folder / "target" / "model.safetensors").read_bytes() == weights
    ranges = [asked for method, path, asked in there.asked if method == "GET" and path.endswith("model.safetensors")]
    assert ranges == [None, "bytes=2000000-"]


def test_an_interrupted_fetch_goes_on_at_its_commit_with_the_files_that_are_missing(there: Hub, folder: Path) -> None:
    others = [folder / "target" / name for name in FETCHED - {"tokenizer.json"}]

    def last(_: str, path: str) -> Fault | None:
        if not path.endswith("tokenizer.json"):
            return None
        wait_for("the other files", 30, lambda: all(other.is_file() for other in others))
        return Fault(status=418)  # which the client does not try again by itself

    there.fault = last
    refused(lambda: run(config(folder)), ExitCode.INTERRUPTED, Reason.HUB_UNREACHABLE, MODEL, "HF_ENDPOINT")
    assert artifacts.finished(folder / "target", "t" * 16) is None
    old = there.branches[f"models/{MODEL}"]
    there.put(MODEL, {**TARGET, "tokenizer.json": b"[]"})
    there.fault = lambda method, path: None
    there.asked.clear()
    assert of_target(run(config(folder))).commit == old
    assert (folder / "target" / "tokenizer.json").read_bytes() == TARGET["tokenizer.json"]
    assert names(folder / "target") == FETCHED | {MANIFEST}
    assert [path for method, path, _ in there.asked if method == "GET" and "/resolve/" in path] == [
        f"/{MODEL}/resolve/{old}/tokenizer.json"
    ]


def test_a_commit_that_was_taken_back_meanwhile_is_not_waited_for(there: Hub, folder: Path) -> None:
    there.fault = lambda method, path: Fault(status=418) if path.endswith("tokenizer.json") else None
    with pytest.raises(StageError):
        run(config(folder))
    del there.repositories[f"models/{MODEL}"]
    new = there.put(MODEL, {**TARGET, "config.json": b'{"architectures": ["Other"]}'})
    there.fault = lambda method, path: None
    refused(lambda: run(config(folder)), ExitCode.BAD_INPUT, Reason.HUB_NOT_FOUND, MODEL)
    assert of_target(run(config(folder))).commit == new
    assert (folder / "target" / "config.json").read_bytes() == b'{"architectures": ["Other"]}'


def test_what_a_killed_process_left_of_a_file_is_cleared_away(there: Hub, folder: Path) -> None:
    left = folder / "target" / ".cache" / "huggingface" / "download" / "x.1.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    there.fault = lambda method, path: Fault(status=418) if "/resolve/" in path else None
    with pytest.raises(StageError):
        run(config(folder))
    assert not left.exists()


def test_bytes_that_are_not_the_hubs_are_noticed_and_fetched_again(there: Hub, folder: Path) -> None:
    right = TARGET["model.safetensors"]
    wrong = right[:-1] + b"\1"
    there.fault = lambda method, path: Fault(body=wrong) if path.endswith("model.safetensors") else None
    message = refused(lambda: run(config(folder)), ExitCode.INTERRUPTED, Reason.HUB_UNREACHABLE, "model.safetensors")
    assert "came with the digest" in message
    there.fault = lambda method, path: None
    run(config(folder))
    assert (folder / "target" / "model.safetensors").read_bytes() == right


def test_a_repository_or_a_revision_that_is_not_there_is_named(there: Hub, folder: Path) -> None:
    refused(
        lambda: run(config(folder, revision="v9")), ExitCode.BAD_INPUT, Reason.HUB_NOT_FOUND, MODEL, "at v9", "HF_TOKEN"
    )
    del there.repositories[f"models/{MODEL}"]
    refused(lambda: run(config(folder)), ExitCode.BAD_INPUT, Reason.HUB_NOT_FOUND, "target.model", "HF_TOKEN")


def test_a_gated_repository_needs_the_token_of_somebody_whom_it_lets_in(
    there: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.gated.add(f"models/{MODEL}")
    refused(lambda: run(config(folder)), ExitCode.BAD_INPUT, Reason.HUB_ACCESS_DENIED, "HF_TOKEN in placement.env")
    monkeypatch.setenv("HF_TOKEN", there.token)
    assert of_target(run(config(folder))).files == 3


def test_a_hub_that_is_away_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(lambda: run(config(folder)), ExitCode.INTERRUPTED, Reason.HUB_UNREACHABLE, "HF_ENDPOINT")


def test_an_environment_that_forbids_the_hub_says_so(there: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(lambda: run(config(folder)), ExitCode.INTERRUPTED, Reason.HUB_UNREACHABLE, "offline")


def test_a_volume_that_is_too_small_is_told_before_anything_comes(
    there: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 16

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Full)
    refused(lambda: run(config(folder)), ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, MODEL, "16 B free", "short")
    assert not [path for _, path, _ in there.asked if "/resolve/" in path]


def test_a_target_without_safetensors_is_refused_with_what_is_there(there: Hub, folder: Path) -> None:
    there.put(MODEL, {name: TARGET[name] for name in ("config.json", "pytorch_model.bin")})
    refused(lambda: run(config(folder)), ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "pytorch_model.bin")


def test_the_same_files_are_the_same_target_whenever_they_come(there: Hub, folder: Path) -> None:
    first, again = config(folder), config(folder.with_name("again"))
    run(first)
    run(again)
    assert first.target is not None
    assert again.target is not None
    os.utime(Path(again.target.folder) / "model.safetensors", (1, 1))
    assert target_digest(Path(first.target.folder)) == target_digest(Path(again.target.folder))


def test_a_data_set_of_several_files_becomes_one_file_of_conversations(there: Hub, folder: Path) -> None:
    there.put(
        "acme/talks",
        {
            "data/train-00000-of-00002.parquet": table("a", "b"),
            "data/train-00001-of-00002.jsonl": lines("c", "d"),
            "data/test-00000-of-00001.parquet": table("e"),
            "README.md": b"# talks",
        },
        kind="datasets",
    )
    fetched = run(config(folder, split="train")).dataset
    assert fetched is not None
    assert fetched.commit == there.branches["datasets/acme/talks"]
    found = Conversations.read(Path(fetched.path))
    assert sorted(one.messages[0]["content"] for one in found) == ["a", "b", "c", "d"]
    assert names(folder / "data") == {"data.jsonl", MANIFEST}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"split": "test"}, ["e"]),
        ({"files": "extra/*"}, ["f"]),
        ({"split": "train", "files": "*.jsonl"}, ["c", "f"]),
    ],
)
def test_a_split_or_a_pattern_says_which_files_are_meant(
    there: Hub, folder: Path, asked: dict[str, str], expected: list[str]
) -> None:
    files = {"train/0.jsonl": lines("c"), "test/0.parquet": table("e"), "extra/more.jsonl": lines("f")}
    there.put("acme/talks", files, kind="datasets")
    fetched = run(config(folder, **asked)).dataset
    assert fetched is not None
    assert sorted(one.messages[0]["content"] for one in Conversations.read(Path(fetched.path))) == expected


@pytest.mark.parametrize(("split", "expected"), [("train", ["a"]), ("train_gen", ["b"]), ("test", ["c", "d"])])
def test_a_split_whose_name_begins_another_ones_is_itself_where_it_is_there(
    there: Hub, folder: Path, split: str, expected: list[str]
) -> None:
    files = {
        "data/train-00000-of-00001.jsonl": lines("a"),
        "data/train_gen-00000-of-00001.jsonl": lines("b"),
        "data/test_sft-00000-of-00001.jsonl": lines("c"),
        "data/test_gen-00000-of-00001.jsonl": lines("d"),
    }
    there.put("acme/talks", files, kind="datasets")
    fetched = run(config(folder, split=split)).dataset
    assert fetched is not None
    assert sorted(one.messages[0]["content"] for one in Conversations.read(Path(fetched.path))) == expected


def test_files_that_name_no_split_are_all_for_training(there: Hub, folder: Path) -> None:
    there.put("acme/talks", {"a.jsonl": lines("a"), "b.jsonl": lines("b")}, kind="datasets")
    fetched = run(config(folder, split="train")).dataset
    assert fetched is not None
    assert len(Conversations.read(Path(fetched.path))) == 2


def test_a_data_set_without_a_file_of_the_split_is_refused_with_what_is_there(there: Hub, folder: Path) -> None:
    there.put("acme/talks", {"train.csv": b"a,b", "test.jsonl": lines("a")}, kind="datasets")
    call = lambda: run(config(folder, split="train"))  # noqa: E731
    refused(call, ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, "train.csv", "data.dataset.files")


def test_a_broken_file_of_a_data_set_is_named(there: Hub, folder: Path) -> None:
    there.put("acme/talks", {"train.parquet": table("a")[:-8]}, kind="datasets")
    call = lambda: run(config(folder, split="train"))  # noqa: E731
    refused(call, ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, "train.parquet", "no whole Parquet file")


def test_sigterm_interrupts_a_fetch_at_once(there: Hub, folder: Path) -> None:
    def terminated(_: str, path: str) -> Fault | None:
        if path.endswith("config.json"):
            os.kill(os.getpid(), signal.SIGTERM)
        return None

    there.fault = terminated
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run(config(folder))
    assert signal.getsignal(signal.SIGTERM) == before
    there.fault = lambda method, path: None
    assert of_target(run(config(folder))).files == 3


def test_without_the_client_the_image_is_named(there: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(lambda: run(config(folder)), ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, "--extra hub")


def test_a_container_that_is_ended_while_it_fetches_is_resumable_and_its_next_one_reports(
    there: Hub, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": config(folder).to_json()}))
    files = {
        "EAGLE3_CONFIG": str(tmp_path / "config.json"),
        "EAGLE3_TERMINATION_LOG": str(tmp_path / "message"),
        "HF_ENDPOINT": there.url,
    }
    asked = threading.Event()
    ended = threading.Event()

    def waits(_: str, path: str) -> Fault | None:
        if path.endswith("config.json"):
            asked.set()
            ended.wait(60)
        return None

    def container() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "eagle3_draft", "fetch"]
        return subprocess.Popen(command, env=os.environ | files, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    there.fault = waits
    process = container()
    assert asked.wait(60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == ExitCode.INTERRUPTED
    report = Report.parse((tmp_path / "message").read_text())
    assert report is not None
    assert report.reason == Reason.INTERRUPTED
    ended.set()
    there.fault = lambda method, path: None
    assert container().wait(60) == ExitCode.DONE
    report = Report.parse((tmp_path / "message").read_text())
    assert report is not None
    assert of_target(FetchResult.model_validate(report.result)).files == 3
