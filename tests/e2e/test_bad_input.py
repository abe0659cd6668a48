"""What is wrong with an object, its data or its volumes is said once, in words, and costs nothing that was made before."""

import re
from typing import Any

import pytest

from testbed import Draft, Testbed, tiny
from testbed.elsewhere import Elsewhere
from testcluster.wait import wait_for

pytestmark = pytest.mark.timeout(600)


def inspected(bed: Testbed, name: str, **sections: Any) -> Draft:
    """An object that is refused by its inspection."""
    manifest = tiny.manifest(name)
    for section, changes in sections.items():
        manifest["spec"][section] = {**manifest["spec"][section], **changes}
    return refused(bed, manifest)


def refused(bed: Testbed, manifest: dict[str, Any]) -> Draft:
    """The object, as soon as it is not accepted."""
    bed.create(manifest)
    name = manifest["metadata"]["name"]
    return bed.wait(name, lambda draft: draft.says("Accepted", "False"), seconds=120, what="the refusal")


def test_data_that_are_not_there_are_named(bed: Testbed) -> None:
    draft = inspected(bed, "no-data", data={"conversations": "/data/nowhere.jsonl"})
    assert draft.says("Ready", "False", "DataUnreadable")
    assert draft.stalled
    assert "/data/nowhere.jsonl" in str(draft.condition("Accepted"))


def test_a_broken_line_of_the_data_is_named(bed: Testbed) -> None:
    (bed.folder("data") / "broken.jsonl").write_text('{"messages": [}\n')
    draft = inspected(bed, "broken-line", data={"conversations": "/data/broken.jsonl"})
    assert draft.says("Accepted", "False")
    assert "line 1" in str(draft.condition("Accepted"))


def test_a_chat_template_that_shows_no_answer_is_named_before_a_gpu_is_taken(bed: Testbed) -> None:
    (bed.folder("data") / "length.jinja").write_text("{{ messages | length }}")
    draft = inspected(bed, "no-template", data={"chatTemplate": "/data/length.jinja"})
    assert draft.says("Ready", "False", "TemplateMissing")
    assert "64 answers rewritten by the chat template" in str(draft.condition("Accepted"))


def test_a_target_that_is_not_there_is_named(bed: Testbed) -> None:
    """Row 40."""
    draft = inspected(bed, "no-target", target={"model": "/models/nowhere"})
    assert draft.says("Ready", "False", "TargetUnreadable")
    assert "/models/nowhere" in str(draft.condition("Accepted"))


def test_a_repository_that_the_hub_does_not_have_is_named(bed: Testbed, elsewhere: Elsewhere) -> None:
    sections = elsewhere.sections() | {"target": {"model": "acme/nowhere"}}
    draft = refused(bed, tiny.manifest("no-repository", **sections))
    assert draft.says("Ready", "False", "HubNotFound")
    assert draft.stalled
    assert "acme/nowhere" in str(draft.condition("Accepted"))


def test_a_volume_that_is_too_small_is_refused_with_the_bytes_that_are_missing(bed: Testbed) -> None:
    """Row 22."""
    bed.cluster.add_volume("narrow", "1Mi")
    bed.cluster.claim(bed.namespace, "narrow")
    draft = inspected(bed, "too-small", storage={"features": {"claim": "narrow"}})
    assert draft.says("Ready", "False", "StorageTooSmall")
    said = re.search(
        r"need ([\d.]+) MiB; .* has ([\d.]+) (MiB|KiB) free and is ([\d.]+) MiB short", str(draft.condition("Accepted"))
    )
    assert said is not None
    free = float(said[2]) / (1024 if said[3] == "KiB" else 1)
    assert float(said[4]) == pytest.approx(float(said[1]) - free, abs=0.02)


def test_a_claim_that_is_missing_is_waited_for_without_a_job(bed: Testbed) -> None:
    manifest = tiny.manifest("no-claim")
    manifest["spec"]["storage"]["drafts"] = {"claim": "nowhere"}
    bed.create(manifest)
    draft = bed.wait("no-claim", lambda d: d.says("Accepted", "False", "StorageUnavailable"), seconds=60)
    assert "'nowhere'" in str(draft.condition("Accepted"))
    assert not bed.kubectl("get", "jobs", "-l", "eagle3.dev/name=no-claim", "-o", "name").strip()


def test_a_refused_object_is_not_tried_in_a_loop(bed: Testbed) -> None:
    draft = bed.get("no-data")
    job = bed.kubectl("get", "jobs", "-l", "eagle3.dev/name=no-data", "-o", "jsonpath={.items[*].metadata.uid}")
    bed.kill_operator()
    bed.wait_for_operator()
    after = bed.kubectl("get", "jobs", "-l", "eagle3.dev/name=no-data", "-o", "jsonpath={.items[*].metadata.uid}")
    assert after == job
    assert bed.get("no-data").json["metadata"]["resourceVersion"] == draft.json["metadata"]["resourceVersion"]


def test_deleting_an_object_in_the_middle_of_its_work_leaves_no_orphan(bed: Testbed) -> None:
    bed.create(tiny.manifest("gone"))
    label = "eagle3.dev/name=gone"
    wait_for("its first Job", 60, lambda: bed.kubectl("get", "jobs", "-l", label, "-o", "name").strip())
    bed.kubectl("delete", "e3d", "gone", "--wait=true", "--timeout=60s")
    children = "jobs,pods,deployments,services"
    wait_for("its children to go", 120, lambda: not bed.kubectl("get", children, "-l", label, "-o", "name").strip())
