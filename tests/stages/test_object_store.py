"""Features in a real S3-compatible object store: made, read, refused and removed as on a volume."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from eagle3_api.artifacts import MANIFEST
from eagle3_api.checkpoints.safetensors import read_header
from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    BUCKET_AUTHORITY,
    BucketConfig,
    CleanConfig,
    DataConfig,
    ExitCode,
    ExtractConfig,
    ObjectReference,
    ObjectStoreConfig,
    StageName,
)
from eagle3_api.manifest import File, Manifest
from eagle3_draft import clean
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.errors import StageError
from eagle3_draft.extract import run as run_extract
from eagle3_draft.features import Features, FeatureWriter, Header, LastState, Sample, Split, publish_store
from eagle3_draft.runtime.termination import interrupted, interrupting
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.bucket import PIECE_BYTES, Bucket, Patience
from eagle3_draft.storage.object_store import FIELD, SHARDS, ObjectStore
from eagle3_draft.storage.places import place, remove_abandoned
from eagle3_draft.train import run as run_train
from eagle3_draft.train.batches import epoch_steps, share
from objectstore import Server, dripping, gateway, of_its_own, stuck
from operating.web import Certificate, serving_http
from stages.reading_rank import Counting
from testcluster.wait import wait_for
from unit.train import corpus

pytestmark = pytest.mark.stages

KEY = "ab" * 32
HEADER = Header(
    layers=[0, 1],
    hidden_size=64,
    dtype="fp32",
    teacher="LastState",
    vocabulary_size=100,
    tokenizer_digest="t" * 64,
    chat_template_digest="c" * 64,
)
FILE = File(path="prompts.jsonl", size=1, sha256="0" * 64)
PARTS = ["part-00000-of-00002", "part-00001-of-00002"]


@pytest.fixture(autouse=True)
def empty_and_open(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.empty()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


def config(server: Server, **changes: Any) -> ObjectStoreConfig:
    return ObjectStoreConfig(**(server.at.model_dump() | {"cache_bytes": 10**9} | changes))


def sample(seed: int) -> Sample:
    made = torch.Generator().manual_seed(seed)
    return Sample(
        input_ids=torch.randint(0, 100, (50,), dtype=torch.int32, generator=made),
        loss_mask=torch.ones(50, dtype=torch.uint8),
        hidden=torch.randn(50, 128, generator=made),
        teaching=LastState.of(torch.randn(50, 64, generator=made), torch.randn(50, 100, generator=made)),
    )


def extract(root: Path, server: Server, parts: list[str] = PARTS, *, conversations: int = 1) -> Path:
    """Publish parts, each of two shards, and the whole once all are there: what Extract's pods do."""
    at, folder = place(config(server), root), root / "llm" / "tiny" / "extract" / "k1"
    for part in parts:
        writer = FeatureWriter(folder / part, HEADER)
        for number in range(2):
            first = (PARTS.index(part) * 2 + number) * conversations
            samples = [sample(first + one) for one in range(conversations)]
            writer.write(Split.TRAIN, number, [one.input_ids.tolist() for one in samples], samples)
        at.published(folder / part, writer.publish(key=KEY, made_from={}, numbers={}, provenance={}))
    if all(at.finished(folder / part, KEY) for part in PARTS):
        publish_store(folder, PARTS, at, key=KEY, made_from={}, numbers={}, provenance={})
    return folder


def test_what_one_pod_publishes_another_reads_to_the_bit(server: Server, tmp_path: Path) -> None:
    folder = extract(tmp_path / "one", server)
    assert not list(folder.rglob("train-*.safetensors"))  # the pod's disk is free for the next part
    elsewhere = tmp_path / "other" / folder.relative_to(tmp_path / "one")
    features = Features.open(elsewhere, place(config(server), tmp_path / "other"))
    assert len(features.train) == 4
    for number, found in enumerate(features.train.read([3, 0, 2, 1])):
        expected = sample([3, 0, 2, 1][number])
        assert torch.equal(found.hidden, expected.hidden)
        assert torch.equal(found.teaching.greedy, expected.teaching.greedy)


