"""An artifact is finished or it is not; what is broken is named."""

import json
import os
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, MANIFEST, MODELS_ROOT
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName
from eagle3_api.manifest import Manifest
from eagle3_draft import files
from eagle3_draft.errors import StageError
from eagle3_draft.storage import artifacts

KEY = "9f" * 32


def fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train-00000.safetensors").write_bytes(b"shard" * 1000)
    (folder / "prompts.jsonl").write_text("{}\n")
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "one").write_bytes(b"")


def publish(folder: Path, key: str = KEY) -> Manifest:
    return artifacts.publish(
        folder,
        stage="extract",
        key=key,
        made_from={"data": "d" * 64},
        numbers={"layers": [0, 1]},
        provenance={"image": "sglang:v0.5.21"},
    )


def assert_corrupt(act: Callable[[], object], *words: str) -> None:
    with pytest.raises(StageError) as raised:
        act()
    assert raised.value.code == ExitCode.BAD_INPUT
    assert raised.value.reason == Reason.CORRUPT_ARTIFACT
    for word in words:
        assert word in raised.value.message


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_published_folder_is_finished_and_says_what_it_was_made_from(tmp_path: Path) -> None:
    fill(tmp_path)
    published = publish(tmp_path)
    found = artifacts.finished(tmp_path, KEY)
    assert found == published
    assert [file.path for file in published.files] == ["parts/one", "prompts.jsonl", "train-00000.safetensors"]
    assert published.file("train-00000.safetensors").size == 5000
    assert (published.made_from, published.numbers) == ({"data": "d" * 64}, {"layers": [0, 1]})


def test_a_folder_without_a_manifest_is_work_to_do(tmp_path: Path) -> None:
    assert artifacts.finished(tmp_path / "nowhere", KEY) is None
    fill(tmp_path)
    assert artifacts.finished(tmp_path, KEY) is None


def test_published_files_can_be_read_by_every_user(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "prompts.jsonl").chmod(0o600)
    (tmp_path / "parts").chmod(0o700)
    publish(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()} == {0o644}
    assert stat.S_IMODE((tmp_path / "parts").stat().st_mode) == 0o755


def test_working_files_are_no_part_of_an_artifact(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".train-00001.partial").write_bytes(b"half")
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "state.json").write_text("{}")
    published = publish(tmp_path)
    assert not [file.path for file in published.files if file.path.startswith(".")]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_link_cannot_be_published(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "shortcut").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="not a regular file"):
        publish(tmp_path)


