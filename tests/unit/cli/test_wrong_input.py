"""Whatever the plugin is given by mistake, it says in one line what is wrong, and its exit code is not zero."""

import copy
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_operator.cli import admission
from eagle3_operator.cli.main import main
from unit.decide.world import serving_draft

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "kimi-k25.yaml"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and the one line on standard error."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    said = capsys.readouterr()
    assert code != 0
    assert said.out == ""
    (line,) = said.err.splitlines()
    return code, line


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str | bytes], str]:
    """A file with this in it; its path."""

    def write(content: str | bytes) -> str:
        path = tmp_path / "object.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("frobnicate",), "invalid choice: 'frobnicate' (choose from"),
        (("status",), "the following arguments are required: name"),
        (("status", "kimi", "--verbose"), "unrecognized arguments: --verbose"),
        (("estimate",), "the following arguments are required: -f/--file"),
        (("estimate", "-f", "x", "--tokens-per-second", "0"), "0 is not a number of tokens per second"),
        (("estimate", "-f", "x", "--tokens-per-second", "many"), "many is not a number of tokens per second"),
        (("render", "-f", "x", "-r", "newest"), "'newest' is not a revision such as r3"),
        (("render", "-f", "x", "-r", "r1", "--all"), "not allowed with argument"),
        (("check",), "the following arguments are required: folder"),
        (("check", "x", "--layers", "first"), "'first' is not a list of layers such as 1,15,28"),
        (("check", "x", "--sglang-version", "newest"), "newest"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, line = refusal(capsys, *words)
    assert code == 2
    assert line.startswith("kubectl eagle3")
    assert said in line
    assert line.endswith("--help)")


FILES: dict[str, tuple[str | bytes, str]] = {
    "broken YAML": ("spec: [", "cannot be read: while parsing a flow node"),
    "no text": (b"\xff\xfe\x00", "cannot be read"),
    "nested too deep": ("[" * 500, "cannot be read"),
    "empty": ("", "holds 0 Eagle3Drafts, not one"),
    "something else": ("kind: Deployment", "holds 0 Eagle3Drafts, not one"),
    "two objects": ("kind: Eagle3Draft\n---\nkind: Eagle3Draft", "holds 2 Eagle3Drafts, not one"),
    "a list of two": (
        "{kind: List, items: [{kind: Eagle3Draft}, {kind: Eagle3Draft}]}",
        "holds 2 Eagle3Drafts, not one",
    ),
    "a list of nothing": ("{kind: List, items: }", "holds 0 Eagle3Drafts, not one"),
    "a list of one without a spec": (
        "{kind: List, items: [{kind: Eagle3Draft}]}",
        "object.yaml: spec: Input should be",
    ),
    "no spec": ("kind: Eagle3Draft", "object.yaml: spec: Input should be"),
    "a list for a spec": ("{kind: Eagle3Draft, spec: []}", "object.yaml: spec: Input should be"),
    "a missing field": (
        "{kind: Eagle3Draft, spec: {image: 'lmsysorg/sglang:v0.5.23'}}",
        "object.yaml: spec.target: Field required",
    ),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("command", ["estimate", "render"])
def test_a_file_that_holds_no_object_is_named_with_what_is_wrong_with_it(
    capsys: pytest.CaptureFixture[str], written: Callable[[str | bytes], str], command: str, case: str
) -> None:
    content, said = FILES[case]
    code, line = refusal(capsys, command, "-f", written(content))
    assert (code, line.startswith("kubectl eagle3: "), said in line) == (1, True, True), line


ODD_BUCKET = {"publish": {"objectStore": {"url": "s3://drafts/../others"}}}


@pytest.mark.parametrize(
    ("spec", "name", "said"),
    [
        (
            ODD_BUCKET,
            "kimi",
            "object.yaml: spec.publish.objectStore.url: s3://BUCKET/PREFIX, with names between the slashes",
        ),
        (
            {"serve": {"speculative": {"numSteps": 1, "topK": 1, "numDraftTokens": 16}}},
            "kimi",
            "object.yaml: spec.serve.speculative: with topK 1 SGLang uses numSteps + 1 draft tokens; numSteps is 1 and",
        ),
        ({"serve": None}, "kimi", "object.yaml: spec: watch judges a serving revision: it needs serve"),
        (
            {"placement": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
            "kimi",
            "object.yaml: spec.placement.env[1]: duplicate of name A",
        ),
        ({}, "kimi-r1", "object.yaml: metadata.name: must not end in -r<digits>; that is how revisions are named"),
    ],
    ids=["a field's", "a section's, with its numbers", "the whole's", "twice", "the name's"],
)
@pytest.mark.parametrize("command", ["estimate", "render"])
def test_a_rule_that_the_api_server_would_refuse_by_is_told_in_its_words(
    capsys: pytest.CaptureFixture[str],
    written: Callable[[str | bytes], str],
    command: str,
    spec: dict[str, Any],
    name: str,
    said: str,
) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["name"] = name
    document["spec"] |= spec
    code, line = refusal(capsys, command, "-f", written(yaml.safe_dump(document)))
    assert (code, said in line) == (1, True), line


def test_what_a_cluster_has_stored_is_read_by_whatever_rules_it_was_admitted(
    capsys: pytest.CaptureFixture[str], written: Callable[[str | bytes], str]
) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"] |= {"uid": "3f2c", "namespace": "llm"}
    document["spec"] |= ODD_BUCKET
    assert main(["estimate", "-f", written(yaml.safe_dump(document))]) == 0
    assert capsys.readouterr().err == ""


def test_without_the_library_for_rules_it_is_said_that_they_were_not_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cached in (admission._compiled, admission._environment):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    assert main(["estimate", "-f", str(EXAMPLE)]) == 0
    assert "the rules between fields were not looked at, only the API server will" in capsys.readouterr().err


def test_a_misspelt_field_is_refused_as_kubectl_apply_refuses_it_but_not_of_what_a_cluster_admitted(
    capsys: pytest.CaptureFixture[str], written: Callable[[str | bytes], str]
) -> None:
    """A newer version's object has fields that this one does not know. Of a file that passes here nothing may be refused there."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["data"]["maxSample"] = 7
    document["spec"]["placement"]["volumes"][0]["mountpath"] = "/models"
    file = written(yaml.safe_dump(document))
    code, line = refusal(capsys, "estimate", "-f", file)
    assert code == 1
    assert "there is no field spec.data.maxSample; there is no field spec.placement.volumes.mountpath" in line
    document["metadata"]["uid"] = "1"
    assert main(["estimate", "-f", written(yaml.safe_dump(document))]) == 0
    said = capsys.readouterr()
    assert [line.partition("there is no field ")[2] for line in said.err.splitlines()] == [
        "spec.data.maxSample; it is ignored",
        "spec.placement.volumes.mountpath; it is ignored",
    ]
    assert main(["estimate", "-f", str(EXAMPLE)]) == 0
    assert capsys.readouterr() == (said.out, "")


@pytest.mark.parametrize("command", ["estimate", "render"])
def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        code, line = refusal(capsys, command, "-f", str(path))
        assert code == 1
        assert line.startswith(f"kubectl eagle3: {path} cannot be read")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hidden_size": "wide"}', "\x00", '{"text_config": 3}'])
@pytest.mark.parametrize("command", ["estimate", "render"])
def test_what_is_no_configuration_of_a_target_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, content: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(content)
    code, line = refusal(capsys, command, "-f", str(EXAMPLE), "--target-config", str(config))
    assert code == 1
    assert line.startswith(f"kubectl eagle3: {config} is not a config.json of a model")


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_that_is_no_draft_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    code, line = refusal(capsys, "check", str(tmp_path))
    assert code == 11
    assert str(tmp_path) in line
    code, line = refusal(capsys, "check", str(tmp_path / "missing"))
    assert (code, str(tmp_path / "missing") in line) == (11, True)


WHOLE = serving_draft().obj
STORED = {"kind": "Eagle3Draft", **json.loads(json.dumps(WHOLE.to_json()))}
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.just([]), st.just({})
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """An object with its status, a few of whose fields have become something else or are gone."""
    whole = copy.deepcopy(STORED)
    for _ in range(draw(st.integers(1, 3))):
        at: Any = whole
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            inner = at[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 4)) == 0:
                at[key] = draw(ODD)
                break
            at = inner
    return whole


def told(words: list[str], stdin: str) -> tuple[int, str]:
    """The exit code of the plugin and what it said of what it could not do."""
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(stdin))
        patch.setattr("sys.stdout", io.StringIO())
        patch.setattr("sys.stderr", errors)
        return main(words), errors.getvalue()


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_a_damaged_object_is_told_or_refused_in_one_line(document: dict[str, Any]) -> None:
    for words in (["estimate", "-f", "-"], ["render", "-f", "-", "--all"]):
        code, said = told(words, yaml.safe_dump(document))
        assert (code, len(said.splitlines())) in ((0, 0), (1, 1)), said


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for command in ("estimate", "render"):
        code, said = told([command, "-f", "-"], text)
        assert (code, len(said.splitlines())) == (1, 1), said


def test_the_plugin_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("status", "estimate", "check", "render"))
