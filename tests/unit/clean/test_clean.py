"""Nothing is removed but what the object itself made and names."""

from pathlib import Path

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import CleanConfig, ExitCode, ObjectReference
from eagle3_draft.clean import run
from eagle3_draft.stage import StageError


def config(*folders: Path) -> CleanConfig:
    owner = ObjectReference(namespace="llm", name="tiny", uid="u")
    return CleanConfig(owner=owner, key="c" * 16, folders=[str(folder) for folder in folders])


def artifact(folder: Path) -> Path:
    (folder / "part-00000-of-00001").mkdir(parents=True)
    (folder / "part-00000-of-00001" / "train-00000.safetensors").write_bytes(bytes(8192))
    (folder / "manifest.json").write_text("{}")
    return folder


def test_the_named_folders_go_and_all_others_stay(tmp_path: Path) -> None:
    mine = artifact(tmp_path / "llm" / "tiny" / "extract" / "k1")
    other = artifact(tmp_path / "llm" / "tiny" / "extract" / "k2")
    outside = artifact(tmp_path / "models")
    (mine / "link").symlink_to(outside)
    result = run(config(mine, tmp_path / "llm" / "tiny" / "train" / "never-was"), features_root=tmp_path)
    assert not mine.exists()
    assert (other / "manifest.json").exists()
    assert (outside / "manifest.json").exists()
    assert (result.files, result.bytes) == (1, 8192)
    assert run(config(mine), features_root=tmp_path).files == 0


@pytest.mark.parametrize(
    "folder", ["llm/other/extract/k1", "llm/tiny", "llm/tiny/../other/extract/k1", "llm/tiny/link"]
)
def test_a_folder_that_is_not_the_objects_own_is_left_alone(tmp_path: Path, folder: str) -> None:
    theirs = artifact(tmp_path / "llm" / "other" / "extract" / "k1")
    (tmp_path / "llm" / "tiny").mkdir()
    (tmp_path / "llm" / "tiny" / "link").symlink_to(theirs)
    with pytest.raises(StageError) as raised:
        run(config(tmp_path / folder), features_root=tmp_path)
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)
    assert (theirs / "manifest.json").exists()
