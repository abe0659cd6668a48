"""``placement.affinity``: which nodes pods want, and which other pods they want near or far. As in a pod, but bounded."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.schema import rule, rules
from eagle3_api.spec.strings import Label, Name

LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
Values = Annotated[list[Label], Field(min_length=1, max_length=64)]
Weight = Annotated[int, Field(ge=1, le=100)]

_VALUES = rule(
    "(self.operator in ['Exists', 'DoesNotExist']) != has(self.values)",
    "affinity: Exists and DoesNotExist take no values, the other operators need them",
)
_NUMBER = rule(
    "!(self.operator in ['Gt', 'Lt']) || (has(self.values) && self.values.size() == 1)",
    "affinity: Gt and Lt take one value, a whole number",
)


class NodeRequirement(Model):
    """What a label of a node must be."""

    model_config = rules(_VALUES, _NUMBER)

    key: LabelKey = Field(description="The label, such as nvidia.com/gpu.product.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How its value is compared with values."
    )
    values: Values | None = Field(None, description="The values, verbatim; for Gt and Lt one whole number.")


class NodeTerm(Model):
    """Requirements that must all hold."""

    match_expressions: list[NodeRequirement] | None = Field(
        None, max_length=16, description="Requirements on the node's labels."
    )
    match_fields: list[NodeRequirement] | None = Field(
        None, max_length=4, description="Requirements on the node's fields: metadata.name."
    )


class NodeTerms(Model):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeTerm] = Field(min_length=1, max_length=8, description="One of them must hold.")


class PreferredNodes(Model):
    """Nodes that are better than others."""

    weight: Weight = Field(description="Weight of this preference.")
    preference: NodeTerm


class NodeAffinity(Model):
    """Nodes by their labels; nodeSelector is the short form."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodes] | None = Field(
        None, max_length=8, description="Better nodes, where there are any."
    )


class LabelRequirement(Model):
    """What a label of a pod or a namespace must be."""

    model_config = rules(_VALUES)

    key: LabelKey = Field(description="The label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="How its value is compared with values."
    )
    values: Values | None = Field(None, description="The values, verbatim.")


class LabelSelector(Model):
    """Pods or namespaces by their labels; an empty one selects all."""

    match_labels: dict[str, Label] | None = Field(
        None, description="Labels that must have these values.", json_schema_extra={"maxProperties": 16}
    )
    match_expressions: list[LabelRequirement] | None = Field(
        None, max_length=8, description="Requirements that must all hold."
    )


class PodTerm(Model):
    """Other pods, and how near counts as the same place."""

    label_selector: LabelSelector
    topology_key: LabelKey = Field(description="Nodes with the same value of this label are one place.")
    namespaces: list[Name] | None = Field(
        None, max_length=16, description="Namespaces of the other pods. Default the object's own."
    )
    namespace_selector: LabelSelector | None = None


class PreferredPods(Model):
    """Other pods whose place is better, or worse, than others."""

    weight: Weight = Field(description="Weight of this preference.")
    pod_affinity_term: PodTerm


class PodAffinity(Model):
    """Other pods by their labels. eagle3.dev/name, /stage and /revision tell those of the operator."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] | None = Field(
        None, max_length=8, description="All of them must hold."
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredPods] | None = Field(
        None, max_length=8, description="The more of them hold, the better."
    )


class Affinity(Model):
    """Where the scheduler puts a pod. Its words are the pod's own (``kubectl explain pod.spec.affinity``)."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None
