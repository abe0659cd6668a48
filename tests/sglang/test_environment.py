"""The CPU environment: SGLang's own server in it, and its replaced kernels."""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environment
import image
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle3_api.sglang import (
    HIDING_FLAGS,
    OVERRIDE_FLAG,
    OWNED_FLAGS,
    UNSUPPORTED_FLAGS,
    capture_arguments,
    flag_values,
    numeric_arguments,
)
from eagle3_api.sglang.capture import FORWARD_FLAGS
from eagle3_api.sglang.drafts import BACKEND_FLAGS
from eagle3_api.sglang.flags import NUMERIC_FLAGS
from eagle3_operator.manifests.flags import COLLECTIVES, WATCHDOG, server_flags
from served.server import sglang
from tiny.grammar import conversations
from tiny.make import FLOORS, cached
from tiny.train import encode
from unit.samples import KIMI, draft

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def target() -> Path:
    return cached() / "models" / "tiny-target"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang") / "server.log"


@pytest.fixture(scope="module")
def server(target: Path, log: Path) -> Iterator[str]:
    with sglang(target, log) as url:
        yield url


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        return json.load(answer)


def test_every_replaced_kernel_does_what_the_original_does_in_the_interpreter() -> None:
    recipe = image.recipe()
    variables = {**os.environ, **recipe.env, "PATH": f"{recipe.path[0]}:{os.environ['PATH']}"}
    command = ["python3", "-m", "sglang_cpu.selfcheck"]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert run.stdout, run.stderr
    report = json.loads(run.stdout)
    assert set(report["cases"].values()) == {"same"}, report["cases"]
    # that one writes through addresses, so its case compares it by itself
    assert set(report["replacements"]) - set(report["compared"]) == {"copy_all_layer_kv_cache_tiled"}


#: All that SGLang's command line takes: of each flag its names.
FLAGS = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([action.option_strings for action in parser._actions]))
"""


@pytest.fixture(scope="module")
def flags() -> list[set[str]]:
    recipe = image.recipe()
    variables = {**os.environ, **recipe.env, "PATH": f"{recipe.path[0]}:{os.environ['PATH']}"}
    command = ["python3", "-c", FLAGS]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=True)
    return [set(names) for names in json.loads(run.stdout.splitlines()[-1])]


def test_every_flag_that_a_server_is_given_is_one_of_sglangs_in_its_whole_length(flags: list[set[str]]) -> None:
    """--tp was none of them: it was taken as the beginning of --tp-size, until another flag begins so."""
    adapting = draft(
        serve={"speculative": {"mode": "Auto"}},
        data={"conversations": "/data/talks.jsonl", "chatTemplate": "/t"},
        target={"model": "/models/kimi", "trustRemoteCode": True},
    )
    given = server_flags(adapting.spec, KIMI, namespace="llm", name="kimi", number=1, draft="/eagle3/drafts/d")
    words = {word for flag in given for word in flag.words if word.startswith("--")} | {
        *capture_arguments([], answers=True)
    }
    known = set().union(*flags)
    assert {word for word in words if word.startswith("--")} - known == set()


def test_no_flag_of_sglangs_begins_one_that_is_looked_for_in_a_command_line(flags: list[set[str]]) -> None:
    """An abbreviation is taken for the flag that it begins; a whole flag must not be."""
    known = set().union(*flags)
    for flag in (WATCHDOG, COLLECTIVES, *BACKEND_FLAGS, *FORWARD_FLAGS):
        assert [name for name in known if name != flag and flag_values([name, "x"], flag)] == []
    assert [name for name in known if name not in NUMERIC_FLAGS and numeric_arguments([name, "x"])] == []


def test_a_flag_that_is_refused_is_refused_by_each_of_its_names(flags: list[set[str]]) -> None:
    refused = {*OWNED_FLAGS, *UNSUPPORTED_FLAGS, *HIDING_FLAGS, OVERRIDE_FLAG}
    assert [names - refused for names in flags if names & refused and names - refused] == []


def test_the_server_answers_greedily_as_transformers_does(server: str, target: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(target)
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    prompts = [encode(tokenizer, messages[:1], prompt=True) for messages in conversations(seed=11, count=6)]
    answers = post(
        f"{server}/generate", {"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 64}}
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)[0, len(prompt) :]
        assert answer["output_ids"] == wanted.tolist()


def test_a_chat_goes_through_the_template_of_the_target(server: str) -> None:
    messages = [{"role": "user", "content": "count from 120 in twos"}]
    answer = post(f"{server}/v1/chat/completions", {"model": "tiny", "messages": messages, "temperature": 0})
    assert answer["choices"][0]["message"]["content"].split() == ["122", "124", "126"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 9


def test_an_answer_under_a_json_schema_is_json(server: str) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "count from 1 in ones"}],
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "object"}}},
    }
    answer = post(f"{server}/v1/chat/completions", body)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


def test_no_kernel_of_plain_serving_is_left_to_the_interpreter(server: str, log: Path) -> None:
    assert "interpreter" not in log.read_text()


def test_the_target_is_really_trained() -> None:
    quality = json.loads((cached() / "quality.json").read_text())
    assert all(quality[name] >= floor for name, floor in FLOORS.items()), quality


def test_a_plug_in_that_is_not_told_about_the_interpreter_refuses_to_start(target: Path) -> None:
    recipe = image.recipe()
    variables = {**os.environ, **recipe.env, "TORCHDYNAMO_DISABLE": "0"}
    command = [f"{recipe.path[0]}/python3", "-m", "sglang.launch_server", "--model-path", str(target)]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert "sglang-cpu needs TORCHDYNAMO_DISABLE=1 in the environment" in run.stderr


def test_a_changed_kernel_makes_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment.path()
    shutil.copytree(environment.HERE, tmp_path / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(environment, "HERE", tmp_path / "sources")
    assert environment.path() == before
    (tmp_path / "sources" / "plugin" / "sglang_cpu" / "tree.py").write_text("")
    assert environment.path() != before


def test_containers_see_the_environment_and_the_python_that_it_rests_on() -> None:
    recipe = image.recipe()
    python = Path(recipe.path[0], "python3").resolve()
    assert all(folder.is_dir() for folder in recipe.share)
    assert any(python.is_relative_to(folder.resolve()) for folder in (*recipe.share, Path("/usr")))
