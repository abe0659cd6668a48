import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.jobs import CONFIG_ANNOTATION, ExitCode, JobEnvelope, StageName
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests.jobs import CONTAINER, job, template_hash
from eagle3_operator.traits import TRAITS
from unit.samples import HOOK, MODELS, PUBLISH, SETTINGS, config, draft, full_placement

STAGES = list(StageName)
ENGINE_STAGES = [stage for stage in STAGES if not TRAITS[stage].own_image and stage is not StageName.HOOK]


def made(stage: StageName, **spec: Any) -> Manifest:
    return job(draft(**({"publish": PUBLISH} | spec)), SETTINGS, config=config(stage))


def pod(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("stage", STAGES)
def test_the_pod_reads_the_very_configuration_it_was_made_for(stage: StageName) -> None:
    annotation = made(stage)["spec"]["template"]["metadata"]["annotations"][CONFIG_ANNOTATION]
    assert JobEnvelope.model_validate_json(annotation).config == config(stage)
    assert annotation == json.dumps(json.loads(annotation), sort_keys=True, separators=(",", ":"))


def test_who_scrapes_a_trainer_is_its_users_to_say_and_its_configuration_is_not() -> None:
    asked = {"prometheus.io/scrape": "false", CONFIG_ANNOTATION: "{}"}
    template = made(StageName.TRAIN, placement={"annotations": asked})["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    assert (annotations["prometheus.io/scrape"], annotations["prometheus.io/port"]) == ("false", "9400")
    assert JobEnvelope.model_validate_json(annotations[CONFIG_ANNOTATION]).config == config(StageName.TRAIN)


@pytest.mark.parametrize("stage", STAGES)
def test_what_trying_again_cannot_help_fails_the_job_at_once(stage: StageName) -> None:
    fatal, disruption = made(stage)["spec"]["podFailurePolicy"]["rules"]
    retried = {ExitCode.DONE, ExitCode.INTERRUPTED, ExitCode.ENGINE_CRASHED}
    assert set(fatal["onExitCodes"]["values"]) >= set(ExitCode) - retried
    assert not set(fatal["onExitCodes"]["values"]) & retried
    assert fatal["onExitCodes"]["containerName"] == CONTAINER == pod(made(stage))["containers"][0]["name"]
    assert disruption["action"] == "Ignore"


@pytest.mark.parametrize("stage", STAGES)
def test_no_job_ends_or_vanishes_by_the_clock(stage: StageName) -> None:
    spec = made(stage)["spec"]
    assert "ttlSecondsAfterFinished" not in spec
    assert "activeDeadlineSeconds" not in spec


def test_the_pod_of_a_probe_is_no_endpoint_of_the_revision_that_it_probes() -> None:
    manifest = made(StageName.PROBE)
    assert manifest["metadata"]["labels"]["eagle3.dev/revision"] == "r1"
    assert "eagle3.dev/revision" not in manifest["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_small_job_finds_a_place_beside_a_server_that_took_the_memory(stage: StageName) -> None:
    asked = pod(made(stage, placement=full_placement()))["containers"][0]["resources"]
    if stage in (StageName.EXTRACT, StageName.TRAIN):
        assert asked["requests"]["memory"] == "256Gi"
        assert asked["limits"]["nvidia.com/gpu"] == "1"
    else:
        assert asked["requests"]["memory"].endswith(("Mi", "1Gi"))
        assert "limits" not in asked


@pytest.mark.parametrize(("memory", "asked"), [(None, "1Gi"), (2**31, "2048Mi"), (2**31 + 1, "2049Mi")])
def test_a_conversion_asks_for_the_memory_that_its_draft_takes(memory: int | None, asked: str) -> None:
    told = config(StageName.CONVERT).model_copy(update={"memory_bytes": memory})
    (container,) = pod(job(draft(placement=full_placement()), SETTINGS, config=told))["containers"]
    assert container["resources"] == {"requests": {"cpu": "200m", "memory": asked}}


def test_the_conversion_of_an_adopted_draft_runs_the_target_where_extraction_would() -> None:
    adopted = draft(placement=full_placement(), draft={"checkpoint": "/data/draft"}, extract={"gpus": 4})
    asked = pod(job(adopted, SETTINGS, config=config(StageName.CONVERT)))["containers"][0]
    assert asked["resources"]["limits"] == {"memory": "256Gi", "nvidia.com/gpu": "4"}
    assert "/dev/shm" in {mount["mountPath"] for mount in asked["volumeMounts"]}


@pytest.mark.parametrize("stage", STAGES)
def test_fetch_inspect_and_a_hook_write_nothing_that_is_the_user_s(stage: StageName) -> None:
    mounts = pod(made(stage))["containers"][0]["volumeMounts"]
    writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    assert ("/eagle3/drafts" in writable) == (stage is not StageName.HOOK)
    assert ("/data" in writable) == (stage not in (StageName.FETCH, StageName.INSPECT, StageName.HOOK))
    assert "/models" not in writable


@pytest.mark.parametrize("stage", STAGES)
def test_a_pod_that_runs_once_the_features_are_gone_does_not_wait_for_their_claim(stage: StageName) -> None:
    claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod(made(stage))["volumes"]}
    assert ("features" in claims) == (stage in ("inspect", "extract", "train", "clean"))


@pytest.mark.parametrize("stage", STAGES)
def test_only_who_reads_the_target_or_the_data_waits_for_what_came_from_a_hub(stage: StageName) -> None:
    storage = {"features": {"claim": "features"}, "drafts": {"claim": "drafts"}, "models": {"claim": "fetched"}}
    spec = pod(made(stage, target={"model": "org/llama"}, storage=storage))
    claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in spec["volumes"]}
    assert ("fetched" in claims) == (stage not in ("clean", "publish", "hook", "probe"))


@pytest.mark.parametrize("stage", STAGES)
def test_only_publish_and_its_hook_are_let_into_the_registry(stage: StageName) -> None:
    secrets = {volume.get("secret", {}).get("secretName") for volume in pod(made(stage))["volumes"]}
    assert ("registry" in secrets) == (stage in ("publish", "hook"))


UNIMPORTANT = st.fixed_dictionaries(
    {},
    optional={
        "serve": st.fixed_dictionaries({"replicas": st.integers(0, 9), "bakeTime": st.sampled_from(["1m", "1h"])}),
        "probe": st.fixed_dictionaries({"minSpeedup": st.floats(0, 2), "prompts": st.integers(1, 64)}),
        "watch": st.just({"prometheus": {"name": "default"}}),
        "suspend": st.booleans(),
        "deletionPolicy": st.sampled_from(["Retain", "Delete"]),
    },
)


@given(spec=UNIMPORTANT, stage=st.sampled_from(STAGES))
def test_what_is_not_of_its_pods_makes_no_job_anew(spec: dict[str, Any], stage: StageName) -> None:
    assert template_hash(draft(**spec), stage) == template_hash(draft(), stage)


@pytest.mark.parametrize("stage", ENGINE_STAGES)
@pytest.mark.parametrize(
    "change",
    [
        {"image": "lmsysorg/sglang:v0.5.24"},
        {"placement": {"volumes": [MODELS]}},
        {"placement": {"nodeSelector": {"pool": "b"}}},
        {"placement": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}},
    ],
)
def test_another_image_or_placement_makes_a_job_anew(change: dict[str, Any], stage: StageName) -> None:
    assert template_hash(draft(**change), stage) != template_hash(draft(), stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_not_made_anew_for_what_it_does_not_take(stage: StageName) -> None:
    memory = draft(placement={"volumes": draft().spec.to_json()["placement"]["volumes"], "memory": "1Ti"})  # type: ignore[index]
    assert (template_hash(memory, stage) == template_hash(draft(), stage)) == (
        stage not in (StageName.EXTRACT, StageName.TRAIN)
    )
    for change in ({"gpus": 8}, {"sharding": "Replicate"}, {"tokensPerPass": 4096}):
        more = draft(train=change)
        assert (template_hash(more, stage) == template_hash(draft(), stage)) == (stage is not StageName.TRAIN)


def test_the_operator_s_own_version_makes_no_job_anew() -> None:
    newer = SETTINGS.model_copy(update={"draft_image": "registry.example.com/eagle3-draft:0.2.0"})
    for stage in STAGES:
        before, after = (job(draft(publish=PUBLISH), settings, config=config(stage)) for settings in (SETTINGS, newer))
        assert before["metadata"] == after["metadata"]


def test_a_hook_sees_what_was_pushed_and_neither_drafts_nor_held_out_data() -> None:
    mounts = {mount["mountPath"]: mount for mount in pod(made(StageName.HOOK))["containers"][0]["volumeMounts"]}
    assert "/eagle3/drafts" not in mounts
    published = mounts["/eagle3/published"]
    assert (published["subPath"], published["readOnly"]) == ("llm/llama-8b/publish/pppp", True)


@pytest.mark.parametrize("secret", ["registry", None])
def test_a_hook_is_told_of_a_login_where_there_is_one(secret: str | None) -> None:
    oci = {"reference": "registry.example.com/llm/llama-8b-eagle3", "secret": secret}
    container = pod(made(StageName.HOOK, publish={"oci": oci, "hook": HOOK}))["containers"][0]
    told = {variable["name"] for variable in container["env"]}
    assert ("DOCKER_CONFIG" in told) == (secret is not None)


def test_a_hook_has_of_the_object_s_volumes_and_variables_what_it_names() -> None:
    token = [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hub", "key": "token"}}]
    own = [{"name": "COSIGN_PASSWORD", "value": "word"}, {"name": "EAGLE3_REFERENCE", "value": "another"}]
    certificates = {"name": "ca", "mountPath": "/ca", "persistentVolumeClaim": {"claimName": "ca"}}
    placement = {"env": token, "volumes": [MODELS, certificates]}
    for named, expected in (({}, set()), ({"volumes": ["ca"]}, {"/ca"})):
        publish = PUBLISH | {"hook": HOOK | {"env": own} | named}
        spec = pod(made(StageName.HOOK, placement=placement, publish=publish))
        container = spec["containers"][0]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {path for path in mounts if not path.startswith("/eagle3/")} - {"/tmp"} == expected
        assert all(mounts[path]["readOnly"] for path in expected)
        assert MODELS["name"] not in {volume["name"] for volume in spec["volumes"]}
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert "HF_TOKEN" not in values
        assert values["COSIGN_PASSWORD"] == "word"
        # What it is told cannot be overwritten
        assert str(values["EAGLE3_REFERENCE"]).startswith("registry.example.com/llm/llama-8b-eagle3@sha256:")


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"hook": HOOK | {"image": "registry.example.com/cosign:v2.7.0"}}, {StageName.HOOK}),
        ({"hook": HOOK | {"env": []}}, {StageName.HOOK}),
        ({"hook": HOOK | {"timeout": "1h"}}, {StageName.HOOK}),
        ({"hook": HOOK | {"timeout": "30m"}}, set()),
        ({"hook": HOOK | {"volumes": ["models"]}}, {StageName.HOOK}),
        ({"oci": {"reference": "registry.example.com/llm/llama-8b-eagle3"}}, {StageName.HOOK, StageName.PUBLISH}),
    ],
)
def test_a_corrected_hook_pushes_nothing_again(change: dict[str, Any], anew: set[StageName]) -> None:
    before, after = draft(publish=PUBLISH), draft(publish=PUBLISH | change)
    assert {stage for stage in STAGES if template_hash(before, stage) != template_hash(after, stage)} == anew
