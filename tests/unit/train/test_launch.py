"""What is done once, around the ranks."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3_api.artifacts import MANIFEST
from eagle3_api.jobs import TrainConfig, TrainResult
from eagle3_draft.storage import artifacts
from eagle3_draft.train import launch
from eagle3_draft.train.launch import remove_abandoned, run
from unit.samples import TRAINED
from unit.train import corpus


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


@pytest.mark.parametrize("bucket", [False, True], ids=["features on a volume", "features in a bucket"])
def test_what_trainings_under_other_keys_left_unfinished_goes_and_finished_drafts_stay(
    tmp_path: Path, bucket: bool
) -> None:
    drafts, features = tmp_path / "drafts" / "llm" / "tiny" / "train", tmp_path / "features" / "llm" / "tiny" / "train"
    scratch = drafts / "now" / ".scratch" if bucket else features / "now"
    made = corpus.Corpus(tmp_path / "target", tmp_path / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "target_digest", lambda _: "d" * 64)
        config = corpus.train_config(made, tmp_path, folder=str(drafts / "now"), scratch=str(scratch))
    kept = [
        written(drafts / "now" / ".best-3.safetensors"),
        written(scratch / ".step-3" / "state.json"),
        written(drafts / "proven" / MANIFEST),
        written(drafts / "proven" / "model.safetensors"),
        written(tmp_path / "drafts" / "llm" / "tiny" / "convert" / "half" / "model.safetensors"),
        written(tmp_path / "drafts" / "llm" / "tiny-2" / "train" / "other" / ".best-9.safetensors"),
    ]
    gone = [
        written(drafts / "former" / ".best-7.safetensors"),
        written((drafts / "former" / ".scratch" if bucket else features / "former") / ".step-7" / "state.json"),
    ]
    remove_abandoned(config)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)
    assert not (drafts / "former").exists()


def test_a_folder_that_is_not_laid_out_as_artifacts_are_has_no_neighbours_to_remove(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "target_digest", lambda _: "d" * 64)
        config = corpus.train_config(corpus.Corpus(tmp_path / "target", tmp_path / "store"), tmp_path / "mine")
    other = written(tmp_path / "mine" / "thesis" / "only-copy")
    remove_abandoned(config)
    assert other.exists()


def test_a_pod_that_was_killed_once_its_draft_was_there_leaves_no_checkpoints_behind(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "target_digest", lambda _: "d" * 64)
        config = corpus.train_config(corpus.Corpus(tmp_path / "target", tmp_path / "store"), tmp_path)
    folder, scratch = Path(config.folder), Path(config.scratch)
    written(folder / "model.safetensors")
    numbers = TRAINED.model_dump()
    artifacts.publish(folder, stage="train", key=config.key, made_from={}, numbers=numbers, provenance={})
    written(scratch / ".step-3" / "state.json")
    written(folder / ".best-3.safetensors")
    assert run(config) == TRAINED
    assert not (scratch / ".step-3").exists()
    assert not (folder / ".best-3.safetensors").exists()
    assert (folder / "model.safetensors").exists()


def test_ranks_are_given_the_pod_s_grace_to_write_a_checkpoint_before_they_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    monkeypatch.setenv(variable, "30")  # torch's own
    given: list[str] = []

    def launched(*_: object) -> Callable[[TrainConfig], dict[int, TrainResult]]:
        given.append(os.environ[variable])
        return lambda _: {0: TRAINED}

    monkeypatch.setattr(launch, "elastic_launch", launched)
    made = corpus.make(tmp_path, train=4, held_out=1)
    for grace in (600, 3):
        run(corpus.train_config(made, tmp_path / str(grace), grace_seconds=grace))
    assert given == ["595", "1"]
