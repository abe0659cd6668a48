"""``kubectl eagle3 estimate``: what a person is told before terabytes are written."""

import json
from pathlib import Path
from textwrap import indent

import pytest
import yaml

from eagle3_operator.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """The table, by its first column."""
    assert main(["estimate", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {name.strip(): text for name, _, text in (line.partition("  ") for line in lines)}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["estimate", *arguments]) == 1
    return capsys.readouterr().err


def edited(folder: Path, **data: object) -> str:
    """The Kimi example with another data section."""
    document = yaml.safe_load((EXAMPLES / "kimi-k25.yaml").read_text())
    document["spec"]["data"] |= data
    document["spec"]["data"] = {name: value for name, value in document["spec"]["data"].items() if value is not None}
    path = folder / "draft.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_the_kimi_example_takes_four_and_a_half_tebibytes(capsys: pytest.CaptureFixture[str]) -> None:
    table = told(capsys, "-f", str(EXAMPLES / "kimi-k25.yaml"))
    assert table["features"].strip().startswith("4.58 TiB")
    assert "87.8 M (data.expectedTokens)" in table["tokens"]
    assert "39m on a pod of 8 GPUs at 37,088 tokens/s, if the volume takes 1.98 GiB/s" in table["time"]
    assert "adds up to 2.1h at 11,364 tokens/s" in table["answers"]
    assert "estimated, not measured: 2 x 32.0 G parameters per token at 30% of 989 Tflop/s per GPU" in table["rates"]
    assert table["or fp8 TopK"].strip() == "1.75 TiB"
    assert table["training"].strip().startswith("1.8h on 4 GPUs at 66,807 tokens/s, 5 epochs, less if not every")
    assert "from 35.5 Gflop per token at 60% of 989 Tflop/s per GPU, as measured on H200s" in table["training"]


def test_rates_of_another_gpu_than_the_pods_ask_for_are_told_as_such(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kimi = str(EXAMPLES / "kimi-k25.yaml")
    said = told(capsys, "-f", kimi)["GPU"]
    assert "these times assume an H200, but placement.nodeSelector asks for NVIDIA-RTX-PRO-6000" in said
    assert "GPU" not in told(capsys, "-f", kimi, "--gpu-teraflops", "503", "--gpu-terabytes-per-second", "1.8")
    document = yaml.safe_load((EXAMPLES / "kimi-k25.yaml").read_text())
    document["spec"]["placement"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    (tmp_path / "h200.yaml").write_text(yaml.safe_dump(document))
    assert "GPU" not in told(capsys, "-f", str(tmp_path / "h200.yaml"))


def test_the_page_shows_the_kimi_example_as_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "-f", str(EXAMPLES / "kimi-k25.yaml")]) == 0
    page = (EXAMPLES.parent / "docs" / "extraction.md").read_text()
    command = "    $ kubectl eagle3 estimate -f examples/kimi-k25.yaml\n"
    assert command + indent(capsys.readouterr().out, "    ") + "\n" in page


def test_another_size_is_another_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = told(capsys, "-f", edited(tmp_path, expectedTokens=10_000_000), "--tokens-per-second", "1000")
    assert table["features"].strip().startswith("534.18 GiB")
    assert "2.8h on" in table["time"]


def test_rates_follow_from_the_gpu_and_what_was_measured_needs_no_reckoning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = edited(tmp_path, regenerate={})
    slower = told(capsys, "-f", file, "--gpu-teraflops", "98.9", "--gpu-terabytes-per-second", "0.48")
    assert "6.6h on a pod of 8 GPUs at 3,709 tokens/s" in slower["time"]
    assert "at 1,136 tokens/s" in slower["answers"]
    measured = told(capsys, "-f", file, "--tokens-per-second", "1000", "--answer-tokens-per-second", "500")
    assert "rates" not in measured
    assert "24.4h on a pod of 8 GPUs at 1,000 tokens/s" in measured["time"]


@pytest.mark.parametrize(
    ("train", "more", "words"),
    [
        ({"precision": "fp8", "epochs": 1}, [], "17m on 4 GPUs at 84,844 tokens/s, 1 epoch,"),
        ({"nodes": 2}, ["--gpu-teraflops", "494.5"], "1.8h on 8 GPUs at 66,807 tokens/s"),
        ({"unrollSteps": 1}, [], "17m on 4 GPUs at 423,546 tokens/s"),
        (
            {},
            ["--train-tokens-per-second", "1000"],
            "121.9h on 4 GPUs at 1,000 tokens/s, 5 epochs, less if not every",
        ),
        ({"gpus": 0}, [], "unknown for a CPU; give --train-tokens-per-second"),
        ({"gpus": 0}, ["--train-tokens-per-second", "1000"], "121.9h at 1,000 tokens/s"),
        ({"trainer": {"image": "i", "command": ["c"]}}, [], "unknown, because train.trainer is not ours"),
    ],
    ids=["fp8", "two nodes of slower GPUs", "one step", "measured", "on a CPU", "measured on a CPU", "another trainer"],
)
def test_a_training_takes_as_long_as_its_products(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, train: dict[str, object], more: list[str], words: str
) -> None:
    document = yaml.safe_load((EXAMPLES / "kimi-k25.yaml").read_text())
    document["spec"]["train"] |= train
    (tmp_path / "draft.yaml").write_text(yaml.safe_dump(document))
    table = told(capsys, "-f", str(tmp_path / "draft.yaml"), *more)
    assert table["training"].strip().startswith(words)
    assert ("as measured on H200s" in table["training"]) is ("Gflop" in table["training"])


def test_without_a_count_the_upper_bound_is_called_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = told(capsys, "-f", edited(tmp_path, expectedTokens=None))
    assert "upper bound: data.maxSamples 37,312 x data.maxLength 10,240" in table["tokens"]
    assert table["features"].strip().startswith("19.93 TiB")


def test_answers_of_the_targets_own_are_said_to_change_the_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "answers" not in told(capsys, "-f", edited(tmp_path, regenerate=None))
    file = edited(tmp_path, regenerate={"maxTokens": 2048})
    said = told(capsys, "-f", file, "--answer-tokens-per-second", "4000")["answers"]
    assert "up to 2,048 tokens each (the tokens above must include them)" in said
    assert "adds up to 6.1h at 4,000 tokens/s per pod" in said


def test_without_any_bound_the_user_is_told_what_a_million_tokens_take_and_what_to_give(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = told(capsys, "-f", edited(tmp_path, expectedTokens=None, maxSamples=None))
    assert "For a total set data.expectedTokens" in table["tokens"]
    assert table["features"].strip() == "53.42 GiB for each million tokens"
    assert table["time"].strip().startswith("27s on a pod of 8 GPUs")


def test_a_claim_that_is_to_be_made_is_set_against_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "kimi-k25.yaml").read_text())
    document["spec"]["storage"]["features"] = {"size": "4Ti"}
    (tmp_path / "draft.yaml").write_text(yaml.safe_dump(document))
    assert "is 594." in told(capsys, "-f", str(tmp_path / "draft.yaml"))["features"]


