"""``kubectl eagle3 check`` and ``eagle3-draft check`` and ``convert``: on a laptop, without a cluster."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.jobs import ExitCode
from eagle3_draft import cli as draft_cli
from eagle3_operator.cli.main import main
from published import files, shapes
from published.layouts import LAYOUTS
from published.targets import large_target
from unit.convert import drafts

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "draft_vocab_size": 128,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]},
}


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    known = {"t2d": bytes([1] * 128 + [0] * 896)}
    files.write(folder / "model.safetensors", shapes.tensors(CONFIG), known)
    return folder


def test_a_good_draft_is_one_and_the_table_says_so(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = large_target(tmp_path / "target", shards=2, tensors=2, size=8)
    assert main(["check", str(draft), "--target", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{draft}: SpecForge or SGLang"
    assert any(line.startswith("ok       layers") for line in lines)


@pytest.mark.parametrize("run", [main, draft_cli.main])
def test_programs_get_json_and_shells_the_worst_finding(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Any
) -> None:
    target = large_target(tmp_path / "target", shards=2, tensors=2, size=8)
    words = ["check", str(draft), "--target", str(target), "--json", "--layers=-1,2,30", "--sglang-version", "0.5.23"]
    assert run(words) == ExitCode.REFUSED
    said = json.loads(capsys.readouterr().out)
    assert said["exitCode"] == ExitCode.REFUSED
    assert said["layers"] == [1, 29, 57]
    (refused,) = (finding for finding in said["findings"] if finding["verdict"] == "refused")
    assert (refused["rule"], refused["reason"]) == ("features", "FeatureMismatch")


@pytest.mark.parametrize("words", [["--layers", "one"], ["--sglang-version", "new"]])
def test_a_misuse_is_said(draft: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", str(draft), *words])


def test_what_cannot_be_read_has_a_code_of_its_own(
    draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "nowhere")]) == ExitCode.BAD_INPUT
    target = large_target(tmp_path / "target", shards=2, tensors=2, size=8)
    shard = target / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    assert main(["check", str(draft), "--target", str(target)]) == ExitCode.BAD_INPUT
    shard.unlink()
    assert main(["check", str(draft), "--target", str(target)]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err.splitlines()
    assert ["not a folder" in said[0], "was cut" in said[1], "missing" in said[2]] == [True, True, True]


def test_the_headers_of_600_gigabytes_are_checked_in_half_a_second(draft: Path, tmp_path: Path) -> None:
    target = large_target(tmp_path / "target")
    assert sum(file.stat().st_size for file in target.iterdir()) > 590e9
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "eagle3_operator.cli", "check", str(draft), "--target", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    # Of the processor: the machine may be busy with something else
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_a_check_does_not_wait_for_libraries_that_it_does_not_need(draft: Path) -> None:
    """They take three times as long to load as it takes to run."""
    command = [sys.executable, "-X", "importtime", "-m", "eagle3_operator.cli", "check", str(draft)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "eagle3_api.checkpoints.rules" in loaded
    assert [name for name in ("pydantic", "yaml") if f" {name}\n" in loaded] == []


def test_the_plugin_needs_nothing_that_a_plain_installation_does_not_bring() -> None:
    """Neither torch nor the operator's own packages: ``pip install .`` is enough."""
    loaded = (
        "import sys; from importlib import import_module; from eagle3_operator.cli.main import COMMANDS;"
        "[import_module(f'eagle3_operator.cli.{name}') for name in COMMANDS];"
        "print(sorted({'torch', 'numpy', 'kopf', 'kubernetes', 'httpx'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ------------------------------------------------------------------------------------------------- with torch


def test_a_draft_is_converted_by_hand(made: drafts.Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LAYOUTS["AngelSlim"](drafts.original_of(made), tmp_path)
    out = tmp_path / "out"
    assert draft_cli.main(["convert", str(tmp_path), str(out), "--target", str(made.target)]) == 0
    said = capsys.readouterr().out
    assert "mended   layout" in said
    assert f"--speculative-draft-model-path {out}" in said
    assert draft_cli.main(["check", str(out), "--target", str(made.target)]) == 0
    assert "mended" not in capsys.readouterr().out


def test_values_are_looked_at_where_torch_is(
    made: drafts.Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = drafts.original_of(made)
    original.weights["midlayer.mlp.up_proj.weight"].fill_(float("nan"))
    LAYOUTS["SpecForge"](original, tmp_path)
    assert main(["check", str(tmp_path)]) == 0
    assert draft_cli.main(["check", str(tmp_path)]) == ExitCode.REFUSED
    assert "REFUSED  finite" in capsys.readouterr().out
    words = ["convert", str(tmp_path), str(tmp_path / "out"), "--target", str(made.target)]
    assert draft_cli.main(words) == ExitCode.REFUSED


@pytest.mark.stages
def test_a_draft_that_is_asked_by_hand_must_know_its_target(
    made: drafts.Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published, out = tmp_path / "published", tmp_path / "out"
    published.mkdir()
    LAYOUTS["SpecForge"](drafts.original_of(made), published)
    words = ["convert", str(published), str(out), "--target", str(made.target), "--ask"]
    assert draft_cli.main(words) == ExitCode.REFUSED
    said = capsys.readouterr().out
    assert "REFUSED  agreement" in said
    assert "by chance it would be in" in said
    assert not (out / "config.json").exists()


def test_adopting_needs_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draft_cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) == ExitCode.BAD_CONFIGURATION
    assert "--target" in capsys.readouterr().err


def test_a_draft_of_another_target_is_not_adopted(
    made: drafts.Made, draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        draft_cli.main(["convert", str(draft), str(tmp_path / "out"), "--target", str(made.target)]) == ExitCode.REFUSED
    )
    assert "trained for another model" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layers", ["", ",", "one"])
def test_no_layers_at_all_are_told_from_layers(draft: Path, capsys: pytest.CaptureFixture[str], layers: str) -> None:
    with pytest.raises(SystemExit):
        main(["check", str(draft), f"--layers={layers}"])
    assert "is not a list of layers such as 1,15,28" in capsys.readouterr().err
