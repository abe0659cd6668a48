"""Objects in YAML files, as a user hands them to a command."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from eagle3_api import KIND
from eagle3_api.base import Model
from eagle3_api.checkpoints.target import language_config
from eagle3_api.crd import schema_of
from eagle3_api.spec import Eagle3DraftSpec, Metadata
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.cli.admission import NoCelError, refused
from eagle3_operator.cli.usage import UsageError

_M = TypeVar("_M", bound=Model)


def read_document(file: str) -> dict[str, Any]:
    """The one object of a file, as it stands there.

    Args:
        file: its path; ``-`` is standard input.

    Raises:
        UsageError: the file cannot be read, or holds another number of objects.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        documents = [document for document in yaml.safe_load_all(text) if document]
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    found: list[dict[str, Any]] = [one for document in documents for one in _listed(document) if _is_ours(one)]
    if len(found) != 1:
        raise UsageError(f"{file} holds {len(found)} Eagle3Drafts, not one")
    return found[0]


def spec_of(document: dict[str, Any], file: str) -> Eagle3DraftSpec:
    """Its spec; UsageError names the first field that is wrong, or tells the rules that the API server would refuse it by.

    So does a field that there is not: kubectl asks the API server to refuse it. What was read from a cluster was admitted, by whatever
    rules and fields there were then.
    """
    schema = schema_of(Eagle3DraftSpec)
    spec = _section(Eagle3DraftSpec, document.get("spec"), f"{file}: spec", schema)
    metadata = metadata_of(document, file)
    unknown = [f"there is no field {path}" for path in unknown_fields(schema, document["spec"], "spec")]
    if metadata.uid:
        for one in unknown:
            sys.stderr.write(f"kubectl eagle3: {file}: {one}; it is ignored\n")
        return spec
    if unknown:
        raise UsageError(f"{file}: {'; '.join(unknown)}")
    _admit(metadata.name, spec, file)
    return spec


def _admit(name: str, spec: Eagle3DraftSpec, file: str) -> None:
    try:
        told = [f"{path}: {message}" if path else message for path, message in refused(name, spec.to_json())]
    except NoCelError:
        sys.stderr.write(
            f"kubectl eagle3: {file}: the rules between fields were not looked at, only the API server will: that needs the "
            "package cel-expr-python (the extra cel)\n"
        )
        return
    if told:
        raise UsageError(f"{file}: {'; '.join(told)}")


def unknown_fields(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    """The dotted paths of what stands in a YAML value and is no field of its structural schema."""
    if isinstance(value, list) and "items" in schema:
        for one in value:
            yield from unknown_fields(schema["items"], one, path)
    elif isinstance(value, dict) and schema["type"] == "object":
        for name, one in value.items():
            inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if not isinstance(inner, dict):
                yield f"{path}.{name}"
            else:
                yield from unknown_fields(inner, one, f"{path}.{name}")


def metadata_of(document: dict[str, Any], file: str) -> Metadata:
    """Its metadata, with a name and a namespace where it has none yet; UsageError names the first field that is wrong."""
    given = document.get("metadata") or {}
    known = {"name": "unnamed", "namespace": "default", "uid": ""}
    return _section(Metadata, known | given if isinstance(given, dict) else given, f"{file}: metadata")


def status_of(document: dict[str, Any], file: str) -> Eagle3DraftStatus:
    """Its status, empty if it has none; UsageError names the first field that is wrong, as of an object of another version."""
    return _section(Eagle3DraftStatus, document.get("status") or {}, f"{file}: status")


def first_fault(error: ValidationError) -> tuple[tuple[str, ...], str, str]:
    """The path of the first field that is wrong, what is wrong with it, and pydantic's name for that."""
    first = error.errors(include_url=False, include_input=False)[0]
    return tuple(map(str, first["loc"])), first["msg"], first["type"]


def _section(kind: type[_M], section: Any, where: str, schema: Mapping[str, Any] | None = None) -> _M:
    try:
        return kind.model_validate(section)
    except ValidationError as error:
        path, said, kind_of_fault = first_fault(error)
        if schema is not None and kind_of_fault == "string_pattern_mismatch":
            said = _in_words(schema, path) or said
        raise UsageError(f"{'.'.join((where, *path))}: {said}") from None


def _in_words(schema: Mapping[str, Any], path: Sequence[str]) -> str | None:
    """What the API server says of a text in the wrong form, where the schema has words for that."""
    at: Any = schema
    for name in path:
        at = at.get("properties", {}).get(name) or at.get("items") or at.get("additionalProperties") or {}
    return next((rule["message"] for rule in at.get("x-kubernetes-validations") or ()), None)


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's config.json: as it stands, and with the section of its language model, if it has one, on top.

    Raises:
        FileNotFoundError: it is not there.
        UsageError: it is no configuration.
    """
    try:
        values = json.loads(path.read_bytes())
        return values, language_config(values)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise no_config(path, error) from None


def no_config(path: Path, error: Exception) -> UsageError:
    """What is wrong with a configuration that lacks something, or is none at all."""
    return UsageError(f"{path} is not a config.json of a model ({type(error).__name__}: {error})")


def _listed(document: Any) -> list[Any]:
    """The objects in a document: kubectl get without a name, or with several, tells a list of them."""
    items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
    return items if isinstance(items, list) else [document]


def _is_ours(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == KIND
