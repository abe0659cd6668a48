"""What holds for every pod, of Jobs and of servers."""

from typing import Any

import pytest

from eagle3_api.jobs import StageName
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests.jobs import job
from eagle3_operator.manifests.servers import deployment
from eagle3_operator.settings import Settings
from unit.samples import DATA, DRAFT, FACTS, HOOK, MODELS, PUBLISH, SETTINGS, config, draft, full_placement

PODS = [*StageName, "plain", "drafted"]


def pod(which: StageName | str, settings: Settings = SETTINGS, **spec: Any) -> Manifest:
    made: Manifest = template(which, settings, **spec)["spec"]
    return made


def template(
    which: StageName | str, settings: Settings = SETTINGS, *, one_node: tuple[str, ...] = (), **spec: Any
) -> Manifest:
    placement = spec.get("placement", {})
    named = {"env": placement.get("env", []), "volumes": [volume["name"] for volume in placement.get("volumes", [])]}
    obj = draft(**({"publish": PUBLISH | {"hook": HOOK | named}} | spec))
    if isinstance(which, StageName):
        manifest = job(obj, settings, config=config(which), one_node=one_node)
    else:
        folder = DRAFT if which == "drafted" else None
        manifest = deployment(
            obj, settings, FACTS, number=0, key="k", replicas=1, draft=folder, record={}, one_node=one_node
        )
    made: Manifest = manifest["spec"]["template"]
    return made


@pytest.fixture(params=PODS)
def which(request: pytest.FixtureRequest) -> StageName | str:
    name: StageName | str = request.param
    return name


def test_no_pod_is_root_or_can_become_it_or_may_ask_the_api_server(which: StageName | str) -> None:
    made = pod(which)
    security = made["securityContext"]
    assert security["runAsNonRoot"] and security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (65532, 65532, 65532)
    assert made["automountServiceAccountToken"] is False
    for container in [*made["containers"], *made.get("initContainers", [])]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_cluster_that_chooses_users_finds_none_in_a_pod_unless_the_object_names_one(which: StageName | str) -> None:
    theirs = SETTINGS.model_copy(update={"user": None})
    users = {"runAsUser", "runAsGroup", "fsGroup"}
    assert not pod(which, theirs)["securityContext"].keys() & users
    named = pod(which, theirs, placement={"runAsUser": 1000})["securityContext"]
    assert {name: named[name] for name in named.keys() & users} == {"runAsUser": 1000}


def test_only_our_own_image_has_a_root_that_it_cannot_write_to(which: StageName | str) -> None:
    for container in [*pod(which)["containers"], *pod(which).get("initContainers", [])]:
        ours = container["image"] == SETTINGS.draft_image
        assert container["securityContext"]["readOnlyRootFilesystem"] is ours


def test_every_mount_has_its_volume_and_no_claim_is_listed_twice(which: StageName | str) -> None:
    shared = {"features": {"claim": "conversations"}, "drafts": {"claim": "conversations"}}
    made = pod(
        which, storage=shared, placement={"volumes": [MODELS, DATA, DATA | {"name": "more", "mountPath": "/more"}]}
    )
    volumes = [volume["name"] for volume in made["volumes"]]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in made["volumes"] if "persistentVolumeClaim" in v]
    mounts = made["containers"][0]["volumeMounts"]
    assert sorted(claims) == ["conversations", "models"]
    assert len(set(volumes)) == len(volumes)
    assert {mount["name"] for mount in mounts} == set(volumes)
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


def test_a_claim_is_attached_read_only_where_all_its_mounts_ask_for_it(which: StageName | str) -> None:
    read_only = {"claimName": "shared", "readOnly": True}
    twice = [
        {"name": "a", "mountPath": "/a", "persistentVolumeClaim": read_only},
        {"name": "b", "mountPath": "/b", "persistentVolumeClaim": read_only},
    ]
    source = next(v for v in pod(which, placement={"volumes": twice})["volumes"] if v["name"] == "a")
    assert source["persistentVolumeClaim"] == read_only
    mixed = [twice[0], twice[1] | {"persistentVolumeClaim": {"claimName": "shared"}}]
    source = next(v for v in pod(which, placement={"volumes": mixed})["volumes"] if v["name"] == "a")
    assert source["persistentVolumeClaim"] == {"claimName": "shared"}


