"""What every pod of the operator has in common: how it is placed, what it mounts, what it may do.

A pod is made of a ``Placement``, which the user wrote, and of a ``Program``, which says what its main container runs.
Everything else is the same for all of them: no root, no capabilities, no token of the API server, a home and a ``/tmp``
that vanish with the pod.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, MODELS_ROOT
from eagle3_api.jobs import CONFIG_ANNOTATION, CONFIG_FILE, LIBRARY
from eagle3_api.spec import Eagle3Draft, EnvironmentVariable, Placement, Volume
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests.names import RootName, claim_name
from eagle3_operator.settings import Settings

GPU = "nvidia.com/gpu"

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

HOME = "/eagle3/home"
SHARED_MEMORY = "/dev/shm"  # noqa: S108

#: Enough for NCCL, and for the states that an extraction hands over; no more than a pod's memory is ever taken of it.
SHARED_MEMORY_SIZE = "8Gi"


# ------------------------------------------------------------------------------------------------------------- mounts


@dataclass(frozen=True)
class Mount:
    """A volume where the main container sees it."""

    name: str
    path: str
    #: The pod's volume source, such as ``{"emptyDir": {}}``.
    source: Mapping[str, Any]
    read_only: bool = False
    sub_path: str | None = None

    @property
    def claim(self) -> str | None:
        """The claim behind it, if it is one."""
        source = self.source.get("persistentVolumeClaim")
        return source["claimName"] if source else None


def root_mount(obj: Eagle3Draft, root: RootName, *, read_only: bool = False) -> Mount:
    """One of the roots of artifacts; where features lie in an object store, a cache of them."""
    path = {"features": FEATURES_ROOT, "drafts": DRAFTS_ROOT, "models": MODELS_ROOT}[root]
    store = obj.spec.storage.features.object_store
    if root == "features" and store is not None:
        return Mount("eagle3-features", str(path), {"emptyDir": {"sizeLimit": store.cache}})
    source = {"persistentVolumeClaim": {"claimName": claim_name(obj, root)}}
    return Mount(f"eagle3-{root}", str(path), source, read_only)


def user_mounts(placement: Placement, *, read_only: bool = False) -> tuple[Mount, ...]:
    """The user's volumes; all of them read-only for a program that only looks."""
    return tuple(_user_mount(volume, read_only) for volume in placement.volumes or ())


def shared_memory(placement: Placement) -> Mount:
    """The shared memory through which NCCL and data loaders talk; a container's own has 64 MiB."""
    size = placement.shm_size or SHARED_MEMORY_SIZE
    return Mount("eagle3-shm", SHARED_MEMORY, {"emptyDir": {"medium": "Memory", "sizeLimit": size}})


def configuration() -> Mount:
    """The Job's configuration, from its pod's annotation."""
    return annotation_file("eagle3-config", CONFIG_ANNOTATION, CONFIG_FILE)