def test_two_pods_share_the_parts_and_a_part_without_its_manifest_is_made_again(server: Server, tmp_path: Path) -> None:
    folder = extract(tmp_path / "one", server, PARTS[:1])
    at = place(config(server), tmp_path / "two")
    whole = tmp_path / "two" / folder.relative_to(tmp_path / "one")
    assert at.finished(whole, KEY) is None
    assert at.finished(whole / PARTS[0], KEY) is not None
    extract(tmp_path / "two", server, PARTS[1:])
    assert at.finished(whole, KEY) is not None
    server.remove(f"llm/tiny/extract/k1/{PARTS[0]}/{MANIFEST}")
    assert (
        place(config(server), tmp_path / "three").finished(tmp_path / "three" / "llm/tiny/extract/k1" / PARTS[0], KEY)
        is None
    )


def test_a_cache_that_is_too_small_for_all_gives_room_and_reads_on(server: Server, tmp_path: Path) -> None:
    folder = extract(tmp_path / "one", server)
    root = tmp_path / "other"
    features = Features.open(
        root / folder.relative_to(tmp_path / "one"), place(config(server, cache_bytes=100_000), root)
    )
    for number in (0, 1, 2, 3, 0, 1):
        assert torch.equal(features.train[number].hidden, sample(number).hidden)
        assert 0 < shard_bytes(root) <= 100_000
    assert len(features.train.read([0, 1, 2, 3])) == 4, "more than fits at a time"
    assert [text.input_ids.tolist() for text in features.train.texts()] == [
        sample(number).input_ids.tolist() for number in range(4)
    ], "counting words gives room as well"
    assert 0 < shard_bytes(root) <= 100_000
    assert not any(str(root / SHARDS) in line for line in Path("/proc/self/maps").read_text().splitlines()), (
        "what was evicted would stay on the disk as long as it is mapped"
    )


def shard_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / SHARDS).iterdir())


def test_the_ranks_of_a_pod_read_each_conversation_once_and_share_what_is_downloaded(
    server: Server, tmp_path: Path
) -> None:
    """Where all shards fit on the disk, and where three of the four do."""
    written = extract(tmp_path / "one", server, conversations=5)
    of_shard = max(len(server.read(name)) for name in server.objects() if "train-" in name)
    limits, lengths = [of_shard * 8, of_shard * 3], [50] * 20
    caches = [
        (str(tmp_path / str(limit)), config(server, cache_bytes=limit).model_dump_json(by_alias=True))
        for limit in limits
    ]
    steps = epoch_steps(lengths, 300, seed=0, epoch=0)
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "stages.reading_rank", written.relative_to(tmp_path / "one")),
                json.dumps([share(step, lengths, 2)[rank] for step in steps]),
                *chain.from_iterable(caches),
            ],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        for rank in range(2)
    ]
    told = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    at = place(config(server), tmp_path / "one")
    manifest = artifacts.parsed(written, at.manifest_text(written))
    published = load(at.content(written, manifest.file("lengths.safetensors")))["train.digests"]
    for limit, said in zip(limits, zip(*told, strict=True), strict=True):
        read = {int(index): digests for one in said for index, digests in one["digests"].items()}
        assert sum(len(one["digests"]) for one in said) == 20, "each in one rank"
        assert read == {index: [bytes(published[index].flatten().tolist()).hex()] for index in range(20)}, "and once"
        assert max(one["most"] for one in said) <= limit
        downloaded = [path for one in said for path in one["downloaded"]]
        assert len(set(downloaded)) == 4
        assert len(downloaded) == 4 or limit < of_shard * 4, "a shard once for both"


def test_an_object_of_which_a_byte_was_flipped_is_refused(server: Server, tmp_path: Path) -> None:
    folder = extract(tmp_path / "one", server)
    name, copy = f"llm/tiny/extract/k1/{PARTS[1]}/train-00000.safetensors", tmp_path / "shard"
    copy.write_bytes(server.read(name))
    flip(copy)
    server.write(name, copy.read_bytes())
    at = Counting(config(server), tmp_path / "other")
    features = Features.open(tmp_path / "other" / folder.relative_to(tmp_path / "one"), at)
    with pytest.raises(
        StageError, match=r"part-00001-of-00002/train-00000[.]safetensors .* was changed since"
    ) as raised:
        features.train[2]
    assert raised.value.reason == Reason.CORRUPT_ARTIFACT
    assert len(at.downloaded) == 2, "it might have been damaged on its way"


def flip(shard: Path) -> None:
    """Another bit in the states of its first conversation."""
    content = bytearray(shard.read_bytes())
    content[read_header(shard).tensors["hidden"].begin] ^= 1
    shard.write_bytes(content)


