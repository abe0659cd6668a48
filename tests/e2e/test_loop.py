"""The product's one job on real parts: a served draft that is proven, lost, and got back. In order; each builds on the last."""

import hashlib
import itertools
import json
import re
from pathlib import Path

import pytest

from eagle3_api.checkpoints import read_folder
from eagle3_api.jobs import StageName
from testbed import Draft, Testbed, broken, tiny, traffic
from testbed.elsewhere import BUCKET, DATASET, DRAFT, KEY, PREFIX, REPOSITORY, SCRATCH, TARGET, Elsewhere
from testbed.loop import Loop, held_out_prompts, host_folder, send_until
from testbed.sign import tag
from testcluster.wait import wait_for

pytestmark = pytest.mark.timeout(2400)

PHASES = {"Fetching", "Inspecting", "Extracting", "Training", "Converting", "RollingOut", "Probing"}


def test_the_same_end_is_reached_when_the_operator_is_killed_in_every_phase(served: Loop) -> None:
    assert set(served.killed_in) >= PHASES
    assert served.ready.says("Ready", "True")
    assert served.ready.status.serving_revision == 1


def test_no_job_ran_twice_to_completion_for_one_key(served: Loop) -> None:
    stages = sorted(name.split("-")[1] for name in served.completed)
    assert stages == ["clean", "convert", "extract", "fetch", "hook", "inspect", "probe", "probe", "publish", "train"]
    assert all(len(uids) == 1 for uids in served.completed.values())


def test_target_and_data_came_from_the_hub_at_a_commit_that_the_status_names(served: Loop) -> None:
    facts = served.ready.status.resolved
    assert facts is not None
    assert facts.fetched is not None
    target, dataset = facts.fetched.target, facts.fetched.dataset
    assert target is not None
    assert dataset is not None
    assert (target.repository, dataset.repository) == (TARGET, DATASET)
    for fetched in (target, dataset):
        assert re.fullmatch("[0-9a-f]{40}", fetched.commit)
        assert fetched.path.startswith("/eagle3/models/llm/tiny/fetch/")
    assert served.ready.says("Accepted", "True")


def test_the_registry_gives_out_by_the_digest_in_the_status_what_the_servers_read(
    bed: Testbed, served: Loop, elsewhere: Elsewhere
) -> None:
    artifact = served.ready.status.artifact
    assert artifact is not None
    assert served.ready.says("DraftPublished", "True")
    repository, _, digest = str(artifact.published).partition("@")
    assert repository == f"{elsewhere.registry}/{REPOSITORY}"
    manifest = elsewhere.pull(f"manifests/{digest}")
    assert digest == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    pulled = {
        layer["annotations"]["org.opencontainers.image.title"]: elsewhere.pull(f"blobs/{layer['digest']}")
        for layer in json.loads(manifest)["layers"]
    }
    folder = host_folder(bed, artifact.folder)
    assert pulled == {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}


def test_the_bucket_has_under_the_digest_in_the_status_what_the_servers_read_and_where_it_comes_from(
    bed: Testbed, served: Loop, elsewhere: Elsewhere
) -> None:
    artifact, facts = served.ready.status.artifact, served.ready.status.resolved
    assert artifact is not None
    assert facts is not None
    assert facts.fetched is not None
    stored, folder = elsewhere.stored(str(artifact.stored)), host_folder(bed, artifact.folder)
    digest = hashlib.sha256(stored.pop("manifest.json")).hexdigest()
    assert artifact.stored == f"s3://{BUCKET}/{PREFIX}/sha256-{digest}"
    (statement,) = (json.loads(stored.pop(path)) for path in list(stored) if path.startswith("provenance/"))
    assert statement["subject"][0]["digest"] == {"sha256": digest}
    made_from = {one["name"]: one["uri"] for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    target, dataset = (str(one and one.commit) for one in (facts.fetched.target, facts.fetched.dataset))
    assert made_from["target"] == f"hf://{TARGET}@{target}"
    assert made_from["data"] == f"hf://datasets/{DATASET}@{dataset}"
    assert stored == {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}


def test_what_was_pushed_is_signed_by_a_hook_that_saw_the_user_s_key(served: Loop, elsewhere: Elsewhere) -> None:
    artifact = served.ready.status.artifact
    assert artifact is not None
    digest = str(artifact.published).partition("@")[2]
    assert elsewhere.pull(f"manifests/{tag(KEY, digest)}") == elsewhere.pull(f"manifests/{digest}")


def test_two_pods_shared_the_extraction(served: Loop) -> None:
    assert {name.split("-")[1]: indexes for name, indexes in served.indexes.items()} == {"extract": "0,1"}


def test_the_features_lay_in_the_bucket_and_nothing_of_them_is_left_on_any_disk(
    bed: Testbed, served: Loop, elsewhere: Elsewhere
) -> None:
    stages = {stage.name: stage for stage in served.ready.status.stages}
    extracted, removed = stages[StageName.EXTRACT].result, stages[StageName.CLEAN].result
    assert extracted is not None
    assert removed is not None
    assert removed["bytes"] > extracted["bytes"] > 0, "what Clean found in the bucket: the parts and the whole of them"
    assert elsewhere.stored(f"s3://{BUCKET}/{SCRATCH}") == {}
    assert not (bed.folder("features") / bed.namespace / served.name).exists(), "the claim of others' features"


def test_the_draft_trained_here_is_accepted_as_training_expected(served: Loop) -> None:
    revision = served.ready.revision(1)
    assert revision.probe is not None
    assert revision.probe.accept_length is not None
    assert revision.expected_accept_length is not None
    assert revision.probe.accept_length > 1.5
    assert revision.probe.accept_length == pytest.approx(revision.expected_accept_length, rel=0.25)


def test_speculation_changes_no_greedy_answer(served: Loop) -> None:
    probe = served.ready.revision(1).probe
    assert probe is not None
    assert probe.compared == probe.requests
    assert probe.different == 0


def test_the_baseline_is_the_same_server_without_speculation(served: Loop) -> None:
    plain, drafted = served.ready.revision(0).probe, served.ready.revision(1).probe
    assert plain is not None
    assert drafted is not None
    assert not plain.speculative
    assert drafted.baseline_tokens_per_second == pytest.approx(plain.tokens_per_second)
    assert drafted.break_even is not None


def test_get_shows_the_columns_that_the_walkthrough_shows(bed: Testbed, served: Loop) -> None:
    header, row = bed.kubectl("get", "e3d", served.name).splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "REASON", "REVISION", "ACCEPT", "SPEEDUP", "AGE"]
    assert row.split()[:5] == ["tiny", "Serving", "True", "Serving", "r1"]
    assert row.split()[6].endswith("x")