def annotation_file(name: str, annotation: str, path: str) -> Mount:
    """An annotation of the pod as a file, through the downward API."""
    folder, _, file = path.rpartition("/")
    item = {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
    return Mount(name, folder, {"downwardAPI": {"items": [item]}}, read_only=True)


def library(*, read_only: bool) -> Mount:
    """Our packages, which the init container copies from our image."""
    return Mount("eagle3-lib", LIBRARY, {"emptyDir": {}}, read_only=read_only)


def _user_mount(volume: Volume, read_only: bool) -> Mount:
    claim = volume.persistent_volume_claim
    return Mount(
        volume.name,
        volume.mount_path,
        {"persistentVolumeClaim": claim.model_dump(by_alias=True, exclude_defaults=True)},
        read_only or claim.read_only,
        volume.sub_path,
    )


def _scratch() -> Iterator[Mount]:
    yield Mount("eagle3-home", HOME, {"emptyDir": {}})
    yield Mount("eagle3-tmp", "/tmp", {"emptyDir": {}})  # noqa: S108


def _volumes_and_mounts(mounts: Sequence[Mount]) -> tuple[list[Manifest], list[Manifest]]:
    """The pod's volumes and the container's mounts.

    A claim that several mounts share becomes one volume: of a claim that a pod lists twice the kubelet may mount one and
    wait for the other for ever (Kubernetes issue 127004). It is attached read-only only where all of them ask for that.
    """
    volumes: dict[str, Manifest] = {}
    mounted = []
    for mount in mounts:
        key = f"claim {mount.claim}" if mount.claim else mount.name
        volume = volumes.setdefault(key, {"name": mount.name, **mount.source})
        if "readOnly" not in mount.source.get("persistentVolumeClaim", {"readOnly": True}):
            volume |= mount.source
        entry: Manifest = {"name": volume["name"], "mountPath": mount.path}
        if mount.sub_path:
            entry["subPath"] = mount.sub_path
        if mount.read_only:
            entry["readOnly"] = True
        mounted.append(entry)
    return list(volumes.values()), mounted


# --------------------------------------------------------------------------------------------------------------- pods


@dataclass(frozen=True)
class Program:
    """What a pod's main container runs."""

    name: str
    image: str
    command: tuple[str, ...]
    mounts: tuple[Mount, ...]
    #: Seconds between SIGTERM and SIGKILL.
    grace: int
    gpus: int = 0
    #: Requests where the placement says nothing.
    requests: Mapping[str, str] = field(default_factory=dict)
    #: Environment that the user's cannot replace.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Likewise, from Secrets (``secretKeyRef``), which the kubelet reads and the operator does not.
    secrets: Mapping[str, Manifest] = field(default_factory=dict)
    #: Seconds after which the kubelet ends the pod; None lets it run.
    deadline: int | None = None
    #: It is our own image, which writes to its mounts only.
    own_image: bool = False
    #: Further fields of the container: ports, probes.
    container: Mapping[str, Any] = field(default_factory=dict)

    def mounts_any(self, claims: Collection[str]) -> bool:
        """Whether it mounts one of these claims."""
        return any(mount.claim in claims for mount in self.mounts)


def pod_spec(
    program: Program,
    placement: Placement,
    settings: Settings,
    *,
    restart_policy: str,
    beside: Mapping[str, str] | None = None,
) -> Manifest:
    """The spec of a pod that runs this program there.

    A program in an image that is not ours gets our packages when it mounts ``library``.

    Args:
        program: what it runs.
        placement: where and with what.
        settings: of the operator.
        restart_policy: of its containers.
        beside: labels, its own among them, of the pods whose node it must be on.
    """
    volumes, mounts = _volumes_and_mounts((*program.mounts, *_scratch()))
    made: Manifest = {
        "restartPolicy": restart_policy,
        "automountServiceAccountToken": False,
        # A Service called "sglang" would otherwise put SGLANG_PORT and the like into the environment.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": program.grace,
        "securityContext": _pod_security(placement, settings.user),
        "tolerations": _tolerations(placement),
        "containers": [_main_container(program, placement, settings, mounts)],
        "volumes": volumes,
    }
    if program.deadline is not None:
        made["activeDeadlineSeconds"] = program.deadline
    if any(mount.path == LIBRARY for mount in program.mounts):
        made["initContainers"] = [_copy_library(settings)]
    if placement.node_selector:
        made["nodeSelector"] = dict(placement.node_selector)
    if affinity := _affinity(placement, beside):
        made["affinity"] = affinity
    if placement.service_account_name:
        made["serviceAccountName"] = placement.service_account_name
    if placement.priority_class_name:
        made["priorityClassName"] = placement.priority_class_name
    if placement.runtime_class_name:
        made["runtimeClassName"] = placement.runtime_class_name
    if placement.image_pull_secrets:
        made["imagePullSecrets"] = [{"name": name} for name in placement.image_pull_secrets]
    return made


def _main_container(program: Program, placement: Placement, settings: Settings, mounts: list[Manifest]) -> Manifest:
    return {
        "name": program.name,
        "image": program.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": list(program.command),
        "env": _environment(program, placement),
        "resources": _resources(program, placement),
        "securityContext": _container_security(read_only_root=program.own_image),
        "volumeMounts": mounts,
        **program.container,
    }


def _copy_library(settings: Settings) -> Manifest:
    return {
        "name": "draft",
        "image": settings.draft_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python3", "-m", "eagle3_draft", "copy-lib", LIBRARY],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": _container_security(read_only_root=True),
        "volumeMounts": _volumes_and_mounts([library(read_only=False)])[1],
    }


def _environment(program: Program, placement: Placement) -> list[Manifest]:
    variables: dict[str, Manifest] = {
        "HOME": {"value": HOME},
        # Libraries that ask who they are (torch's compile cache) fail for a user whom no passwd file names.
        "USER": {"value": "eagle3"},
        "PYTHONUNBUFFERED": {"value": "1"},
    }
    if not program.gpus and not program.own_image:
        # CUDA images ask for all GPUs, and get them where nvidia is the default runtime, also when the pod asked for none.
        variables["NVIDIA_VISIBLE_DEVICES"] = {"value": "void"}
    variables |= {variable.name: _variable(variable) for variable in placement.env or ()}
    variables |= {name: {"value": value} for name, value in program.environment.items()}
    given = {variable.name for variable in placement.env or ()}
    for name, key in program.secrets.items():
        # What the Secret may leave out is not emptied by that where the user has it from elsewhere
        if not (key.get("optional") and name in given):
            variables[name] = {"valueFrom": {"secretKeyRef": dict(key)}}
    return [{"name": name, **body} for name, body in variables.items()]


def scraping(port: int) -> dict[str, str]:
    """By which a Prometheus without its operator finds a pod."""
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}


