"""``kubectl eagle3 render``: the flags a person would otherwise have to know by heart, each with its reason."""

import io
import json
from pathlib import Path

import pytest
import yaml

from eagle3_operator.cli.main import main
from unit.decide.world import serving_draft

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A multimodal target's, whose language model has a section of its own."""
    language = {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": language}))
    return path


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["render", *arguments]) == 0
    return capsys.readouterr().out


def test_every_flag_of_the_kimi_example_comes_with_its_reason(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    example = str(EXAMPLES / "kimi-k25.yaml")
    title, *lines = rendered(capsys, "-f", example, "--target-config", str(config), "--explain").splitlines()
    assert title.split() == ["FLAG", "WHY"]
    assert all(len(line.split("   ", 1)) == 2 for line in lines)
    told = {line.split()[0]: line for line in lines}
    assert "serves at accept length 1.0" in told["--speculative-algorithm"]
    assert told["--context-length"].split()[1] == "262144"


def test_without_explain_it_is_a_command_for_a_shell(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    said = rendered(capsys, "-f", str(EXAMPLES / "kimi-k25.yaml"), "--target-config", str(config))
    assert said.startswith("python3 -m sglang.launch_server \\\n  --model-path /models/Kimi-K2.5 \\\n")
    assert "--speculative-algorithm EAGLE3" in said


def test_the_plain_revision_has_no_word_of_speculation(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    example = str(EXAMPLES / "kimi-k25.yaml")
    assert "--speculative" not in rendered(capsys, "-f", example, "--target-config", str(config), "--plain")


def test_an_object_from_the_cluster_needs_no_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    obj = serving_draft().obj
    document = {
        "apiVersion": "eagle3.dev/v1alpha1",
        "kind": "Eagle3Draft",
        "metadata": obj.metadata.to_json(),
        "spec": obj.spec.to_json(),
        "status": obj.status,
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(document)))
    said = rendered(capsys, "-f", "-")
    assert f"--speculative-draft-model-path {obj.status['artifact']['folder']}" in said


def test_without_the_targets_configuration_the_user_is_told_two_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", str(EXAMPLES / "kimi-k25.yaml")]) == 1
    said = capsys.readouterr().err
    assert "--target-config" in said
    assert "kubectl get e3d NAME -o yaml" in said
