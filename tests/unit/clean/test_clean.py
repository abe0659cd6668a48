"""What the object itself left under the features root goes, and nothing else."""

from pathlib import Path

import pytest

from eagle3_api.jobs import CleanConfig, CleanResult, ObjectReference
from eagle3_draft.clean import run
from eagle3_draft.storage.places import Volume


def cleaned(root: Path, drafts: Path | None = None) -> CleanResult:
    owner = ObjectReference(namespace="llm", name="tiny", uid="u")
    return run(CleanConfig(owner=owner, key="c" * 16), features_root=root, drafts_root=drafts or root)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def artifact(folder: Path) -> Path:
    (folder / "part-00000-of-00001").mkdir(parents=True)
    (folder / "part-00000-of-00001" / "train-00000.safetensors").write_bytes(bytes(8192))
    (folder / "manifest.json").write_text("{}")
    return folder


def checkpoint(training: Path) -> Path:
    (training / ".step-7").mkdir(parents=True)
    (training / ".step-7" / "state.json").write_bytes(bytes(4096))
    return training


def test_the_features_and_the_checkpoints_of_every_key_go_and_those_of_others_stay(tmp_path: Path) -> None:
    own = tmp_path / "llm" / "tiny"
    present = artifact(own / "extract" / "k1")
    artifact(own / "extract" / "of-a-former-spec")
    (own / "extract" / "half" / "part-00000-of-00001").mkdir(parents=True)
    checkpoint(own / "train" / "t1")
    checkpoint(own / "train" / "of-a-former-spec")
    theirs = artifact(tmp_path / "llm" / "tiny-2" / "extract" / "k1")
    outside = artifact(tmp_path / "models")
    (present / "link").symlink_to(outside)
    (own / "extract" / "link").symlink_to(outside)
    result = cleaned(tmp_path)
    assert names(own / "extract") == {"link"}
    assert not names(own / "train")
    assert (theirs / "manifest.json").exists()
    assert (outside / "manifest.json").exists()
    assert result.files == 2 + 1 + 2  # shards, the link, checkpoints
    assert result.bytes >= 2 * 8192 + 2 * 4096
    assert cleaned(tmp_path).files == 0


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    """Of the user's own, beside a draft: the link is a working file by its name, and goes."""
    outside = artifact(tmp_path / "models" / "target")
    trained = artifact(tmp_path / "llm" / "tiny" / "train" / "t1")
    (trained / ".notes").symlink_to(outside.parent)
    (trained / ".target").symlink_to(outside)
    assert cleaned(tmp_path).files == 2
    assert not list(trained.glob(".*"))
    assert {path.name for path in outside.rglob("*") if path.is_file()} == {"manifest.json", "train-00000.safetensors"}


def test_a_removal_that_is_interrupted_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    features = artifact(tmp_path / "llm" / "tiny" / "extract" / "k1")
    for number in range(5):
        (features / f"part-{number:05d}-of-00005").mkdir(exist_ok=True)
        (features / f"part-{number:05d}-of-00005" / "manifest.json").write_text("{}")
        (features / f"part-{number:05d}-of-00005" / "train-00000.safetensors").write_bytes(b"x")

    def interrupted(files: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Volume().remove(features, interrupted)
    assert len(list(features.rglob("*.safetensors"))) > 3
    assert not list(features.rglob("manifest.json"))


def test_a_trained_draft_on_the_claim_of_the_features_stays(tmp_path: Path) -> None:
    trained = checkpoint(artifact(tmp_path / "llm" / "tiny" / "train" / "t1"))
    cleaned(tmp_path)
    assert names(trained) == {"manifest.json", "part-00000-of-00001"}


def test_of_trainings_that_no_draft_came_of_nothing_is_left_with_the_drafts(tmp_path: Path) -> None:
    """Where features lie in a bucket their checkpoints are there, and the best weights so far always are."""
    trainings = tmp_path / "drafts" / "llm" / "tiny" / "train"
    trained = checkpoint(artifact(trainings / "t1"))
    abandoned = checkpoint(trainings / "t0" / ".scratch").parent
    for training in (trained, abandoned):
        (training / ".best-7.safetensors").write_bytes(bytes(4096))
    (abandoned / "config.json").write_text("{}")
    theirs = checkpoint(tmp_path / "drafts" / "llm" / "another" / "train" / "t0")
    result = cleaned(tmp_path / "features", tmp_path / "drafts")
    assert names(trainings) == {"t1"}
    assert names(trained) == {"manifest.json", "part-00000-of-00001"}
    assert (theirs / ".step-7").exists()
    assert result.files == 2 + 1 + 2  # checkpoints, the configuration, best weights


def test_nothing_to_remove_is_no_fault(tmp_path: Path) -> None:
    assert cleaned(tmp_path) == CleanResult(files=0, bytes=0)
