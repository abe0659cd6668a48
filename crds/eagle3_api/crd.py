"""The CustomResourceDefinition, generated from the models.

``python -m eagle3_api.crd`` prints it; the chart holds a copy (``make crd``), and a test compares the two. Kubernetes
wants a *structural* schema: no references, one type per field, no null. Pydantic's JSON schema is turned into that here.
"""

import json
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import eagle3_api
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_api.status import Eagle3DraftStatus

Json = dict[str, Any]

#: JSON schema keywords that a structural schema keeps as they are.
_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "minimum",
    "maximum",
    "multipleOf",
    "default",
    "required",
)

#: Bounds for what has none, so that the cost of the CEL rules can be estimated.
_MAX_LENGTH = 4096

_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Revision", "string", ".status.revision", 0),
    ("Accept", "string", ".status.accept", 0),
    ("Speedup", "string", ".status.speedup", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Target", "string", ".spec.target.model", 1),
    ("Progress", "string", ".status.progress", 1),
    ("Draft", "string", ".status.draft", 1),
    ("Baseline", "string", ".status.baseline", 1),
)

#: Bounded like the API server bounds it, so that the cost of the rules below can be estimated.
_METADATA = {
    "type": "object",
    "properties": {field: {"type": "string", "maxLength": 253} for field in ("name", "generateName")},
}


def _kept(root: str, *ahead: str) -> str:
    """CEL: a root of ``storage`` is as it was, or nothing was begun that could lie there.

    A claim that the operator makes is there from the beginning, so its size stays what it was.

    Args:
        root: of ``storage``.
        ahead: the stages that write nothing there.
    """
    new, old = f"self.spec.storage.{root}", f"oldSelf.spec.storage.{root}"
    only_ahead = " || ".join(f"stage.name == '{stage}'" for stage in ahead)
    begun = f"has(self.status) && has(self.status.stages) && !self.status.stages.all(stage, {only_ahead})"
    return f"{new} == {old} || !has({old}.size) && !({begun})"


# Of a bucket, how it is reached may change: a Secret is misspelt or rotated, a cache too small
_STORAGE_RULE = {
    "rule": (
        "(has(self.spec.storage.features.objectStore) && has(oldSelf.spec.storage.features.objectStore) && "
        "self.spec.storage.features.objectStore.url == oldSelf.spec.storage.features.objectStore.url || "
        f"{_kept('features', 'fetch', 'inspect')}) && ({_kept('drafts', 'fetch', 'inspect')}) && "
        f"(!has(oldSelf.spec.storage.models) || has(self.spec.storage.models) && ({_kept('models', 'inspect')}))"
    ),
    "message": "spec.storage cannot be changed: finished artifacts lie there. Make a new object, or copy the claim",
}

_NAME_RULES = [
    {
        "rule": "self.metadata.name.size() <= 40",
        "message": "metadata.name: at most 40 characters, because the names of Jobs and Services are made from it",
    },
    {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": "metadata.name: a Service is named after it, so it must begin with a letter and hold only lower-case "
        "letters, digits and '-'",
    },
    {
        "rule": "!self.metadata.name.matches('-r[0-9]+$')",
        "message": "metadata.name: must not end in -r<digits>; that is how revisions are named",
    },
]


def structural(schema: Json, definitions: Json, *, of_status: bool = False) -> Json:
    """A structural schema from a piece of pydantic's JSON schema.

    The status has neither defaults nor enumerations nor bounds on text: what an operator that is newer than the
    definition, or wordier than expected, wants to report must never be refused.
    """
    if "anyOf" in schema:  # optional: absent instead of null
        (inner,) = (option for option in schema["anyOf"] if option.get("type") != "null")
        schema = inner | {key: value for key, value in schema.items() if key != "anyOf"}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
    left_out = ("default", "enum", "pattern", "maxLength") if of_status else ()
    made: Json = {key: schema[key] for key in _KEPT if schema.get(key) is not None and key not in left_out}
    made |= {key: value for key, value in schema.items() if key.startswith("x-kubernetes-")}
    for bound, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in schema:
            made |= {inclusive: schema[bound], bound: True}
    if "description" in made:
        made["description"] = " ".join(made["description"].split()) + _default(made.get("default"))
    if made.get("type") == "string" and "enum" not in made and not of_status:
        made.setdefault("maxLength", _MAX_LENGTH)
    if "properties" in schema:
        made["properties"] = {
            name: structural(value, definitions, of_status=of_status) for name, value in schema["properties"].items()
        }
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            made[below] = structural(schema[below], definitions, of_status=of_status)
    return made


def _default(value: object) -> str:
    """The default as a sentence, because ``kubectl explain`` shows none; nothing for a section, whose fields say it."""
    if value is None or isinstance(value, dict | list):
        return ""
    return f" Default {value if isinstance(value, str) else json.dumps(value)}."


@cache
def schema_of(model: type[Eagle3DraftSpec] | type[Eagle3DraftStatus]) -> Mapping[str, Any]:
    """The structural schema of a section. It is the same object each time, as it takes a while to make."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return structural(schema, schema.get("$defs", {}), of_status=model is Eagle3DraftStatus)


def definition() -> Json:
    """The whole CustomResourceDefinition, as a plain object."""
    group = eagle3_api.GROUP
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{eagle3_api.PLURAL}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": eagle3_api.KIND,
                "listKind": f"{eagle3_api.KIND}List",
                "plural": eagle3_api.PLURAL,
                "singular": eagle3_api.KIND.lower(),
                "shortNames": ["e3d"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": eagle3_api.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.serve.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "priority": priority}
                        for name, kind, path, priority in _COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A target model, the data, the node and the bar: the operator trains an "
                            "EAGLE-3 draft, proves it on the real server and keeps it only while it helps.",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": _METADATA,
                                "spec": schema_of(Eagle3DraftSpec),
                                "status": schema_of(Eagle3DraftStatus),
                            },
                            "x-kubernetes-validations": [*_NAME_RULES, _STORAGE_RULE],
                        }
                    },
                }
            ],
        },
    }


def text() -> str:
    """The definition as YAML, as the chart's file holds it."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Repeats what occurs twice, instead of an anchor and a reference."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    made: str = yaml.dump(definition(), Dumper=Plain, sort_keys=False, width=120, allow_unicode=True)
    return made


if __name__ == "__main__":
    sys.stdout.write(text())