def cut(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size - 1)


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_copy_on_the_pod_s_disk_is_fetched_again(
    server: Server, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = extract(tmp_path / "one", server)
    other, root = tmp_path / "other" / folder.relative_to(tmp_path / "one"), tmp_path / "other"
    assert len(Features.open(other, place(config(server), root)).train[:]) == 4
    for path in (root / SHARDS).glob("[0-9a-f]*"):
        damage(path)
    at = Counting(config(server), root)
    features = Features.open(other, at)
    for number, found in enumerate(features.train[:]):
        assert torch.equal(found.teaching.greedy, sample(number).teaching.greedy)
        assert torch.equal(found.hidden, sample(number).hidden)
    assert len(set(at.downloaded)) == len(at.downloaded) == 4


def test_a_table_that_the_store_gives_out_otherwise_than_it_was_published_is_refused(
    server: Server, tmp_path: Path
) -> None:
    folder = extract(tmp_path / "one", server)
    table = f"{folder.relative_to(tmp_path / 'one')}/lengths.safetensors"
    server.write(table, server.read(table)[:-1] + b"?")
    with pytest.raises(StageError, match=r"lengths[.]safetensors has the digest .* was changed since"):
        Features.open(folder, place(config(server), tmp_path / "one"))


def test_what_was_not_uploaded_whole_is_not_finished_though_its_manifest_lies_on_the_pod_s_disk(
    server: Server, tmp_path: Path
) -> None:
    root = tmp_path / "one"
    at, folder = place(config(server), root), root / "llm" / "tiny" / "extract" / "k1"
    writer = FeatureWriter(folder, HEADER)
    writer.write(Split.TRAIN, 0, [sample(0).input_ids.tolist()], [sample(0)])
    manifest = writer.publish(key=KEY, made_from={}, numbers={}, provenance={})

    def give_up(done: int) -> None:
        raise interrupted()

    with pytest.raises(StageError) as raised:
        at.published(folder, manifest, give_up)
    assert raised.value.code == ExitCode.INTERRUPTED
    assert at.finished(folder, KEY) is None
    assert place(config(server), root).finished(folder, KEY) is None
    at.published(folder, manifest)
    assert at.finished(folder, KEY) == manifest
    assert not list(folder.glob("*")), "the disk is free for the next part"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_pod_that_was_taken_for_lost_changes_nothing_of_a_part_that_another_has_finished(
    server: Server, tmp_path: Path, meanwhile: bool
) -> None:
    """Its states differ in their last bits: the manifest of one over the shards of both would be of neither."""
    successor = extract(tmp_path / "successor", server, PARTS[:1] if not meanwhile else [])
    at, folder = place(config(server), tmp_path / "zombie"), tmp_path / "zombie" / "llm" / "tiny" / "extract" / "k1"
    writer = FeatureWriter(folder / PARTS[0], HEADER)
    for number in range(2):
        writer.write(Split.TRAIN, number, [sample(9).input_ids.tolist()], [sample(9)])
    manifest = writer.publish(key=KEY, made_from={}, numbers={}, provenance={})

    def finished_by_the_other(done: int) -> None:
        if meanwhile and done:
            extract(tmp_path / "successor", server, PARTS[:1])

    with pytest.raises(StageError, match="another pod has finished llm/tiny/extract/k1/part-00000") as raised:
        at.published(folder / PARTS[0], manifest, finished_by_the_other)
    assert (raised.value.code, raised.value.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    extract(tmp_path / "successor", server, PARTS[1:])
    features = Features.open(successor, place(config(server), tmp_path / "successor"))
    assert torch.equal(features.train[0].hidden, sample(0).hidden)


def test_clean_removes_the_objects_of_every_key_and_nothing_of_others(server: Server, tmp_path: Path) -> None:
    folder = extract(tmp_path / "one", server)
    for name in server.objects():
        server.write(name.replace(f"/{folder.name}/", "/former/"), server.read(name))
    server.write(f"llm/other/{MANIFEST}", b"{}")
    result = clean.run(
        CleanConfig(
            owner=ObjectReference(namespace="llm", name="tiny", uid="u"),
            key="c" * 16,
            object_store=config(server),
        ),
        features_root=tmp_path / "one",
    )
    assert result.files == 2 * (2 * 4 + 2)
    assert server.objects() == {f"llm/other/{MANIFEST}"}


def test_a_store_tells_what_is_finished_from_what_was_begun(server: Server, tmp_path: Path) -> None:
    folder = extract(tmp_path / "one", server, PARTS[:1])
    at = place(config(server), tmp_path / "one")
    assert at.inside(folder.parent) == {folder: False}
    extract(tmp_path / "one", server, PARTS[1:])
    assert at.inside(folder.parent) == {folder: True}
    assert at.inside(folder.parent.with_name("nothing")) == {}


def test_clean_removes_more_objects_than_a_store_lists_at_a_time(server: Server, tmp_path: Path) -> None:
    names = [f"llm/tiny/extract/k1/part-{number:05}/{MANIFEST}" for number in range(1100)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: server.write(name, b"{}"), names))
    folder = tmp_path / "llm" / "tiny" / "extract" / "k1"
    at = place(config(server), tmp_path)
    assert len(Bucket(server.at, FIELD).folders("llm/tiny/extract/k1")) == 1100
    assert at.remove(folder.parent) == (1100, 2200)
    assert server.objects() == set()


@pytest.mark.parametrize("name", ["a b", "ünï", "100% + #1?", "*[x]", "a=b&c;d", "~tilde", "'\"<&>"])
def test_clean_removes_what_people_left_there_whatever_its_name(server: Server, tmp_path: Path, name: str) -> None:
    server.write(f"llm/tiny/extract/{name}/{name}", b"of somebody's")
    server.write(f"llm/tinyextract/{name}", b"of others")
    at = place(config(server), tmp_path)
    assert at.inside(tmp_path / "llm" / "tiny" / "extract") == {tmp_path / "llm" / "tiny" / "extract" / name: False}
    at.remove(tmp_path / "llm" / "tiny")
    assert server.objects() == {f"llm/tinyextract/{name}"}


@pytest.mark.parametrize("environment", [{}, {"AWS_CHECKSUM_ALGORITHM": "SHA256"}])
def test_a_file_that_is_sent_in_pieces_arrives_whole(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    """And where the store wants a checksum of each request."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("eagle3_draft.storage.bucket.ONE_REQUEST_BYTES", PIECE_BYTES)
    (tmp_path / "large").write_bytes(content := os.urandom(2 * PIECE_BYTES + 1))
    bucket, done = Bucket(server.at, FIELD), list[int]()
    try:
        bucket.upload({"large": tmp_path / "large"}, done.append)
    except StageError as error:
        if server.is_own or not environment:
            raise
        assert "AWS_CHECKSUM_ALGORITHM" in error.message
        pytest.skip("the store that is named knows no checksums")
    bucket.write("small", b"x")
    assert bucket.size("large") == done[-1] == len(content)
    assert b"".join(bucket.blocks("large", len(content))) == content
    assert bucket.read("small") == b"x"


# ---------------------------------------------------------------------------------------------- what does not answer


#: So short that tests need not wait for it.
IMPATIENT = Patience(silence=0.3, trying=0.4, pause=0.05)


@pytest.mark.parametrize(
    ("ask", "about"),
    [
        (lambda at, folder: at.check(folder.parent), "extract"),
        (lambda at, folder: at.finished(folder, KEY), "k1/manifest.json"),
        (lambda at, folder: at.content(folder, FILE), "k1/prompts.jsonl"),
        (lambda at, folder: at.inside(folder.parent), "extract"),
        (lambda at, folder: at.remove(folder), "k1"),
    ],
)
def test_a_bucket_that_takes_a_question_up_and_never_answers_is_told_of_in_bounded_time(
    plain: Server, tmp_path: Path, ask: Callable[[ObjectStore, Path], object], about: str
) -> None:
    with stuck(plain.url, f"/{plain.bucket}") as way:
        at, began = ObjectStore(config(plain, endpoint=way.url), tmp_path, IMPATIENT), time.monotonic()
        with pytest.raises(StageError) as raised:
            ask(at, tmp_path / "llm" / "tiny" / "extract" / "k1")
        took = time.monotonic() - began
    assert (raised.value.code, raised.value.reason) == (ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE)
    told = f"{plain.at.url} at {way.url}: it does not answer about llm/tiny/extract"
    assert told in raised.value.message
    assert about in raised.value.message
    assert re.search(r"; \d+ tries in \d+ s", raised.value.message)
    assert took < 30


def test_a_bucket_that_answers_nothing_is_told_of_within_two_minutes() -> None:
    assert Patience().trying + Patience().silence <= 120


def test_a_stage_that_is_ended_waits_for_no_bucket(plain: Server) -> None:
    """What waits for somebody else is interrupted where it waits: a fetch. The signal wakes nobody who waits here, as it would not
    if it came just before the wait began."""
    with stuck(plain.url, f"/{plain.bucket}") as way, ThreadPoolExecutor(1) as other, interrupting():
        bucket = Bucket(BucketConfig(url=f"s3://{plain.bucket}", endpoint=way.url), "draft.checkpoint")

        def end() -> float:
            assert way.reached.wait(20)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            return time.monotonic()

        ended = other.submit(end)
        with pytest.raises(KeyboardInterrupt):
            bucket.read("manifest.json")
        assert time.monotonic() - ended.result() < 5


def test_what_comes_slowly_comes_though_it_takes_longer_than_silence_is_borne(plain: Server, tmp_path: Path) -> None:
    folder, name = extract(tmp_path / "one", plain), "train-00000.safetensors"
    shard = plain.read(f"{folder.relative_to(tmp_path / 'one')}/{PARTS[0]}/{name}")
    with dripping(plain.url, len(shard) // 20) as way:
        at = ObjectStore(config(plain, endpoint=way.url), tmp_path / "one", IMPATIENT)
        part = artifacts.parsed(folder, at.manifest_text(folder / PARTS[0]))
        assert at.content(folder / PARTS[0], part.file(name)) == shard


def test_a_file_that_takes_longer_than_a_request_may_comes_block_by_block(
    plain: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3_draft.storage.bucket.BLOCK_BYTES", 5_000)
    content = os.urandom(25_000)
    plain.write("x", content)
    with dripping(plain.url, 1000) as way:
        patience = Patience(transfer=0.8, trying=0.4)  # the one is longer than the other, as a pod has them
        bucket = Bucket(config(plain, endpoint=way.url), "draft.checkpoint", patience=patience)
        began = time.monotonic()
        blocks = list(bucket.blocks("x", len(content)))
        took = time.monotonic() - began
    assert b"".join(blocks) == content
    assert max(map(len, blocks)) == 5_000
    assert took > patience.transfer


def test_while_nothing_of_an_upload_gets_there_the_bucket_is_not_asked_who_has_finished_it(
    plain: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question might wait for two minutes, and the pod's end for it."""
    monkeypatch.setattr("eagle3_draft.storage.bucket.LOOK_SECONDS", 0.01)
    root, asked, looks = tmp_path / "one", list[str](), iter(range(5))
    folder = root / "llm" / "tiny" / "extract" / "k1"
    writer = FeatureWriter(folder, HEADER)
    writer.write(Split.TRAIN, 0, [sample(0).input_ids.tolist()], [sample(0)])
    manifest = writer.publish(key=KEY, made_from={}, numbers={}, provenance={})

    def size(bucket: Bucket, path: str, ask: Callable[[Bucket, str], int] = Bucket.size) -> int:
        asked.append(path)
        return ask(bucket, path)

    def end_at_last(done: int) -> None:
        if next(looks, None) is None:
            raise interrupted()

    monkeypatch.setattr(Bucket, "size", size)
    with (
        stuck(plain.url, f"PUT /{plain.bucket}") as way,
        pytest.raises(StageError, match=interrupted().message),
    ):
        place(config(plain, endpoint=way.url), root).published(folder, manifest, end_at_last)
    assert next(looks, None) is None
    assert asked == ["llm/tiny/extract/k1/manifest.json"]


# --------------------------------------------------------------------------------------------- what lets us not in


@pytest.mark.parametrize(
    ("changes", "environment", "words"),
    [
        ({"url": "s3://eagle3-tests-nowhere/team"}, {}, "no such bucket"),
        ({}, {"AWS_SECRET_ACCESS_KEY": "another"}, "it does not let us at .*; see the Secret"),
        ({}, {"AWS_ACCESS_KEY_ID": "nobody"}, "it does not let us at [^,]*; see the Secret"),
    ],
)
def test_a_store_that_lets_us_not_in_is_named(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    environment: dict[str, str],
    words: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    at = ObjectStore(config(server, **changes), tmp_path)
    with pytest.raises(StageError, match=words) as raised:
        at.check(tmp_path / "llm" / "tiny" / "extract")
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE)


def test_a_store_that_speaks_no_tls_is_told_from_one_that_is_away(plain: Server, tmp_path: Path) -> None:
    at = ObjectStore(config(plain, endpoint=plain.url.replace("http:", "https:")), tmp_path, Patience(trying=0.4))
    with pytest.raises(StageError, match=r"it speaks no TLS; begin https://.* with http://") as raised:
        at.check(tmp_path / "llm")
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE)


def test_a_store_that_looks_at_the_region_is_told_of_with_the_field_and_its_own_words(
    server: Server, tmp_path: Path
) -> None:
    at = ObjectStore(config(server, region="xx-nowhere-9"), tmp_path)
    try:
        at.check(tmp_path / "llm" / "tiny" / "extract")
    except StageError as error:
        assert (error.code, error.reason) == (ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE)
        assert "not in the region xx-nowhere-9; set storage.features.objectStore.region" in error.message
        assert re.search(r"[(][A-Z]+: 400 Bad Request: \w+: ", error.message)
    else:
        if server.is_own:
            pytest.fail("it was let in")
        pytest.skip("the store that is named takes any region")


def test_inspect_leaves_nothing_in_a_bucket_that_it_may_write_to(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractions = tmp_path / "llm" / "tiny" / "extract"
    at = ObjectStore(config(server), tmp_path)
    at.check(extractions)
    assert server.objects() == set()
    with monkeypatch.context() as killed:
        killed.setattr(Bucket, "remove", lambda *_: None)
        at.check(extractions)
    assert len(server.objects()) == 1
    remove_abandoned(extractions / "k1", StageName.EXTRACT, at)
    assert server.objects() == set(), "and if it is killed, the next extraction removes it"


@of_its_own
def test_a_bucket_that_we_may_only_read_is_told_before_anything_is_extracted(tmp_path: Path) -> None:
    with gateway(tmp_path / "s3", "--readonly") as server:
        at = ObjectStore(config(server), tmp_path)
        assert at.inside(tmp_path / "llm") == {}
        with pytest.raises(StageError, match=r"it does not let us at llm/tiny/extract/.* [(]PUT: 403") as raised:
            at.check(tmp_path / "llm" / "tiny" / "extract")
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE)


@of_its_own
def test_a_store_whose_certificate_an_authority_of_the_user_s_signed_is_trusted_by_what_the_secret_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, certificate = certificates(tmp_path)
    with gateway(tmp_path / "s3", "--cert", certificate.file, "--key", certificate.key, scheme="https") as server:
        # It is tried again, like all to which no connection comes about
        at = ObjectStore(config(server), tmp_path, Patience(trying=0.4))
        with pytest.raises(StageError, match=r"put the authority's into ca[.]crt in the Secret") as raised:
            at.check(tmp_path / "llm")
        assert raised.value.code == ExitCode.BAD_INPUT
        monkeypatch.setenv(BUCKET_AUTHORITY, authority.read_text())
        ObjectStore(config(server), tmp_path).check(tmp_path / "llm")
    monkeypatch.setenv(BUCKET_AUTHORITY, "no certificate")
    with pytest.raises(StageError, match=r"ca[.]crt .* is not a certificate"):
        ObjectStore(config(server), tmp_path)


def test_a_setting_in_the_environment_that_makes_no_sense_is_told_as_what_it_is(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "perhaps")
    with pytest.raises(StageError, match=r"storage[.]features[.]objectStore: .*perhaps") as raised:
        place(config(server), Path("/eagle3/features"))
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)
    assert "ca.crt" not in raised.value.message


