"""The CustomResourceDefinition that is generated from the models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_api import crd

CHART_FILE = Path(__file__).parents[3] / "helm" / "eagle3-operator" / "files" / "crd.yaml"


def schema_of(part: str) -> dict[str, Any]:
    (version,) = crd.definition()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return schema


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below this one, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def test_the_chart_holds_the_definition_that_the_models_generate() -> None:
    assert CHART_FILE.read_text() == crd.text(), "run `make crd`"


def test_the_text_is_the_definition() -> None:
    assert yaml.safe_load(crd.text()) == crd.definition()


def test_every_field_of_the_spec_is_described() -> None:
    bare = [
        path
        for path, schema in nodes(schema_of("spec"), "spec")
        if "[]" not in path[-2:] and "description" not in schema
    ]
    assert bare == []


def test_descriptions_of_fields_say_their_defaults() -> None:
    for path, schema in nodes(schema_of("spec"), "spec"):
        if "default" in schema and not isinstance(schema["default"], dict):
            default = schema["default"]
            words = default if isinstance(default, str) else yaml.safe_dump(default).split("\n")[0]
            assert f"Default {words}." in schema["description"], path


@pytest.mark.parametrize("part", ["spec", "status"])
def test_the_schema_is_structural(part: str) -> None:
    for path, schema in nodes(schema_of(part), part):
        assert "type" in schema or schema.get("x-kubernetes-preserve-unknown-fields"), path
        assert not schema.keys() & {"$ref", "anyOf", "oneOf", "allOf", "const", "title", "nullable"}, path
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_everything_that_a_user_writes_is_bounded() -> None:
    for path, schema in nodes(schema_of("spec"), "spec"):
        if schema["type"] == "string" and "enum" not in schema:
            assert schema["maxLength"] <= 4096, path
        if schema["type"] == "array":
            assert schema["maxItems"] <= 64, path
        if "additionalProperties" in schema:
            assert schema["maxProperties"] <= 32, path
        if schema["type"] in ("integer", "number"):
            assert {"minimum", "maximum"} <= schema.keys(), path


def test_no_schema_refuses_what_a_newer_operator_reports() -> None:
    for path, schema in nodes(schema_of("status"), "status"):
        assert not schema.keys() & {"enum", "default", "pattern", "maxLength"}, path


def test_conditions_merge_by_type() -> None:
    conditions = schema_of("status")["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_a_glance_shows_phase_readiness_why_and_what_it_brought() -> None:
    (version,) = crd.definition()["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    first = [column["name"] for column in columns if column["priority"] == 0]
    wide = [column["name"] for column in columns if column["priority"] == 1]
    assert first == ["Phase", "Ready", "Reason", "Revision", "Accept", "Speedup", "Age"]
    assert wide == ["Target", "Progress", "Draft", "Baseline"]
