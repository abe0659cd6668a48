"""What a training tells while it runs reaches whoever was named, and a listener that fails harms nobody."""

import json
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, ObjectReference, Progress, TrainConfig, idle_warning
from eagle3_api.spec import WeightsAndBiases
from eagle3_draft.errors import StageError
from eagle3_draft.train.evaluate import Evaluation
from eagle3_draft.train.listeners import StepMeasures
from eagle3_draft.train.telemetry import TENSORBOARD, Telemetry, check_libraries

STEP = StepMeasures(
    step=7,
    loss=2.5,
    accuracy=0.4,
    gradient_norm=0.9,
    learning_rate=1e-4,
    tokens=7000,
    tokens_per_second=1234.0,
    waiting=0.03,
    seconds_left=930.0,
    peak_bytes=2**30,
)
EVALUATION = Evaluation(loss=2.0, accuracy=[0.6, 0.5], prefix_survival=[0.6, 0.4], accept_length=[1.6, 1.9, 2.0])


def config(folder: Path, **changes: Any) -> TrainConfig:
    fields: dict[str, Any] = {
        "owner": ObjectReference(namespace="n", name="draft", uid="u"),
        "key": "k",
        "folder": str(folder),
        "scratch": "s",
        "features": "f",
        "features_key": "e",
        "target": "t",
        "target_digest": "d",
        "layers": [0],
        "vocabulary_size": 64,
        "epochs": 1,
        "tokens_per_step": 80,
        "learning_rate": 1e-3,
        "unroll_steps": 2,
        "seed": 1,
        "checkpoint_interval": 600.0,
    }
    return TrainConfig(**(fields | changes))


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("", 0))
        number: int = free.getsockname()[1]
    yield number


def scraped(port: int, host: str = "127.0.0.1") -> dict[str, float]:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_last_step_and_the_last_evaluation(tmp_path: Path, port: int) -> None:
    telemetry = Telemetry(config(tmp_path, metrics_port=port), steps=100)
    telemetry.step(STEP, "words")
    telemetry.evaluation(7, EVALUATION)
    found = scraped(port)
    by_ipv6 = scraped(port, "[::1]") if socket.has_dualstack_ipv6() else found
    telemetry.close()
    assert by_ipv6 == found, "as where pods have no other addresses"
    assert {name.removeprefix("eagle3_train_"): value for name, value in found.items()} == {
        "steps": 100,
        "step": 7,
        "tokens": 7000,
        "loss": 2.5,
        "accuracy": 0.4,
        "gradient_norm": 0.9,
        "learning_rate": 1e-4,
        "tokens_per_second": 1234,
        "waiting_share": 0.03,
        "peak_memory_bytes": 2**30,
        "held_out_loss": 2.0,
        "expected_accept_length[1]": 1.6,
        "expected_accept_length[2]": 1.9,
        "expected_accept_length[3]": 2.0,
        "prefix_survival[1]": 0.6,
        "prefix_survival[2]": 0.4,
    }


def progress(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)


def test_a_draft_of_another_trainer_is_all_done_but_for_its_measure(tmp_path: Path, port: int) -> None:
    telemetry = Telemetry(config(tmp_path, metrics_port=port), steps=0)
    found = progress(port)
    telemetry.close()
    assert (found["done"], found["steps"]) == (1, 0)


def test_anybody_can_ask_how_far_it_is(tmp_path: Path, port: int) -> None:
    telemetry = Telemetry(config(tmp_path, metrics_port=port), steps=100)
    before = progress(port)
    telemetry.step(STEP, "words")
    after = progress(port)
    telemetry.close()
    assert before == {"done": 0, "secondsLeft": None, "step": 0, "steps": 100, "loss": None}
    assert after == {"done": 0.07, "secondsLeft": 930, "step": 7, "steps": 100, "loss": 2.5}