class Exchange(BaseHTTPRequestHandler):
    """Stands in for the service that exchanges a service account's token for keys, which here are the server's own."""

    store: Server

    def do_POST(self) -> None:
        names = {
            "AccessKeyId": "ACCESS_KEY_ID",
            "SecretAccessKey": "SECRET_ACCESS_KEY",
            "SessionToken": "SESSION_TOKEN",
        }
        keys = {name: self.store.environment.get(f"AWS_{ours}", "") for name, ours in names.items()}
        said = "".join(
            f"<{name}>{value}</{name}>" for name, value in (keys | {"Expiration": "2100-01-01T00:00:00Z"}).items()
        )
        for name in ("Credentials", "AssumeRoleWithWebIdentityResult", "AssumeRoleWithWebIdentityResponse"):
            said = f"<{name}>{said}</{name}>"
        known = "Action=AssumeRoleWithWebIdentity" in self.path and "WebIdentityToken=of-the-pod" in self.path
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def exchange(server: Server, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Its address, and the authority that signed its certificate: it is asked over TLS alone."""
    authority, certificate = certificates(tmp_path)
    with serving_http(type("Ours", (Exchange,), {"store": server}), certificate=certificate) as port:
        yield f"https://127.0.0.1:{port}", authority.read_text()


@pytest.mark.parametrize(
    ("token", "words"), [("of-the-pod", None), ("another", r"see the role of placement[.]service")]
)
def test_a_pod_whose_service_account_has_a_role_needs_no_keys(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exchange: tuple[str, str],
    token: str,
    words: str | None,
) -> None:
    if not server.is_own and "AWS_SESSION_TOKEN" not in server.environment:
        pytest.skip("keys that were exchanged have a session token, and the store that is named was named without one")
    (tmp_path / "token").write_text(token)
    for name in server.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/features")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", exchange[0])
    monkeypatch.setenv(BUCKET_AUTHORITY, exchange[1] + server.environment.get(BUCKET_AUTHORITY, ""))
    at = ObjectStore(config(server), tmp_path)
    with nullcontext() if words is None else pytest.raises(StageError, match=words):
        at.check(tmp_path / "llm" / "tiny" / "extract")


@of_its_own
@pytest.mark.parametrize(
    ("giver", "status", "code", "words"),
    [
        (
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials"},
            429,
            ExitCode.INTERRUPTED,
            "who gives pods their credentials does not answer",
        ),
        (
            {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"},
            404,
            ExitCode.BAD_INPUT,
            r"or is refused them[.] Name them in the Secret in .* or see placement[.]serviceAccountName",
        ),
        ({}, 503, ExitCode.INTERRUPTED, "who gives pods their credentials does not answer"),
    ],
)
def test_who_gives_a_pod_its_keys_on_its_node_is_told_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, giver: dict[str, str], status: int, code: ExitCode, words: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("of-the-pod")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    for name, value in giver.items():
        monkeypatch.setenv(name, value)

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path.startswith("http://169.254.") else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with serving_http(Refusing) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")  # which stands for the node's own addresses
        store = ObjectStoreConfig(url="s3://features", endpoint="http://s3.test", cache_bytes=1)
        with pytest.raises(StageError, match=words) as raised:
            ObjectStore(store, tmp_path, IMPATIENT).check(tmp_path / "llm")
    assert (raised.value.code, raised.value.reason) == (code, Reason.STORAGE_UNAVAILABLE)


def certificates(folder: Path) -> tuple[Path, Certificate]:
    """An authority's own, and one that it signed for this machine."""
    authority, made = (
        Certificate(folder / "ca.pem", folder / "ca.key"),
        Certificate(folder / "s3.pem", folder / "s3.key"),
    )
    signed: tuple[str | Path, ...] = (
        *(
            "-keyout",
            made.key,
            "-out",
            made.file,
            "-subj",
            "/CN=127.0.0.1",
            "-CA",
            authority.file,
            "-CAkey",
            authority.key,
        ),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"),
    )
    for arguments in (("-keyout", authority.key, "-out", authority.file, "-subj", "/CN=authority"), signed):
        command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *arguments)
        subprocess.run(command, check=True, capture_output=True)
    return authority.file, made