def test_the_public_service_answers_with_the_draft(bed: Testbed, served: Loop) -> None:
    prompts = held_out_prompts(bed, served.ready)
    assert traffic.chat(bed.service_url(served.name), prompts[:2]) > 0


def test_the_watch_finds_the_draft_healthy_from_a_real_prometheus(bed: Testbed, served: Loop) -> None:
    draft = send_until(bed, served.name, held_out_prompts(bed, served.ready), "DraftHealthy")
    assert draft.says("SpeculationActive", "True", "Active")
    window = draft.revision(1).windows[-1]
    assert window.accept_length is not None
    assert window.accept_length > 1.5


def test_a_settled_object_is_not_written_to(bed: Testbed, served: Loop) -> None:
    """Beyond the windows of the watch, which are news."""
    bed.edit(served.name, watch=None)
    settled = bed.wait(served.name, lambda draft: draft.ready and draft.current and not _warm(draft), seconds=60)
    bed.kill_operator()
    bed.wait_for_operator()
    job = bed.kubectl("create", "-f", "-", "-o", "name", stdin=_unrelated_job(served.name))
    bed.kubectl("delete", job.strip(), "--wait=true")
    assert bed.get(served.name).json == settled.json


def _warm(draft: Draft) -> bool:
    """Whether a former server is kept for a while: that it ends is news."""
    return any(revision.state == "Proven" for revision in draft.status.revisions)