def test_an_unknown_target_needs_its_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "kimi-k25.yaml").read_text())
    document["spec"]["target"]["model"] = "/models/our-own"
    path = tmp_path / "draft.yaml"
    path.write_text(yaml.safe_dump(document))
    assert "--target-config" in refused(capsys, "-f", str(path))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"text_config": {"hidden_size": 3584, "num_hidden_layers": 28}}))
    table = told(capsys, "-f", str(path), "--target-config", str(config))
    assert table["features"].strip().startswith("2.29 TiB")
    assert "layers 1, 13, 24 and the last" in table["states"]
    assert "give --tokens-per-second" in table["time"]  # of a configuration without the other sizes
    assert "give --train-tokens-per-second" in table["training"]
    assert "rates" not in table


def test_a_file_without_an_object_and_a_spec_with_a_fault_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text("kind: ConfigMap")
    assert "holds 0 Eagle3Drafts" in refused(capsys, "-f", str(tmp_path / "x.yaml"))
    assert "spec.data.maxLength" in refused(capsys, "-f", edited(tmp_path, maxLength=1))


def test_a_start_and_a_rollback_are_told_before_anything_serves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one_node = told(capsys, "-f", str(EXAMPLES / "kimi-k25.yaml"))
    assert one_node["start"].strip() == "up to 30m before it counts as hung: 600 GB of weights"
    assert (
        "noticed after 10m; going back then takes a start, during which the Service has no pod" in one_node["rollback"]
    )
    small = told(capsys, "-f", str(EXAMPLES / "minimal.yaml"))
    assert "a second while the former revision is warm (serve.bakeTime 10m)" in small["rollback"]
    assert "start" not in told(capsys, "-f", str(EXAMPLES / "train-only.yaml"))
    adopted = told(capsys, "-f", str(EXAMPLES / "adopt-checkpoint.yaml"))
    assert "draft.checkpoint adopts a draft" in adopted["features"]
    assert "start" in adopted