@of_its_own
def test_a_store_that_wants_the_bucket_in_the_host_s_name_gets_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gateway(tmp_path / "s3", "--virtual-domain", "s3.test") as server:
        server.write(f"llm/tiny/extract/k1/{MANIFEST}", b"{}")
        monkeypatch.setenv("http_proxy", server.url)  # which stands for a resolver that knows all names below s3.test
        monkeypatch.delenv("no_proxy", raising=False)
        store = config(server, endpoint="http://s3.test", addressing="VirtualHost")
        folder = tmp_path / "llm" / "tiny" / "extract"
        at = ObjectStore(store, tmp_path)
        at.check(folder)
        assert at.inside(folder) == {folder / "k1": True}


def test_each_bucket_is_let_in_by_the_keys_of_its_own_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What speaks to them likes to remember who spoke to the same address before."""
    first = Bucket(server.at, FIELD)
    first.write("x", b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StageError, match="it does not let us at x"):
        Bucket(server.at, FIELD).read("x")
    assert first.read("x") == b"1"


@pytest.mark.parametrize("missing", ["obstore.fsspec", "obstore.store"])
def test_an_image_that_cannot_speak_to_a_store_says_how_it_would_learn_to(
    server: Server, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(StageError, match="--extra s3") as raised:
        place(config(server), Path("/eagle3/features"))
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)


OWNER = ObjectReference(namespace="llm", name="tiny", uid="u")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    return corpus.make(tmp_path_factory.mktemp("corpus"), train=1, held_out=1)


def extraction(target: corpus.Corpus, tmp_path: Path, store: ObjectStoreConfig, pod: str) -> ExtractConfig:
    """Of 16 conversations, in a pod with a disk of its own."""
    data = tmp_path / "train.jsonl"
    turns = [
        [{"role": "user", "content": f"w{3 + i} w{5 + 2 * i}"}, {"role": "assistant", "content": f"w4 w{i + 9}"}]
        for i in range(16)
    ]
    data.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    return ExtractConfig(
        owner=OWNER,
        key="ec" * 8,
        folder=str(tmp_path / pod / "llm" / "tiny" / "extract" / "k1"),
        target=str(target.target),
        target_digest=target.target_digest,
        data=DataConfig(conversations=str(data), max_length=100, holdout=0.3),
        data_digest=Conversations.read(data).sha256,
        object_store=store,
        layers=corpus.LAYERS,
        dtype="fp32",
        sglang_version="0.5.21",
    )


def test_an_upload_on_which_nothing_moves_is_told_of_and_given_up_when_the_pod_is_to_end(
    plain: Server, target: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pod makes that part again, and no other."""
    monkeypatch.setattr("eagle3_draft.extract.making.QUIET_SECONDS", 1.0)
    parts = [f"llm/tiny/extract/k1/part-0000{number}-of-00002" for number in range(2)]
    said = io.StringIO()

    def end() -> None:
        wait_for(
            "a word about the upload", 60, lambda: re.search("part 2 of 2: 0 B of .*, nothing for", said.getvalue())
        )
        os.kill(os.getpid(), signal.SIGTERM)

    with stuck(plain.url, f"PUT {plain.path(parts[1])}") as way, ThreadPoolExecutor(1) as other, redirect_stdout(said):
        ended = other.submit(end)
        with pytest.raises(StageError) as raised:
            run_extract(extraction(target, tmp_path, config(plain, endpoint=way.url), "pod-1"), part_conversations=8)
        ended.result()
    assert (raised.value.code, raised.value.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    there = plain.objects()
    assert f"{parts[0]}/{MANIFEST}" in there
    assert not any(name.startswith(parts[1]) for name in there)
    first = plain.written(f"{parts[0]}/{MANIFEST}")
    whole = run_extract(extraction(target, tmp_path, config(plain), "pod-2"), part_conversations=8)
    assert whole.whole
    assert plain.written(f"{parts[0]}/{MANIFEST}") == first
    # And one that finds the whole published by another when it is about to do it
    monkeypatch.setattr(ObjectStore, "finished", seeing_late("k1", ObjectStore.finished))
    assert run_extract(extraction(target, tmp_path, config(plain), "pod-3"), part_conversations=8) == whole


def seeing_late(folder: str, finished: Callable[..., Manifest | None]) -> Callable[..., Manifest | None]:
    """As another pod's manifest is seen that comes between two looks."""
    looks = iter([None])

    def found(at: ObjectStore, path: Path, key: str) -> Manifest | None:
        return finished(at, path, key) if path.name != folder or next(looks, path) else None

    return found


def test_a_draft_is_extracted_trained_and_cleaned_up_after_without_a_volume_for_features(
    server: Server, target: corpus.Corpus, tmp_path: Path
) -> None:
    """The stages themselves, one after the other, each with an empty disk as its pod has it."""
    store = config(server)
    extract_config = extraction(target, tmp_path, store, "pod-1")
    result = run_extract(extract_config)
    assert result.whole
    assert run_extract(extract_config) == result

    features = tmp_path / "pod-2" / "llm" / "tiny" / "extract" / "k1"
    drafts = tmp_path / "drafts" / "llm" / "tiny" / "train" / "t1"
    abandoned = drafts.with_name("t0")
    (abandoned / ".scratch" / ".step-3").mkdir(parents=True)
    train_config = corpus.train_config(
        target,
        tmp_path,
        folder=str(drafts),
        scratch=str(drafts / ".scratch"),
        features=str(features),
        features_key="ec" * 8,
        object_store=store,
        epochs=1,
    )
    assert run_train(train_config).held_out == result.held_out
    assert {path.name for path in drafts.iterdir()} >= {
        "manifest.json",
        "model.safetensors",
        "prompts.jsonl",
        "chat_template.jinja",
    }
    assert not (drafts / ".scratch").exists()
    assert not abandoned.exists()

    removed = tmp_path / "pod-3"
    clean.run(CleanConfig(owner=OWNER, key="c" * 16, object_store=store), features_root=removed)
    assert server.objects() == set()
