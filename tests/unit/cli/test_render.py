"""``kubectl eagle3 render``: the flags a person would otherwise have to know by heart, each with its reason."""

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from eagle3_operator.cli.main import main
from unit.decide.world import World, serving_draft
from unit.samples import converted, measured

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


Given = Callable[[World], None]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Puts an object on standard input, as ``kubectl get -o yaml`` tells it."""

    def put(world: World) -> None:
        obj = world.obj
        document = {
            "apiVersion": "eagle3.dev/v1alpha1",
            "kind": "Eagle3Draft",
            "metadata": obj.metadata.to_json(),
            "spec": obj.spec.to_json(),
            "status": obj.status,
        }
        monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(document)))

    return put


def second_draft() -> World:
    """r2 serves a newer draft than r1."""
    world = serving_draft().edit(train={"epochs": 9}).settle().finish("inspect").finish("extract").finish("train")
    return world.finish("convert", converted("e" * 64)).ready(2).finish("probe", measured(accept=2.8, speed=130.0))


def test_an_object_from_the_cluster_needs_no_configuration(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    given(world := serving_draft())
    said = rendered(capsys, "-f", "-")
    assert f"--speculative-draft-model-path {world.obj.status['artifact']['folder']}" in said


def test_the_newest_revision_is_told_under_its_own_number(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    given(world := second_draft())
    said = rendered(capsys, "-f", "-")
    assert '"eagle3_revision":"r2"' in said
    assert f"--speculative-draft-model-path {world.told.revisions[2].artifact}" in said


def test_any_revision_can_be_asked_for(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    given(world := second_draft())
    said = rendered(capsys, "-f", "-", "-r", "r1")
    assert '"eagle3_revision":"r1"' in said
    assert f"--speculative-draft-model-path {world.told.revisions[1].artifact}" in said
    given(world)
    assert "--speculative" not in rendered(capsys, "-f", "-", "--revision", "0")


def test_what_a_server_runs_is_what_is_rendered(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    world = second_draft()
    deployments = [made for made in world.applied if made["kind"] == "Deployment"]
    assert len(deployments) == 3
    for number, deployment in enumerate(deployments):
        given(world)
        said = rendered(capsys, "-f", "-", "-r", str(number))
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert shlex.split(said.replace("\\\n", "")) == container["command"]


def test_all_revisions_stand_one_after_the_other(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    given(second_draft().edit(serve={"maxRunningRequests": 7}))
    former, *others = [part.splitlines() for part in rendered(capsys, "-f", "-", "--all").split("\n\n")]
    assert [lines[0].split(":")[0].split(",")[0] for lines in (former, *others)] == [
        "# r0",
        "# r1",
        "# r2",
        "# r3",
        "# r4",
    ]
    assert former[0] == "# r0, without a draft: Proven"
    assert former[1].startswith("# r0 was made when the object said something else")
    assert others[2][0] == "# r3, without a draft: not made yet"
    assert "  --max-running-requests 7 \\" in others[2]
    assert others[3][0].startswith("# r4, /eagle3/drafts/llm/kimi/convert/")


def test_a_revision_of_a_former_spec_is_not_told_wrongly(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    given(second_draft().edit(serve={"maxRunningRequests": 7}))
    assert main(["render", "-f", "-", "-r", "r1"]) == 1
    assert "kubectl get deployment -n llm kimi-r1" in capsys.readouterr().err


def test_a_revision_that_is_not_there_is_told_which_are(capsys: pytest.CaptureFixture[str], given: Given) -> None:
    given(serving_draft())
    assert main(["render", "-f", "-", "-r", "r7"]) == 1
    assert "no revision r7; it has, or is about to have, r0, r1" in capsys.readouterr().err


def test_before_anything_is_applied_both_revisions_can_be_told(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    file = ("-f", str(EXAMPLES / "kimi-k25.yaml"), "--target-config", str(config))
    plain, draft = rendered(capsys, *file, "--all", "--explain").split("\n\n")
    assert plain.startswith("# r0, without a draft: not made yet\nFLAG")
    assert draft.startswith("# r1, /eagle3/drafts/<namespace>/<name>/convert/<key>: not made yet\nFLAG")


def test_without_the_targets_configuration_the_user_is_told_two_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", str(EXAMPLES / "kimi-k25.yaml")]) == 1
    said = capsys.readouterr().err
    assert "--target-config" in said
    assert "kubectl get e3d NAME -o yaml" in said