def test_a_file_is_verified_at_its_first_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    publish(tmp_path)
    read: list[Path] = []
    digest = files.file_digest

    def counted(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(artifacts, "file_digest", counted)
    assert artifacts.verified(tmp_path, "prompts.jsonl") == tmp_path / "prompts.jsonl"
    artifacts.verified(tmp_path, "prompts.jsonl")
    assert read == [tmp_path / "prompts.jsonl"]


def test_a_file_that_changed_after_publishing_is_named(tmp_path: Path) -> None:
    fill(tmp_path)
    publish(tmp_path)
    (tmp_path / "train-00000.safetensors").write_bytes(b"SHARD" * 1000)
    assert artifacts.finished(tmp_path, KEY) is not None
    assert_corrupt(lambda: artifacts.verified(tmp_path, "train-00000.safetensors"), "train-00000", "was published")


def test_a_file_that_was_cut_or_deleted_is_named_before_anything_is_read(tmp_path: Path) -> None:
    fill(tmp_path)
    publish(tmp_path)
    (tmp_path / "train-00000.safetensors").write_bytes(b"shard")
    assert_corrupt(lambda: artifacts.finished(tmp_path, KEY), "5 bytes, 5000 were published")
    (tmp_path / "train-00000.safetensors").unlink()
    assert_corrupt(lambda: artifacts.finished(tmp_path, KEY), "'train-00000.safetensors' is missing")


def test_a_file_that_is_not_listed_cannot_be_read(tmp_path: Path) -> None:
    fill(tmp_path)
    publish(tmp_path)
    (tmp_path / "later").write_text("")
    assert_corrupt(lambda: artifacts.verified(tmp_path, "later"), "lists no later")


def test_another_keys_artifact_is_not_taken(tmp_path: Path) -> None:
    fill(tmp_path)
    publish(tmp_path, key="a" * 64)
    assert_corrupt(lambda: artifacts.finished(tmp_path, KEY), "a" * 64)


@pytest.mark.parametrize("root", [DRAFTS_ROOT, FEATURES_ROOT, MODELS_ROOT])
def test_only_what_is_ours_is_to_be_deleted(root: PurePosixPath) -> None:
    ours = artifacts.corrupt(Path(root, "train", "kimi", "convert", "c0c0"), "a file is missing")
    assert ours.message.endswith("or delete the folder to have it made again")
    assert ours.retry is StageName.CONVERT
    theirs = artifacts.corrupt(Path("/models/their-own"), "a file is missing")
    assert "delete" not in theirs.message.lower()
    assert theirs.message.endswith("Copy it again from where it came")
    assert theirs.retry is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '"manifest"',
        "\x00",
        "[" * 100_000,
        '{"format": 1, "stage": "extract", "key": "k", "files": [], "madeFrom": {}}',
        '{"format": "eagle3.dev/artifact/v9", "stage": "extract", "key": "k", "files": [], "madeFrom": {}}',
    ],
)
def test_a_manifest_that_is_none_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert_corrupt(lambda: artifacts.finished(tmp_path, "k"), str(tmp_path))


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../outside", "parts/../../outside", ".", "", "a\x00b", "parts", "x" * 300]
)
def test_a_manifest_cannot_reach_out_of_its_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").write_text("secret")
    folder = tmp_path / "artifact"
    fill(folder)
    publish(folder)
    edit(folder, lambda manifest: manifest["files"][0].update(path=path))
    with pytest.raises(StageError) as raised:
        artifacts.finished(folder, KEY)
    assert raised.value.reason in (Reason.CORRUPT_ARTIFACT, Reason.STORAGE_UNAVAILABLE)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("{}\n")
    folder = tmp_path / "artifact"
    fill(folder)
    publish(folder)
    (folder / "prompts.jsonl").unlink()
    (folder / "prompts.jsonl").symlink_to(tmp_path / "outside")
    assert_corrupt(lambda: artifacts.verified(folder, "prompts.jsonl"), "leads out of the folder")


def test_a_manifest_that_lists_a_file_twice_is_corrupt(tmp_path: Path) -> None:
    fill(tmp_path)
    publish(tmp_path)
    edit(tmp_path, lambda manifest: manifest["files"].append(manifest["files"][0]))
    assert_corrupt(lambda: artifacts.finished(tmp_path, KEY), "twice")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder that is finished, and its manifest."""
    folder = tmp_path_factory.mktemp("hostile")
    fill(folder)
    publish(folder)
    return folder, (folder / MANIFEST).read_bytes()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["format", "stage", "key", "files", "madeFrom", "provenance", "numbers"]),
)
def test_no_manifest_crashes_its_reader(hostile: tuple[Path, bytes], value: object, field: str) -> None:
    folder, whole = hostile
    (folder / MANIFEST).write_bytes(whole)
    edit(folder, lambda manifest: manifest.update({field: value}))
    try:
        found = artifacts.finished(folder, KEY)
    except StageError as error:
        assert error.reason == Reason.CORRUPT_ARTIFACT
    else:
        assert found is not None
        assert found.key == KEY


def die_at(line: int, act: Callable[[], object]) -> bool:
    """Run in a forked process that dies, with nothing cleaned up, at the n-th executed line of artifacts.py or files.py.

    Returns whether it died (False: it came to its end before).
    """
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in (artifacts.__file__, files.__file__):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os._exit(9)
            return trace

        sys.settrace(trace)
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.stages
def test_a_process_killed_at_any_line_of_publishing_leaves_work_to_do_or_a_finished_artifact(tmp_path: Path) -> None:
    seen = set()
    line, died = 0, True
    while died:
        line += 1
        folder = tmp_path / str(line)
        fill(folder)
        died = die_at(line, partial(publish, folder))
        found = artifacts.finished(folder, KEY)
        seen.add(found is None)
        if found is None:
            publish(folder)
        for file in artifacts.read(folder).files:
            artifacts.verified(folder, file.path)
        assert {file.path for file in artifacts.read(folder).files} == {
            "parts/one",
            "prompts.jsonl",
            "train-00000.safetensors",
        }
    assert seen == {True, False}
    assert line > 20
