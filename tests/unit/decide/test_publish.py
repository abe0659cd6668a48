"""A converted draft is published beside everything else: nobody waits for it, and its failure is told."""

from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import CONFIG_ANNOTATION, HookConfig, JobEnvelope, PublishConfig, PublishResult, StoredDraft
from eagle3_operator.decide.stages import PUBLISH, Attempts, Push, after_inspection
from unit.decide.world import World, serving_draft, serving_plain, trained
from unit.samples import FACTS, PUSHED, converted, measured


def publishing(**oci: Any) -> World:
    return World().edit(publish={"oci": {"reference": "registry.example.com/llm/kimi", **oci}})


STORED = PublishResult(
    stored=StoredDraft(
        address="s3://drafts/llm/sha256-" + "a" * 64,
        digest="sha256:" + "a" * 64,
        provenance="s3://drafts/llm/sha256-" + "a" * 64 + "/provenance/sha256-" + "b" * 64 + ".json",
    ),
    bytes=850_000_000,
)


def publication(world: World) -> PublishConfig:
    """What the object's Publish is to do."""
    chain = after_inspection(world.obj, FACTS, Attempts())
    to = world.obj.spec.publish
    assert to is not None
    config = PUBLISH.link(Push(world.obj, to, chain[-1], converted("d" * 64))).config
    assert isinstance(config, PublishConfig)
    return config


def test_the_key_of_a_push_is_that_of_former_versions() -> None:
    assert publication(publishing(secret="registry", plainHttp=True)).key == "ca230d872f87aca6"


def test_an_object_without_publish_says_and_does_nothing_of_it() -> None:
    world = trained()
    assert not world.jobs("publish")
    assert "DraftPublished" not in {condition.type for condition in world.told.conditions}


def test_the_draft_is_published_once_it_is_converted_and_servers_start_meanwhile() -> None:
    world = trained(publishing(secret="registry"))
    assert world.reason("DraftPublished") == ("Unknown", Reason.PUBLISHING)
    assert world.seen.deployments, "the roll-out does not wait"
    world.finish("publish", PUSHED)
    assert world.reason("DraftPublished") == ("True", Reason.ARTIFACT_PUBLISHED)
    assert world.told.artifact is not None
    assert world.told.artifact.published == PUSHED.reference
    assert world.told.artifact.digest == "d" * 64


def test_a_draft_goes_to_a_bucket_alone_or_as_well() -> None:
    world = trained(World().edit(publish={"objectStore": {"url": "s3://drafts/llm", "endpoint": "http://s3"}}))
    config = publication(world)
    assert config.reference is None
    assert config.object_store is not None
    assert (config.object_store.url, config.object_store.endpoint) == ("s3://drafts/llm", "http://s3")
    world.finish("publish", STORED)
    assert world.told.artifact is not None
    assert (world.told.artifact.published, world.told.artifact.stored) == (
        None,
        STORED.stored and STORED.stored.address,
    )
    assert "s3://drafts/llm/sha256-aaaa" in world.condition("DraftPublished").message
    world.edit(publish={"oci": {"reference": "registry.example.com/llm/kimi"}}).settle()
    assert world.told.artifact.stored is None  # until both are done
    world.finish("publish", PUSHED.model_copy(update={"stored": STORED.stored}))
    assert world.told.artifact.published == PUSHED.reference
    assert world.told.artifact.stored is not None


def test_without_serve_the_object_is_ready_when_its_draft_is_published() -> None:
    world = trained(publishing().edit(serve=None, watch=None))
    assert world.told.phase == "Publishing"
    assert world.reason() == ("False", Reason.PUBLISHING)
    world.finish("publish", PUSHED)
    assert world.reason() == ("True", Reason.ARTIFACT_PUBLISHED)
    assert world.told.phase == "Published"