def test_the_environment_of_the_user_wins_except_over_the_contract(which: StageName | str) -> None:
    env = [{"name": "HOME", "value": "/scratch"}, {"name": "PYTHONPATH", "value": "/mine"}]
    made = pod(which, placement={"env": env})
    variables = [variable["name"] for variable in made["containers"][0]["env"]]
    values = {variable["name"]: variable.get("value") for variable in made["containers"][0]["env"]}
    assert len(set(variables)) == len(variables)
    assert values["HOME"] == "/scratch"
    assert values["PYTHONPATH"] == ("/eagle3/lib" if "initContainers" in made else "/mine")


def test_what_a_buckets_secret_may_leave_out_is_the_users_to_give_and_what_it_must_have_is_not() -> None:
    given = [{"name": name, "value": "mine"} for name in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")]
    made = pod(
        StageName.PUBLISH,
        publish={"objectStore": {"url": "s3://drafts/llm", "secret": "bucket"}},
        placement={"env": given},
    )
    env = {variable["name"]: variable for variable in made["containers"][0]["env"]}
    assert env["AWS_SESSION_TOKEN"] == given[0]
    assert env["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "bucket"


def test_a_pod_without_gpus_in_a_cuda_image_sees_none(which: StageName | str) -> None:
    made = pod(which, extract={"gpus": 0}, train={"gpus": 0}, serve={"gpus": 0})["containers"][0]
    seen = {variable["name"]: variable.get("value") for variable in made["env"]}
    assert "limits" not in made["resources"]
    assert seen.get("NVIDIA_VISIBLE_DEVICES") == (None if made["image"] == SETTINGS.draft_image else "void")


def test_every_pod_may_go_where_the_volumes_and_the_gpus_are(which: StageName | str) -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert pod(which)["tolerations"] == [taint]
    assert pod(which, placement={"tolerations": [taint]})["tolerations"] == [taint]
    amd = pod(which, placement={"gpuResource": "amd.com/gpu"})["tolerations"]
    assert amd == [taint | {"key": "amd.com/gpu"}]


def test_the_placement_of_the_object_holds_for_every_pod(which: StageName | str) -> None:
    made = pod(which, placement=full_placement())
    assert made["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    assert made["priorityClassName"] == "research"
    assert made["runtimeClassName"] == "nvidia"
    assert made["terminationGracePeriodSeconds"] == 300
    assert made["securityContext"]["supplementalGroups"] == [3000, 3001]


# ---------------------------------------------------------------------------------------------------------- one node

MARK = {"eagle3.dev/name": "llama-8b", "eagle3.dev/together": "true"}
TOGETHER: dict[str, Any] = {"labelSelector": {"matchLabels": MARK}, "topologyKey": "kubernetes.io/hostname"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FEATURES = {StageName.INSPECT, StageName.EXTRACT, StageName.TRAIN, StageName.CLEAN}


@pytest.mark.parametrize("claim", ["drafts", "features", "models", "elsewhere"])
def test_what_mounts_a_claim_that_one_node_has_goes_where_the_others_are_and_nothing_else_does(
    which: StageName | str, claim: str
) -> None:
    """The scheduler does not look where such a volume is attached: a pod on another node would wait for it for ever."""
    mounting = {"drafts": which != "plain", "features": which in FEATURES, "models": True, "elsewhere": False}
    made = template(which, one_node=(claim,), placement={"volumes": [MODELS]})
    labels = made["metadata"]["labels"]
    if mounting[claim]:
        assert made["spec"]["affinity"] == {"podAffinity": {REQUIRED: [TOGETHER]}}
        assert MARK.items() <= labels.items(), "the first one may go anywhere because it matches its own term"
    else:
        assert "affinity" not in made["spec"]
        assert "eagle3.dev/together" not in labels, "nor does it draw others to its node"


def test_a_users_affinity_stays_beside_it_and_a_required_one_before_it(which: StageName | str) -> None:
    """Required terms must all be met by one and the same other pod: beside a user's own, ours would never be."""
    placement = full_placement()
    users = placement["affinity"]
    made = template(which, one_node=("models",), placement=placement)["spec"]["affinity"]
    assert made == users | {"podAffinity": {REQUIRED: [TOGETHER]}}
    near = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "topology.kubernetes.io/zone"}
    placement["affinity"] = users | {"podAffinity": {REQUIRED: [near]}}
    made = template(which, one_node=("models",), placement=placement)["spec"]["affinity"]
    wish = [{"weight": 100, "podAffinityTerm": TOGETHER}]
    assert made["podAffinity"] == {REQUIRED: [near], "preferredDuringSchedulingIgnoredDuringExecution": wish}
    assert "eagle3.dev/together" not in str(users), "the object is not edited"
