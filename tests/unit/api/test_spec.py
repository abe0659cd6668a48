"""The object as users write it: defaults, durations, placements."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3_api import crd
from eagle3_api.spec import Bucket, Eagle3DraftSpec, Placement, Speculative, seconds
from tiny.flags import AUXILIARY_LAYERS, SERVE_ARGUMENTS

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> dict[str, Any]:
    """The spec of one of the examples."""
    spec: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]
    return spec


def defaulted(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server stores: the schema's defaults filled in wherever a field is absent."""
    if isinstance(value, dict) and "properties" in schema:
        filled = {name: below["default"] for name, below in schema["properties"].items() if "default" in below} | value
        return {name: defaulted(below, schema["properties"].get(name, {})) for name, below in filled.items()}
    if isinstance(value, list):
        return [defaulted(item, schema.get("items", {})) for item in value]
    return value


def spec_schema() -> dict[str, Any]:
    (version,) = crd.definition()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


@pytest.mark.parametrize(
    ("prefix", "fits"),
    [
        *((prefix, True) for prefix in ("", "/", "/team", "/team/", "/team-a/2026.11/.hidden", "/a_b/..c")),
        *((prefix, False) for prefix in ("//", "/a//b", "/a/../b", "/./a", "/..", "/a b", "/a?b", "/a%2f")),
    ],
)
def test_a_prefix_of_a_bucket_is_one_that_an_object_s_name_can_have(prefix: str, fits: bool) -> None:
    """A step to a folder above is refused at admission: what speaks to stores takes none, hours later."""
    url = spec_schema()["properties"]["publish"]["properties"]["objectStore"]["properties"]["url"]
    (rule,) = url["x-kubernetes-validations"]
    asked = re.fullmatch(r"self\.matches\(r'(.*)'\)", rule["rule"])
    assert asked is not None
    assert (re.search(asked[1], f"s3://features{prefix}") is not None) is fits


def test_a_bucket_that_was_stored_when_less_was_asked_of_its_prefix_is_still_read() -> None:
    assert Bucket(url="s3://features/a//b/../c").url == "s3://features/a//b/../c"
    with pytest.raises(ValidationError):
        Bucket(url="https://features")


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_the_api_server_fills_in_the_same_defaults_as_the_models(name: str) -> None:
    written = example(name)
    stored = defaulted(written, spec_schema())
    assert stored != written
    assert Eagle3DraftSpec.model_validate(stored) == Eagle3DraftSpec.model_validate(written)


def test_the_example_for_a_cpu_passes_the_flags_that_the_tests_serve_with() -> None:
    spec = Eagle3DraftSpec.model_validate(example("tiny-cpu"))
    assert spec.serve is not None
    assert tuple(spec.serve.arguments or ()) == SERVE_ARGUMENTS
    assert tuple(spec.draft.auxiliary_layers or ()) == AUXILIARY_LAYERS


def test_a_stored_object_reads_back_as_what_was_written() -> None:
    spec = Eagle3DraftSpec.model_validate(example("train-only"))
    assert Eagle3DraftSpec.model_validate(spec.to_json()) == spec


def test_a_field_that_a_newer_version_wrote_is_ignored() -> None:
    spec = Eagle3DraftSpec.model_validate(example("minimal") | {"fieldOfNextYear": {"x": 1}})
    assert spec == Eagle3DraftSpec.model_validate(example("minimal"))


def test_the_default_way_of_speculating_is_a_chain_that_sglang_takes_as_it_is() -> None:
    speculative = Speculative()
    assert speculative.top_k == 1
    assert speculative.num_draft_tokens == speculative.num_steps + 1


def test_objects_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Speculative().num_steps = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "expected"), [("0s", 0), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2h5s", 7205), ("1h1m1s", 3661)]
)
def test_durations_are_read_as_hours_minutes_and_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_every_duration_that_can_be_written_is_read(hours: int, minutes: int, rest: int) -> None:
    assert seconds(f"{hours}h{minutes}m{rest}s") == hours * 3600 + minutes * 60 + rest


@pytest.mark.parametrize("text", ["", "5", "m", "1.5h", "5m1h", "1d", "-5m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    spec = example("minimal")
    spec["serve"] = {"bakeTime": text}
    with pytest.raises(ValidationError, match="bakeTime"):
        Eagle3DraftSpec.model_validate(spec)


@pytest.mark.parametrize("field", ["stallTimeout", "checkpointInterval"])
def test_a_time_limit_of_zero_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Eagle3DraftSpec.model_validate(example("minimal") | {"train": {field: "0s"}})


def test_a_stage_placement_replaces_whole_fields_of_the_general_one() -> None:
    base = Placement.model_validate({"nodeSelector": {"a": "1", "b": "2"}, "shmSize": "1Gi", "runAsUser": 1000})
    top = Placement.model_validate({"nodeSelector": {"c": "3"}, "memory": "8Gi"})
    assert top.over(base).to_json() == {
        "nodeSelector": {"c": "3"},
        "shmSize": "1Gi",
        "runAsUser": 1000,
        "memory": "8Gi",
    }
    assert Placement().over(base) == base


def test_a_gpu_resource_of_mig_can_be_named() -> None:
    placement = Placement.model_validate({"gpuResource": "nvidia.com/mig-3g.71gb"})
    assert placement.gpu_resource == "nvidia.com/mig-3g.71gb"


@pytest.mark.parametrize("field", ["privileged", "hostNetwork", "hostPID", "securityContext", "hostPath"])
def test_a_placement_has_no_word_for_privileges(field: str) -> None:
    assert field not in spec_schema()["properties"]["placement"]["properties"]
    assert Placement.model_validate({field: True}).to_json() == {}