def test_a_registry_that_refuses_is_told_and_touches_no_server() -> None:
    world = publishing()
    serving_draft(world)
    world.fail("publish", Reason.REGISTRY_DENIED, "publish.oci: registry.example.com does not take llm/kimi")
    assert world.serving == 1
    assert world.reason("DraftPublished") == ("False", Reason.REGISTRY_DENIED)
    assert world.reason("RevisionProven")[0] == "True"
    assert world.reason() == ("False", Reason.REGISTRY_DENIED)
    assert world.reason("Stalled") == ("True", Reason.REGISTRY_DENIED)
    assert "eagle3.dev/retry=publish@" in world.condition("DraftPublished").message


def test_a_draft_that_serves_and_is_never_pushed_is_not_replaced_without_approval() -> None:
    world = serving_plain(publishing()).ready(1)
    world.fail("publish", Reason.REGISTRY_DENIED, "publish.oci: 401").finish(
        "probe", measured(accept=2.71, speed=126.9)
    )
    world.later(700).settle()
    assert (world.serving, world.reason()) == (1, ("False", Reason.REGISTRY_DENIED))
    world.edit(serve={"surge": "Never", "speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    assert world.replicas == {0: 0, 1: 1}
    assert world.reason("RevisionProven") == ("Unknown", Reason.AWAITING_APPROVAL)


def test_a_push_that_is_tried_again_leaves_a_server_that_is_loading_alone() -> None:
    world = serving_plain(publishing())
    world.fail("publish", Reason.REGISTRY_DENIED, "publish.oci: 401")
    before, servers = len(world.created), world.seen.deployments
    assert world.replicas == {0: 1, 1: 1}
    world.later(840).annotations["eagle3.dev/retry"] = "publish@again"
    world.settle()
    assert [name.split("-")[1] for name in world.created[before:]] == ["publish"]
    assert world.seen.deployments == servers
    world.annotations["eagle3.dev/retry"] = "r1@again"
    world.settle()
    assert (len(world.created), world.seen.deployments) == (before + 1, servers)


def test_a_corrected_secret_publishes_without_another_word() -> None:
    world = trained(publishing(secret="wrong"))
    world.fail("publish", Reason.REGISTRY_DENIED, "publish.oci: 401")
    key = world.job("publish").name
    world.edit(publish={"oci": {"secret": "right"}}).settle()
    assert world.job("publish").name == key
    world.finish("publish", PUSHED)
    assert world.reason("DraftPublished") == ("True", Reason.ARTIFACT_PUBLISHED)


def test_a_hook_that_hangs_is_ended_and_told_with_what_it_waits_for() -> None:
    world = hooked(timeout="10m")
    assert world.applied_job("hook")["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 600
    world.crash("hook", code=137, said="Generating ephemeral keys... waiting for the device flow", timed_out=True)
    assert world.reason("DraftPublished") == ("False", Reason.HOOK_TIMED_OUT)
    message = world.condition("DraftPublished").message
    assert "publish.hook.timeout" in message
    assert "waiting for the device flow" in message
    assert world.seen.deployments, "no server waits for it"
    world.edit(publish={"hook": SIGN | {"timeout": "1h"}}).settle()
    assert world.reason("DraftPublished") == ("Unknown", Reason.PUBLISHING), "a longer time is tried at once"
    assert world.applied_job("hook")["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 3600
    assert [name.split("-")[1] for name in world.created].count("publish") == 1


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"publish": {"oci": {"reference": "registry.example.com/llm/other"}}}, True),
        ({"publish": {"oci": {"secret": "another"}}}, False),
        ({"publish": {"objectStore": {"url": "s3://drafts"}}}, True),
        ({"probe": {"minSpeedup": 1.3}}, False),
    ],
)
def test_another_place_is_pushed_to_and_nothing_is_converted_again(change: dict[str, Any], again: bool) -> None:
    world = trained(publishing())
    world.finish("publish", PUSHED)
    before = len(world.created)
    world.edit(**change).settle()
    assert [name.split("-")[1] for name in world.created[before:]] == ["publish"] * again


