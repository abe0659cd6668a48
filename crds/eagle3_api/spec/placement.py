"""``placement``: where pods run and with what."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.affinity import Affinity
from eagle3_api.spec.schema import BY_NAME, Says, rule, rules
from eagle3_api.spec.strings import Label, LabelValue, MountPath, Name, Quantity, Text

Resource = Annotated[
    str,
    StringConstraints(pattern=r"^[-a-z0-9.]+/[-a-zA-Z0-9._]+$", max_length=253),
    Says("what nodes offer, as kubectl describe nodes lists it: nvidia.com/gpu"),
]

#: Of a stage's ``placement``.
STAGE_PLACEMENT = "For these pods only: a field that is set here replaces the one of spec.placement."


class SecretKey(Model):
    """A key of a Secret; the kubelet reads it, the operator never does."""

    name: Name = Field(description="The Secret's name.")
    key: Text = Field(description="The key whose value is taken.")


class EnvironmentVariable(Model):
    """An environment variable of the pod's main container: a value, or a key of a Secret."""

    model_config = rules(
        rule("has(self.value) != has(self.secretKeyRef)", "give either value or secretKeyRef"),
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] = Field(
        description="The variable's name."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(None, description="Its value, verbatim.")
    secret_key_ref: SecretKey | None = Field(None, description="A key of a Secret in the object's namespace.")


class Toleration(Model):
    """A taint that the pod tolerates, as in a pod's own ``tolerations``."""

    key: Label | None = Field(None, description="The taint's key; without one, operator Exists tolerates every taint.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Equal compares the value, Exists does not.")
    value: Label | None = Field(None, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect; if not set, every effect."
    )


class ClaimSource(Model):
    """A PersistentVolumeClaim of the object's namespace."""

    claim_name: Name = Field(description="The claim's name.")
    read_only: bool = Field(False, description="Mount it read-only, as the target's and the data's should be.")


class Volume(Model):
    """A claim mounted at the same path in every pod, so that a path in the object means the same file everywhere."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=50)] = Field(
        description="The volume's name in the pods."
    )
    mount_path: MountPath = Field(description="Where the pods see it; target.model and the other paths begin with it.")
    sub_path: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        None, description="A folder of the claim to mount instead of its root."
    )
    persistent_volume_claim: ClaimSource


class Placement(Model):
    """Where pods run and with what. A typed allow-list: it cannot say hostPath or privileged."""

    model_config = rules(
        rule(
            "!has(self.volumes) || self.volumes.all(v, !(v.mountPath + '/').startsWith('/eagle3/'))",
            "mountPath: /eagle3 is where the operator mounts its own volumes; choose another path",
        ),
        rule(
            "!has(self.volumes) || self.volumes.all(v, !(v.mountPath in ['/tmp', '/dev/shm']) && !v.name.startsWith('eagle3-'))",
            "volumes: /tmp, /dev/shm and names that begin with eagle3- are the operator's own; choose others",
        ),
        rule(
            "!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.mountPath == v.mountPath))",
            "volumes: two of them have the same mountPath",
        ),
        rule(
            "!has(self.labels) || self.labels.all(k, !k.startsWith('eagle3.dev/') && "
            "!(k in ['app.kubernetes.io/managed-by', 'kueue.x-k8s.io/queue-name']))",
            "labels: those of eagle3.dev and app.kubernetes.io/managed-by are the operator's own, and kueue.x-k8s.io/queue-name is what "
            "queueName is for; choose others",
        ),
        rule(
            "!has(self.annotations) || self.annotations.all(k, !k.startsWith('eagle3.dev/'))",
            "annotations: those of eagle3.dev are the operator's own; choose others",
        ),
    )

    labels: dict[str, LabelValue] | None = Field(
        None,
        description="Further labels of the pods, for whoever counts, admits or joins them to a mesh by these.",
        json_schema_extra={"maxProperties": 32},
    )
    annotations: dict[str, Annotated[str, StringConstraints(max_length=4096)]] | None = Field(
        None,
        description="Further annotations of the pods (linkerd.io/inject: disabled).",
        json_schema_extra={"maxProperties": 32},
    )

    node_selector: dict[str, Label] | None = Field(
        None,
        description="Labels that the node must carry, verbatim (nvidia.com/gpu.product: NVIDIA-H200).",
        json_schema_extra={"maxProperties": 32},
    )
    tolerations: list[Toleration] | None = Field(
        None, max_length=32, description="Taints that the pods tolerate; GPU nodes often carry nvidia.com/gpu."
    )
    affinity: Affinity | None = Field(
        None, description="Nodes, and other pods to be near to or far from, where labels of one node are not enough."
    )
    volumes: list[Volume] | None = Field(
        None,
        max_length=16,
        description="The claims that hold the target, the data and adopted checkpoints.",
        json_schema_extra=BY_NAME,
    )
    env: list[EnvironmentVariable] | None = Field(
        None, max_length=64, description="Environment variables of the main container.", json_schema_extra=BY_NAME
    )
    cpu: Quantity | None = Field(
        None, description="CPU request of servers, extraction and training; the small Jobs take little and ignore it."
    )
    memory: Quantity | None = Field(
        None,
        description="Memory request and limit of servers, extraction and training; the small Jobs take little and ignore it.",
    )
    gpu_resource: Resource | None = Field(
        None, description="The name of the GPU resource (default nvidia.com/gpu); MIG's mixed strategy has others."
    )
    shm_size: Quantity | None = Field(
        None, description="Size of /dev/shm, a memory volume that counts against memory. Default 8Gi."
    )
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        None,
        description="Seconds that a pod has to end: a server drains its requests (default 60), a trainer writes a checkpoint.",
    )
    priority_class_name: Name | None = Field(None, description="A PriorityClass of the cluster.")
    runtime_class_name: Name | None = Field(None, description="A RuntimeClass of the cluster (nvidia, on some).")
    run_as_user: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="User that the containers run as. Default what the chart's pods.user says: 65532."
    )
    run_as_group: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="Group that the containers run as. Default what the chart's pods.user says: 65532."
    )
    fs_group: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None,
        description="Group that owns the volumes, where their driver can do that. Default what the chart's pods.user says: 65532.",
    )
    supplemental_groups: list[Annotated[int, Field(ge=1, le=2147483647)]] | None = Field(
        None, max_length=16, description="Further groups, for volumes whose files belong to one."
    )
    service_account_name: Name | None = Field(
        None,
        description="A service account that the chart's values allow (allowedServiceAccounts), for what the cluster "
        "grants to it, such as access to a cloud's storage. Its token is not mounted.",
    )
    image_pull_secrets: list[Name] | None = Field(
        None, max_length=8, description="Secrets of the namespace that the kubelet pulls images with."
    )

    def over(self, base: "Placement") -> "Placement":
        """This placement on top of a more general one: a field that is set here wins as a whole."""
        return Placement.model_validate(base.to_json() | self.to_json())