def test_a_port_that_is_taken_keeps_nobody_from_training(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Telemetry(config(tmp_path, metrics_port=port), steps=100)
    second = Telemetry(config(tmp_path, metrics_port=port), steps=100)
    second.step(STEP, "words")
    first.close()
    captured = capsys.readouterr()
    assert f"no /metrics on port {port} for this training: " in captured.err
    assert Progress.last(captured.out) is not None


def test_a_listener_that_cannot_be_reached_when_a_training_begins_keeps_nobody_from_training(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / TENSORBOARD).write_text("where its folder would be")
    telemetry = Telemetry(config(tmp_path, tensor_board=True, metrics_port=port), steps=100)
    telemetry.step(STEP, "words")
    assert scraped(port)["eagle3_train_loss"] == 2.5
    telemetry.close()
    assert "no TensorBoard for this training: " in capsys.readouterr().err


def test_tensorboard_has_every_step_and_evaluation(tmp_path: Path) -> None:
    telemetry = Telemetry(config(tmp_path, tensor_board=True), steps=100)
    telemetry.step(STEP, "words")
    telemetry.evaluation(7, EVALUATION)
    telemetry.close()
    events = EventAccumulator(str(tmp_path / TENSORBOARD))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(7, 2.5)]
    assert [event.value for event in events.Scalars("held_out/accept_length/drafted_3")] == [2.0]


@pytest.mark.stages  # wandb starts a process of its own
def test_weights_and_biases_has_every_step_and_evaluation_in_the_run_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    asked = WeightsAndBiases(project="drafts", entity="us")
    telemetry = Telemetry(config(tmp_path, weights_and_biases=asked), steps=100)
    telemetry.step(STEP, "words")
    telemetry.evaluation(7, EVALUATION)
    telemetry.close()
    wandb.teardown()  # as at the end of a training's process: waits for the one that writes
    (file,) = tmp_path.glob("wandb/offline-run-*/run-u-k.wandb")  # by the training, so that a resumed one goes on in it
    records = list(recorded(file))
    run = next(record.run for record in records if record.HasField("run"))
    assert (run.entity, run.project, run.display_name) == ("us", "drafts", "n/draft")
    assert {update.key: update.value_json for update in run.config.update}["tokensPerStep"] == "80"
    (history,) = [record.history for record in records if record.HasField("history")]
    (history,) = [record.history for record in records if record.HasField("history")]
    found = {item.nested_key[0]: json.loads(item.value_json) for item in history.item}
    assert found["_step"] == 7
    assert found["train/loss"] == 2.5
    assert found["held_out/accept_length/drafted_3"] == 2.0


def recorded(file: Path) -> Iterator[Any]:
    """What an offline run of wandb wrote, by its own reader."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store: Any = DataStore()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        yield record


def test_a_listener_that_fails_is_told_nothing_more_and_the_others_are(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry(config(tmp_path, tensor_board=True, metrics_port=port), steps=100)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    telemetry.step(STEP, "words")
    telemetry.step(STEP, "words")
    assert scraped(port)["eagle3_train_loss"] == 2.5
    telemetry.close()
    assert capsys.readouterr().err.count("TensorBoard hears no more of this training: No space left") == 1


def test_a_library_that_the_image_lacks_is_named_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not there
    check_libraries(config(tmp_path, tensor_board=True))
    asked = config(tmp_path, weights_and_biases=WeightsAndBiases(project="drafts"))
    with pytest.raises(StageError, match=r"weightsAndBiases needs the Python package wandb.*pip install") as refused:
        check_libraries(asked)
    assert (refused.value.code, refused.value.reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)


def test_every_progress_line_of_a_training_that_leaves_gpus_idle_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry(config(tmp_path), steps=7, warning=idle_warning(0.5))
    telemetry.step(STEP, "words")
    line = Progress.last(capsys.readouterr().out)
    assert line is not None
    assert line.message.startswith("words; the GPUs stand idle for 50% of the time")
    assert idle_warning(0.8) == ""