def test_another_draft_is_published_too() -> None:
    world = trained(publishing())
    world.finish("publish", PUSHED)
    world.annotations["eagle3.dev/retry"] = "convert@again"
    world.settle().finish("inspect")
    world.finish("convert", converted("e" * 64))
    assert world.told.artifact is not None
    assert (world.told.artifact.digest, world.told.artifact.published) == ("e" * 64, None)
    world.finish("publish", PUSHED)
    assert world.told.artifact.published == PUSHED.reference
    assert [name.split("-")[1] for name in world.created].count("publish") == 2


# -------------------------------------------------------------------------------------------------------------- hooks

SIGN = {"image": "registry.example.com/cosign:v2.6.5", "command": ["cosign", "sign", "$(EAGLE3_REFERENCE)"]}


def hooked(**hook: Any) -> World:
    """An object whose draft is pushed, and whose hook is next."""
    world = trained(publishing(secret="registry").edit(publish={"hook": SIGN | hook}))
    return world.finish("publish", PUSHED)


def test_a_draft_is_not_called_published_before_its_hook_has_ended_well() -> None:
    world = hooked()
    assert world.reason("DraftPublished") == ("Unknown", Reason.PUBLISHING)
    assert world.told.artifact is not None
    assert world.told.artifact.published is None
    world.complete("hook")
    assert world.reason("DraftPublished") == ("True", Reason.ARTIFACT_PUBLISHED)
    assert world.told.artifact is not None
    assert world.told.artifact.published == PUSHED.reference


def test_a_hook_is_told_what_was_pushed_by_its_digest() -> None:
    world = hooked()
    config = JobEnvelope.model_validate_json(
        world.applied_job("hook")["spec"]["template"]["metadata"]["annotations"][CONFIG_ANNOTATION]
    ).config
    assert isinstance(config, HookConfig)
    assert (config.reference, config.digest) == (PUSHED.reference, PUSHED.digest)
    assert config.command == SIGN["command"]


def test_a_hook_that_fails_is_told_in_its_own_words_and_pushes_nothing_again() -> None:
    world = hooked()
    world.crash("hook", code=1, said="Error: signing: reading key: decrypt: encrypted: decryption failed")
    status, reason = world.reason("DraftPublished")
    assert (status, reason) == ("False", Reason.JOB_FAILED)
    message = world.condition("DraftPublished").message
    assert "decryption failed" in message
    assert "eagle3.dev/retry=hook@" in message
    assert world.reason()[0] == "False"
    assert world.seen.deployments, "no server waits for it"
    before = len(world.created)
    world.annotations["eagle3.dev/retry"] = "hook@again"
    world.settle()
    assert [name.split("-")[1] for name in world.created[before:]] == ["hook"]
    world.complete("hook")
    assert world.reason("DraftPublished") == ("True", Reason.ARTIFACT_PUBLISHED)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"hook": {"command": ["cosign", "attest", "$(EAGLE3_REFERENCE)"]}}, ["hook"]),
        ({"hook": {"env": [{"name": "COSIGN_PASSWORD", "value": ""}]}}, []),
        ({"oci": {"reference": "registry.example.com/llm/other"}}, ["publish"]),
        ({"hook": None}, []),
    ],
)
def test_an_edit_runs_again_what_it_changes(change: dict[str, Any], again: list[str]) -> None:
    world = hooked().complete("hook")
    before = len(world.created)
    world.edit(publish=change).settle()
    assert [name.split("-")[1] for name in world.created[before:]] == again


def test_what_is_pushed_again_is_signed_again() -> None:
    world = hooked().complete("hook")
    world.annotations["eagle3.dev/retry"] = "publish@again"
    world.settle().finish("publish", PUSHED)
    world.complete("hook")
    assert [name.split("-")[1] for name in world.created].count("hook") == 2