def _unrelated_job(name: str) -> str:
    """A Job that makes the operator look at the object, and changes nothing about it."""
    labels = {"eagle3.dev/name": name, "app.kubernetes.io/managed-by": "eagle3-operator"}
    pod = {"containers": [{"name": "none", "image": tiny.IMAGE}], "restartPolicy": "Never"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "unrelated-", "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }
    return json.dumps(job)


def test_a_broken_draft_that_no_file_shows_is_rejected_and_the_proven_one_serves_on(
    bed: Testbed, served: Loop, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """It comes from the bucket, by an address that vouches for every byte: whoever broke it published it."""
    artifact, facts = served.ready.status.artifact, served.ready.status.resolved
    assert artifact is not None
    assert facts is not None
    address = elsewhere.keep(
        broken.permuted(host_folder(bed, artifact.folder), tmp_path / "broken"), facts.target_digest
    )
    bed.edit(served.name, draft={"checkpoint": address, "vocabularySize": None})
    draft = bed.wait(served.name, lambda d: d.says("RevisionProven", "False"), seconds=600, what="the rejection")
    rejected = draft.revision(2)
    assert rejected.state == "Rejected"
    assert rejected.probe is not None
    assert rejected.probe.accept_length is not None
    assert rejected.probe.accept_length < 1.5
    assert draft.status.serving_revision == 1
    assert draft.says("Ready", "False")
    assert draft.says("Stalled", "True")
    assert "r1 is serving" in rejected.message or "r1 is serving" in str(draft.condition("RevisionProven"))
    assert traffic.chat(bed.service_url(served.name), held_out_prompts(bed, draft)[:1]) > 0


def test_a_rejected_revision_is_not_tried_again_by_a_new_operator(bed: Testbed, served: Loop) -> None:
    """Row 31."""
    before = bed.kubectl("get", "jobs", "-o", "name")
    bed.kill_operator()
    bed.wait_for_operator()
    assert bed.kubectl("get", "jobs", "-o", "name") == before
    deployment = json.loads(bed.kubectl("get", "deployment", f"{served.name}-r2", "-o", "json"))
    assert deployment["spec"]["replicas"] == 0


def test_the_trained_draft_serves_again_without_being_trained_again(bed: Testbed, served: Loop) -> None:
    bed.edit(served.name, draft={"checkpoint": None, "vocabularySize": 512})
    draft = bed.wait(served.name, lambda d: d.ready, seconds=300, what="the trained draft to be wanted again")
    assert draft.status.serving_revision == 1
    assert draft.status.artifact == served.ready.status.artifact
    jobs = json.loads(bed.kubectl("get", "jobs", "-l", f"eagle3.dev/name={served.name}", "-o", "json"))["items"]
    before = set().union(*served.completed.values())
    since = {job["metadata"]["labels"]["eagle3.dev/stage"] for job in jobs if job["metadata"]["uid"] not in before}
    assert since.isdisjoint({"extract", "train"})


def test_the_watch_takes_the_service_back_when_live_traffic_is_not_accepted(bed: Testbed, served: Loop) -> None:
    """The draft passes its probe by far; what clients send now it has never seen anything like."""
    watch = tiny.manifest()["spec"]["watch"]
    bed.edit(served.name, probe={"minAcceptLength": 2.5}, watch=watch)
    bed.wait(served.name, lambda d: d.ready and d.current, seconds=60, what="the higher bar to be passed")
    url, seeds = bed.service_url(served.name), itertools.count()

    def rolled_back() -> bool:
        traffic.nonsense(url, next(seeds))
        return bed.get(served.name).status.serving_revision == 0

    wait_for("the roll-back to the plain revision", 180, rolled_back)
    draft = bed.wait(served.name, lambda d: d.says("ServerAvailable", "True"), seconds=60)
    assert draft.revision(1).state == "Rejected"
    assert draft.says("RevisionProven", "False", "LowAcceptLength")
    assert draft.says("Ready", "False", "LowAcceptLength")
    assert "RolledBack" in bed.kubectl("get", "events", "-o", "custom-columns=R:.reason")
    assert traffic.chat(url, held_out_prompts(bed, draft)[:1]) > 0


def test_a_draft_that_others_trained_comes_from_the_hub_in_their_layout_and_serves(bed: Testbed, served: Loop) -> None:
    bed.edit(served.name, draft={"checkpoint": DRAFT, "vocabularySize": None}, probe={"minAcceptLength": 2.0})
    draft = bed.wait(
        served.name,
        lambda d: d.ready and d.status.serving_revision == 3,
        seconds=600,
        what="the draft from the hub to serve",
    )
    facts, artifact, revision = draft.status.resolved, draft.status.artifact, draft.revision(3)
    assert facts is not None
    assert facts.fetched is not None
    assert facts.fetched.draft is not None
    assert facts.fetched.draft.repository == DRAFT
    assert artifact is not None
    published = _names(bed.folder("data") / "foreign-draft")
    assert "layers.0.hidden_norm.weight" in published, "the names of its trainer"
    assert "midlayer.hidden_norm.weight" in _names(host_folder(bed, artifact.folder)), "SGLang's"
    assert revision.probe is not None
    assert revision.probe.accept_length is not None
    assert revision.probe.accept_length > 2.0
    assert revision.probe.accept_length == pytest.approx(revision.expected_accept_length, rel=0.25)
    assert traffic.chat(bed.service_url(served.name), held_out_prompts(bed, draft)[:1]) > 0


def _names(checkpoint: Path) -> set[str]:
    """Of a checkpoint's tensors."""
    return set(read_folder(checkpoint).tensors)


def test_deleting_the_object_leaves_nothing_behind_but_the_users_claims(bed: Testbed, served: Loop) -> None:
    assert "finalizers" not in bed.get(served.name).json["metadata"]
    bed.kubectl("delete", "e3d", served.name, "--wait=true")
    label = f"eagle3.dev/name={served.name}"
    kinds = "jobs,pods,deployments,services,replicasets"
    wait_for("its children to go", 120, lambda: not bed.kubectl("get", kinds, "-l", label, "-o", "name").strip())
    claims = set(bed.kubectl("get", "pvc", "-o", "name").split())
    assert claims >= {f"persistentvolumeclaim/{name}" for name in ("models", "data", "features", "drafts")}
