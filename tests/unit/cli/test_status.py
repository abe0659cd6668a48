"""``kubectl eagle3 status``: one look at where an object stands."""

from dataclasses import replace
from datetime import timedelta

from eagle3_api.conditions import Reason
from eagle3_api.jobs import LoadResult, Progress, PublishResult, StoredDraft
from eagle3_operator.cli.status import status_text
from unit.decide.world import START, World, serving_draft, serving_plain, trained
from unit.samples import measured


def paragraphs(world: World) -> dict[str, list[str]]:
    """Of the text, by their first word."""
    return {part.split()[0]: part.splitlines() for part in status_text(world.obj, world.now).split("\n\n")}


def test_an_object_that_nobody_looked_at_says_so() -> None:
    assert "has not looked at it yet" in status_text(World().obj, START)


def test_stages_say_what_they_made_and_where() -> None:
    lines = paragraphs(trained())["STAGE"]
    told = {line.split()[0]: line for line in lines[1:]}
    assert all(told[stage].split()[1] == "Succeeded" for stage in ("inspect", "extract", "train", "convert"))
    assert "/eagle3/drafts/" in told["convert"]


def test_where_else_the_draft_is_stands_below() -> None:
    bucket = {"url": "s3://drafts/llm"}
    world = trained(World().edit(publish={"oci": {"reference": "r.io/llm/kimi"}, "objectStore": bucket}))
    assert "PUBLISHED" not in paragraphs(world)
    folder = "s3://drafts/llm/sha256-" + "a" * 64
    stored = StoredDraft(address=folder, digest="sha256:" + "a" * 64, provenance=f"{folder}/provenance/sha256-b.json")
    world.finish(
        "publish", PublishResult(reference="r.io/llm/kimi@sha256:b", digest="sha256:b", stored=stored, bytes=9)
    )
    assert paragraphs(world)["PUBLISHED"][1:] == ["r.io/llm/kimi@sha256:b", folder]


def test_a_failed_stage_says_why_once() -> None:
    world = World().settle()
    world.finish("inspect").fail("extract", Reason.STORAGE_TOO_SMALL, "lacks 1.2 TiB")
    told = paragraphs(world)
    assert "".join(map("".join, told.values())).count("lacks 1.2 TiB") == 1
    assert told["kimi"][1].startswith("lacks 1.2 TiB")
    assert [line.split()[2:] for line in told["CONDITION"] if "StorageTooSmall" in line] == [
        ["StorageTooSmall", "as", "above"]
    ] * 2
    assert [line.split()[3] for line in told["STAGE"] if line.startswith("extract")] == ["StorageTooSmall"]


def test_revisions_stand_with_their_measurements_side_by_side() -> None:
    _, plain, draft = paragraphs(serving_draft())["REVISION"]
    assert plain.split()[0] == "r0"
    assert "none" in plain.split()
    assert "2.71" in draft
    assert "2.74" in draft
    assert "1.41x" in draft


def test_what_was_measured_at_several_loads_stands_load_by_load() -> None:
    assert "LOAD" not in paragraphs(serving_draft())
    costly = LoadResult(concurrency=32, tokens_per_second=700, accept_length=2.7, break_even=3.5)
    costly = costly.model_copy(update={"baseline_tokens_per_second": 900.0})
    world = trained(World().edit(probe={"loads": [32]}))
    world.ready(0).finish("probe", measured(loads=[LoadResult(concurrency=32, tokens_per_second=900)]))
    world.ready(1).finish("probe", measured(accept=2.71, speed=126.9, loads=[costly]))
    assert [line.split() for line in paragraphs(world)["LOAD"]] == [
        ["LOAD", "REVISION", "ACCEPT", "BREAK-EVEN", "TOK/S", "SPEEDUP"],
        ["1", "r0", "90.0"],
        ["32", "r0", "900.0"],
        ["1", "r1", "2.71", "1.94", "126.9", "1.41x"],
        ["32", "r1", "2.70", "3.50", "700.0", "0.78x"],
    ]


def test_a_rejected_revision_and_who_serves_are_seen_at_once() -> None:
    world = serving_plain().ready(1).finish("probe", measured(accept=1.0, speed=54.8))
    told = paragraphs(world)
    assert any(line.startswith("r1") and "Rejected" in line for line in told["REVISION"])
    assert any(line.startswith("RevisionProven") and "SlowerThanBaseline" in line for line in told["CONDITION"])


def test_traffic_is_told_window_by_window() -> None:
    world = serving_draft().window().window()
    lines = paragraphs(world)["r1"]
    assert lines[0] == "r1 under traffic"
    assert len(lines) == 4


def test_what_is_under_way_says_how_long_it_has_been_and_how_long_it_will_be() -> None:
    world = World().settle().finish("inspect").settle()
    progress = Progress(done=0.62, message="epoch 4/5", seconds_left=12240, time=world.now.timestamp())
    world._put_job(replace(world.job("extract"), started_at=world.now - timedelta(hours=2), progress=progress))
    world.settle()
    (line,) = (line for line in paragraphs(world)["STAGE"] if line.startswith("extract"))
    assert "62%, epoch 4/5, 3.4h left" in line
    assert "2h00m" in line


def test_what_only_waits_for_its_turn_is_not_told() -> None:
    told = "\n".join(paragraphs(World().settle())["CONDITION"])
    assert "Pending" not in told
    assert "Accepted" in told


def test_what_is_refused_of_an_object_that_is_ready_is_told() -> None:
    said = status_text(serving_draft(World(refuses=("PodDisruptionBudget/.*",))).window().obj, START)
    assert "Ready=True" in said
    assert "PodDisruptionBudget kimi-servers could not be applied" in said


def test_windows_without_traffic_take_one_line_together() -> None:
    world = serving_draft().window().window(0, 0, 0).window(0, 0, 0)
    lines = paragraphs(world)["r1"]
    assert len(lines) == 4
    assert lines[-1].startswith("none in 2 of the last 3 windows, until 2026")