def _variable(variable: EnvironmentVariable) -> Manifest:
    if variable.secret_key_ref is not None:
        return {"valueFrom": {"secretKeyRef": variable.secret_key_ref.to_json()}}
    return {"value": variable.value or ""}


def _resources(program: Program, placement: Placement) -> Manifest:
    asked = {"cpu": placement.cpu, "memory": placement.memory}
    requests = {**program.requests, **{name: value for name, value in asked.items() if value}}
    limits: dict[str, str] = {}
    if placement.memory:
        limits["memory"] = placement.memory
    if program.gpus:
        limits[placement.gpu_resource or GPU] = str(program.gpus)
    made = {"requests": requests, "limits": limits}
    return {name: values for name, values in made.items() if values}


def _tolerations(placement: Placement) -> list[Manifest]:
    """The user's, and the taint that keeps others off GPU nodes.

    Pods without GPUs tolerate it too: volumes and node selectors bind them to the very nodes that carry it.
    """
    resource = placement.gpu_resource or GPU
    taint = GPU if resource.startswith("nvidia.com/") else resource
    ours = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
    users = [toleration.to_json() for toleration in placement.tolerations or ()]
    return users if ours in users else [*users, ours]


def _affinity(placement: Placement, beside: Mapping[str, str] | None) -> Manifest:
    """The user's, and the node of the pods that a claim binds together.

    The scheduler does not look where a ReadWriteOnce volume is attached: without this a pod gets another node, and waits there
    for the volume. The first pod, which matches its own term, may go anywhere. Terms are required of *one* other pod together:
    there is one for all claims, and beside a required one of the user's ours is only a wish, for no pod would match both.
    """
    made: Manifest = placement.affinity.to_json() if placement.affinity else {}
    if beside is None:
        return made
    ours = {"labelSelector": {"matchLabels": dict(beside)}, "topologyKey": "kubernetes.io/hostname"}
    others = made.setdefault("podAffinity", {})
    if others.get(_REQUIRED):
        others.setdefault(_PREFERRED, []).append({"weight": 100, "podAffinityTerm": ours})
    else:
        others[_REQUIRED] = [ours]
    return made


def _pod_security(placement: Placement, user: int | None) -> Manifest:
    chosen = {
        "runAsUser": placement.run_as_user or user,
        "runAsGroup": placement.run_as_group or user,
        "fsGroup": placement.fs_group or user,
    }
    made: Manifest = {
        "runAsNonRoot": True,
        **{name: number for name, number in chosen.items() if number is not None},
        # A volume of terabytes must not be walked at every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if placement.supplemental_groups:
        made["supplementalGroups"] = list(placement.supplemental_groups)
    return made


def _container_security(*, read_only_root: bool) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only_root,
    }
