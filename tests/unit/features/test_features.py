"""What was extracted is what is trained on, to the bit."""

import json
import resource
import signal
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf, nan, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle3_api.artifacts import MANIFEST
from eagle3_api.checkpoints.safetensors import BITS, read_header
from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token
from eagle3_api.features import TOP_K, FeatureDtype, TeacherKind
from eagle3_api.jobs import ExitCode, StageName
from eagle3_api.manifest import File, Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.features import (
    Features,
    FeatureWriter,
    Header,
    LastState,
    Sample,
    Split,
    TopK,
    plan_shards,
    publish_store,
    tensors,
    write_shard,
)
from eagle3_draft.features.format import all_finite, sample_of
from eagle3_draft.features.reader import DOWNLOADS, FETCHED_TOGETHER
from eagle3_draft.files import file_digest
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.places import Volume
from testcluster.wait import wait_for

HEADER = Header(
    layers=[-1, 1],
    hidden_size=8,
    dtype="bf16",
    teacher="LastState",
    vocabulary_size=100,
    tokenizer_digest="t" * 64,
    chat_template_digest="c" * 64,
)
KEY = "ab" * 32


def sample(tokens: int, seed: int = 0) -> Sample:
    made = torch.Generator().manual_seed(seed * 1000 + tokens)
    return Sample(
        input_ids=torch.randint(0, 100, (tokens,), dtype=torch.int32, generator=made),
        loss_mask=torch.randint(0, 2, (tokens,), dtype=torch.uint8, generator=made),
        hidden=torch.randn(tokens, 16, generator=made).bfloat16(),
        teaching=LastState(
            last=torch.randn(tokens, 8, generator=made).bfloat16(),
            greedy=torch.randint(0, 100, (tokens,), dtype=torch.int32, generator=made),
            log_normaliser=torch.randn(tokens, generator=made),
        ),
    )


def top_k(one: Sample) -> Sample:
    """The same conversation, of whose answers the most likely tokens are kept."""
    logits = torch.randn(len(one), HEADER.vocabulary_size, generator=torch.Generator().manual_seed(1))
    return Sample(one.input_ids, one.loss_mask, one.hidden, TopK.of(logits))


def ids(samples: Sequence[Sample]) -> list[Sequence[int]]:
    return [array("i", sample.input_ids.tolist()) for sample in samples]


def store(
    folder: Path, train: Sequence[Sequence[Sample]], held_out: Sequence[Sequence[Sample]], header: Header = HEADER
) -> Path:
    writer = FeatureWriter(folder, header)
    for split, shards in ((Split.TRAIN, train), (Split.HELD_OUT, held_out)):
        for number, samples in enumerate(shards):
            writer.write(split, number, ids(samples), samples)
    writer.publish(key=KEY, made_from={}, numbers={"tokens": 7}, provenance={})
    return folder


def assert_same(found: Sample, expected: Sample) -> None:
    ours, theirs = tensors(found), tensors(expected)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(ours[name], theirs[name])


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    train = [[sample(5), sample(1)], [sample(9)]]
    held_out = [[sample(3), sample(4)]]
    features = Features.open(store(tmp_path / "a", train, held_out))
    assert features.header == HEADER
    assert features.manifest.numbers["tokens"] == 7
    assert (len(features.train), len(features.held_out)) == (3, 2)
    assert features.train.lengths.tolist() == [5, 1, 9]
    for found, expected in zip(features.train, [*train[0], *train[1]], strict=True):
        assert_same(found, expected)
    assert_same(features.held_out[-1], held_out[0][1])
    assert [len(part) for part in features.train[1:]] == [1, 9]
    with pytest.raises(IndexError):
        features.train[3]


def test_samples_are_mapped_and_not_copied(tmp_path: Path) -> None:
    features = Features.open(store(tmp_path / "a", [[sample(5)]], [[sample(3)]]))
    address = features.train[0].hidden.data_ptr()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    inside = [
        fields[-1] for fields in maps if int(fields[0].split("-")[0], 16) <= address < int(fields[0].split("-")[1], 16)
    ]
    assert inside == [str(tmp_path / "a" / "train-00000.safetensors")]


def test_an_empty_split_and_an_empty_shard_can_be_read(tmp_path: Path) -> None:
    features = Features.open(store(tmp_path / "a", [[], [sample(2)]], []))
    assert len(features.held_out) == 0
    assert_same(features.train[0], sample(2))


def test_a_second_run_takes_finished_shards_and_makes_the_rest(tmp_path: Path) -> None:
    first, second = [sample(5), sample(1)], [sample(9)]
    FeatureWriter(tmp_path, HEADER).write(Split.TRAIN, 0, ids(first), first)
    (tmp_path / ".train-00001.safetensors.partial").write_bytes(b"killed here")
    again = FeatureWriter(tmp_path, HEADER)
    record = again.resume(Split.TRAIN, 0, ids(first))
    assert record is not None
    assert record.lengths == [5, 1]
    assert again.resume(Split.TRAIN, 1, ids(second)) is None
    again.write(Split.TRAIN, 1, ids(second), second)
    again.publish(key=KEY, made_from={}, numbers={}, provenance={})
    assert [len(part) for part in Features.open(tmp_path).train] == [5, 1, 9]
    assert not list(tmp_path.glob(".*"))


def test_a_shard_of_other_conversations_or_other_bytes_is_made_again(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, HEADER)
    writer.write(Split.TRAIN, 0, ids([sample(5)]), [sample(5)])
    assert writer.resume(Split.TRAIN, 0, ids([sample(5, seed=1)])) is None
    other = FeatureWriter(tmp_path, HEADER.model_copy(update={"layers": [0, 1]}))
    assert other.resume(Split.TRAIN, 0, ids([sample(5)])) is None
    path = tmp_path / "train-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert writer.resume(Split.TRAIN, 0, ids([sample(5)])) is None


def test_shards_of_an_earlier_plan_are_not_published(tmp_path: Path) -> None:
    FeatureWriter(tmp_path, HEADER).write(Split.TRAIN, 7, ids([sample(5)]), [sample(5)])
    store(tmp_path, [[sample(2)]], [[sample(3)]])
    assert not (tmp_path / "train-00007.safetensors").exists()


def test_of_two_pods_that_write_the_same_part_one_publishes_its_own_and_the_other_stops(tmp_path: Path) -> None:
    """The first was taken for lost and runs on: its states differ in their last bits."""
    zombie, successor = FeatureWriter(tmp_path, HEADER), FeatureWriter(tmp_path, HEADER)
    said, shard = ids([sample(5), sample(6)]), (Split.TRAIN, 0)
    ours = [sample(5), sample(6)]
    theirs = [replace(one, hidden=one.hidden + 1) for one in ours]
    how: dict[str, Any] = {"key": "ab" * 32, "made_from": {}, "numbers": {}, "provenance": {}}
    successor.write(*shard, said, ours)
    zombie.write(*shard, said, theirs)
    with pytest.raises(StageError, match="another pod writes") as raised:
        successor.publish(**how)
    assert (raised.value.code, raised.value.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert not (tmp_path / MANIFEST).exists()
    again = FeatureWriter(tmp_path, HEADER)
    assert again.resume(*shard, said) is not None, "what is there is whole, whosever it is"
    again.publish(**how)
    with pytest.raises(StageError, match="another pod has finished"):
        zombie.write(*shard, said, theirs)
    with pytest.raises(StageError, match="another pod has finished"):
        zombie.publish(**how)
    assert torch.equal(Features.open(tmp_path).train[0].hidden, theirs[0].hidden.to(HEADER.torch_dtype))


def test_a_part_that_another_pod_finishes_while_a_shard_is_written_stays_as_it_was_finished(tmp_path: Path) -> None:
    said, shard, ours = ids([sample(5)]), (Split.TRAIN, 0), [sample(5)]
    successor = FeatureWriter(tmp_path, HEADER)
    successor.write(*shard, said, ours)

    class Slow(list[Sample]):
        def __iter__(self) -> Iterator[Sample]:
            if not (tmp_path / MANIFEST).exists():
                successor.publish(key=KEY, made_from={}, numbers={}, provenance={})
            return super().__iter__()

    with pytest.raises(StageError, match="another pod has finished"):
        FeatureWriter(tmp_path, HEADER).write(*shard, said, Slow([replace(ours[0], hidden=ours[0].hidden + 1)]))
    assert not list(tmp_path.glob(".*"))
    assert_same(Features.open(tmp_path).train[0], ours[0])


def test_a_pod_that_is_given_up_between_a_shard_and_its_record_leaves_no_record_of_another_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one that publishes would otherwise take the shard for its own."""
    said, shard, ours = ids([sample(5)]), (Split.TRAIN, 0), [sample(5)]
    successor = FeatureWriter(tmp_path, HEADER)
    successor.write(*shard, said, ours)

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr("eagle3_draft.features.writer.write_whole", die)
        with pytest.raises(SystemExit):
            FeatureWriter(tmp_path, HEADER).write(*shard, said, [replace(ours[0], hidden=ours[0].hidden + 1)])
    with pytest.raises(StageError, match="another pod writes"):
        successor.publish(key=KEY, made_from={}, numbers={}, provenance={})
    assert FeatureWriter(tmp_path, HEADER).resume(*shard, said) is None


def test_a_conversation_whose_states_were_not_finite_counts_as_skipped(tmp_path: Path) -> None:
    record = FeatureWriter(tmp_path, HEADER).write(Split.TRAIN, 0, ids([sample(5), sample(6)]), [sample(6)])
    assert (record.lengths, record.skipped) == ([6], 1)


@pytest.mark.parametrize("part", ["loss_mask", "hidden", "last", "greedy", "log_normaliser"])
def test_a_missing_row_is_features_misaligned(tmp_path: Path, part: str) -> None:
    whole = tensors(sample(5))
    cut = sample_of({**whole, part: whole[part][:-1]})
    with pytest.raises(StageError, match="5 tokens") as raised:
        write_shard(tmp_path / "x.safetensors", [cut], HEADER)
    assert raised.value.reason == Reason.FEATURES_MISALIGNED
    assert not list(tmp_path.iterdir())


def test_a_store_whose_final_norm_was_left_out_is_refused(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, HEADER.model_copy(update={"last_norm": "before"}))
    writer.write(Split.TRAIN, 0, ids([sample(2)]), [sample(2)])
    writer.publish(key=KEY, made_from={}, numbers={}, provenance={})
    with pytest.raises(StageError, match="final norm") as raised:
        Features.open(tmp_path)
    assert raised.value.reason == Reason.FEATURE_MISMATCH


def flip(path: Path, position: int) -> None:
    """One bit, where it lies: a file that is written anew is empty meanwhile, and kills a thread that still reads of it as mapped."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shard of a store, with two conversations."""
    return store(tmp_path_factory.mktemp("of_two"), [[sample(5), sample(2)]], []) / "train-00000.safetensors"


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whichever_byte_of_a_shard_is_flipped_nothing_else_than_was_written_is_read(
    of_two: Path, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, of_two.stat().st_size - 1))
    flip(of_two, position)
    try:
        found = Features.open(of_two.parent).train.read([1, 0])
    except StageError as error:
        assert error.reason == Reason.CORRUPT_ARTIFACT
        assert error.retry is StageName.EXTRACT
    else:  # of what lies between two tensors nothing is read
        assert_same(found[0], sample(2))
        assert_same(found[1], sample(5))
    finally:
        flip(of_two, position)


@pytest.mark.parametrize("tensor", ["input_ids", "loss_mask", "hidden", "last", "greedy", "log_normaliser"])
def test_a_conversation_that_changed_is_corrupt_when_it_is_read_and_the_others_are_not(
    tmp_path: Path, tensor: str
) -> None:
    path = store(tmp_path, [[sample(5), sample(2)]], [[sample(3)]]) / "train-00000.safetensors"
    found = read_header(path).tensors[tensor]
    flip(path, found.begin + prod(found.shape) * BITS[found.dtype] // 8 - 1)
    features = Features.open(tmp_path)
    assert len(features.held_out[0]) == 3
    assert_same(features.train[0], sample(5))
    with pytest.raises(StageError, match="changed since") as raised:
        features.train[1]
    assert raised.value.reason == Reason.CORRUPT_ARTIFACT


def test_digests_are_of_tensors_in_one_order_in_every_process() -> None:
    assert HEADER.model_copy(update={"dtype": "fp8"}).computed() == [
        "hidden",
        "last",
        "greedy",
        "log_normaliser",
        "hidden_scale",
        "last_scale",
    ]


def test_what_is_expected_and_was_changed_is_refused_where_it_is_read(tmp_path: Path) -> None:
    path = store(tmp_path, [[sample(5), sample(2)]], []) / "train-00000.safetensors"
    flip(path, read_header(path).tensors["hidden"].begin)
    features = Features.open(tmp_path)
    features.train.expect([0, 1])
    assert_same(features.train[1], sample(2))
    with pytest.raises(StageError, match="changed since"):
        features.train[0]


def test_counting_words_reads_nothing_of_what_was_computed(tmp_path: Path) -> None:
    path = store(tmp_path, [[sample(5), sample(2)]], []) / "train-00000.safetensors"
    flip(path, read_header(path).tensors["hidden"].begin)
    said = list(Features.open(tmp_path).train.texts())
    assert [text.input_ids.tolist() for text in said] == [sample(n).input_ids.tolist() for n in (5, 2)]
    flip(path, read_header(path).tensors["loss_mask"].begin)
    with pytest.raises(StageError, match="changed since"):
        list(Features.open(tmp_path).train.texts())


def test_who_counts_words_has_the_next_shards_come_meanwhile(tmp_path: Path) -> None:
    store(tmp_path, [[sample(n)] for n in range(1, 9)], [])
    leased: list[str] = []

    class Far(Volume):
        def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
            leased.append(entry.path)
            return super().lease(folder, entry)

    texts = Features.open(tmp_path, Far()).train.texts()
    next(texts)
    next(texts)
    wait_for("the shards ahead", 10, lambda: f"train-{1 + DOWNLOADS:05d}.safetensors" in leased)
    assert "train-00007.safetensors" not in leased, "no more than are downloaded at a time"
    assert sum(1 for _ in texts) == 6
    assert len(leased) == 8, "each once"


def test_what_is_wanted_of_several_shards_of_a_bucket_is_fetched_side_by_side_each_shard_once(tmp_path: Path) -> None:
    """Also where it lies in a row: threads that all wait for the same shard would fetch one after the other."""
    together = threading.Barrier(DOWNLOADS)
    leased: list[str] = []

    class Elsewhere(Volume):
        keeps = False

        def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
            leased.append(entry.path)
            together.wait(30)
            return super().lease(folder, entry)

    shards = [[sample(2 + number, seed) for number in range(5)] for seed in range(DOWNLOADS)]
    features = Features.open(store(tmp_path, shards, []), Elsewhere())
    for found, expected in zip(features.train[:], [one for shard in shards for one in shard], strict=True):
        assert_same(found, expected)
    assert sorted(leased) == [f"train-{number:05d}.safetensors" for number in range(DOWNLOADS)]


def test_what_is_expected_and_not_wanted_any_more_is_not_fetched(tmp_path: Path) -> None:
    """A pod that is to end does not download the next step first."""
    store(tmp_path, [[sample(n)] for n in range(1, 17)], [])
    leased: list[str] = []
    go = threading.Event()

    class Slow(Volume):
        def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
            leased.append(entry.path)
            assert go.wait(30)
            return super().lease(folder, entry)

    train = Features.open(tmp_path, Slow()).train
    train.expect(range(16))
    wait_for("the first ones to be fetched", 10, lambda: leased)
    train.close()
    go.set()
    train._fetcher.shutdown(wait=True)
    assert len(leased) <= FETCHED_TOGETHER


def without_digests(folder: Path) -> None:
    """Take the conversations' digests away, in a store that says so itself."""
    path = folder / "lengths.safetensors"
    save_file({name: table for name, table in load_file(path).items() if not name.endswith("digests")}, path)
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    size, digest = path.stat().st_size, file_digest(path)
    files = [
        file.model_copy(update={"size": size, "sha256": digest}) if file.path == path.name else file
        for file in manifest.files
    ]
    (folder / MANIFEST).write_text(manifest.model_copy(update={"files": files}).model_dump_json(by_alias=True))


def test_a_store_without_digests_of_its_conversations_is_not_read_unverified(tmp_path: Path) -> None:
    without_digests(store(tmp_path, [[sample(5)], [sample(2)]], [[sample(3)]]))
    with pytest.raises(StageError, match="differ on the train conversations") as raised:
        Features.open(tmp_path)
    assert raised.value.reason == Reason.CORRUPT_ARTIFACT


def test_a_published_store_that_contradicts_itself_is_corrupt(tmp_path: Path) -> None:
    store(tmp_path, [[sample(5)]], [])
    write_shard(tmp_path / "train-00000.safetensors", [sample(2), sample(3)], HEADER)
    artifacts.publish(
        tmp_path,
        stage="extract",
        key=KEY,
        made_from={},
        provenance={},
        numbers=HEADER.model_dump()
        | {"shards": {"train": [{"file": "train-00000.safetensors", "conversations": 1}], "held_out": []}},
    )
    with pytest.raises(StageError, match="differ on how long"):
        Features.open(tmp_path).train[0]


PARTS = [f"part-{number:05d}-of-00003" for number in range(3)]


def in_parts(folder: Path) -> list[list[Sample]]:
    """A store of three parts; of each the conversations to learn from. One is held out."""
    split = [[sample(5), sample(2)], [sample(7)], [sample(1), sample(4)]]
    for part, samples in zip(PARTS, split, strict=True):
        store(folder / part, [[one] for one in samples], [[sample(3)]] if part == PARTS[1] else [])
    publish_store(folder, PARTS, Volume(), key=KEY, made_from={}, numbers={}, provenance={})
    return split


def test_parts_are_one_store_whose_manifest_lists_theirs(tmp_path: Path) -> None:
    split = in_parts(tmp_path)
    listed = [file.path for file in artifacts.read(tmp_path).files]
    assert listed == ["lengths.safetensors", *(f"{part}/manifest.json" for part in PARTS)]
    features = Features.open(tmp_path)
    for found, expected in zip(features.train, [one for samples in split for one in samples], strict=True):
        assert_same(found, expected)
    assert_same(features.held_out[0], sample(3))
    assert features.train.place(4) == f"number 0 of {PARTS[2]}/train-00001.safetensors"


@pytest.mark.parametrize("change", ["another", "missing"])
def test_a_part_whose_manifest_is_not_the_one_that_was_published_is_corrupt(tmp_path: Path, change: str) -> None:
    in_parts(tmp_path)
    path = tmp_path / PARTS[1] / MANIFEST
    if change == "another":
        path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    else:
        path.unlink()
    with pytest.raises(
        StageError, match=f"{PARTS[1]}/manifest.json.*({'changed since' if change == 'another' else 'is missing'})"
    ):
        Features.open(tmp_path)


def test_a_finished_store_of_which_a_part_lost_a_shard_is_corrupt(tmp_path: Path) -> None:
    in_parts(tmp_path)
    assert artifacts.finished(tmp_path, KEY) is not None
    (tmp_path / PARTS[2] / "train-00001.safetensors").unlink()
    with pytest.raises(StageError, match=f"{PARTS[2]}/train-00001.safetensors' is missing"):
        artifacts.finished(tmp_path, KEY)


@pytest.mark.stages
def test_four_times_the_features_of_kimi_are_a_store_that_can_be_opened(tmp_path: Path) -> None:
    """18 TiB: 87.8 M tokens four times, 2,350 a conversation, which is more than a shard."""
    conversations, of_part = 4 * 87_800_000 // 2350, 512
    names = [f"part-{number:05d}-of-00292" for number in range(-(-conversations // of_part))]
    shards = [f"train-{number:05d}.safetensors" for number in range(of_part)]
    files = [File(path=name, size=134_756_864, sha256="5" * 64) for name in shards]
    listed = {"train": [{"file": name, "conversations": 1} for name in shards], "held_out": []}
    part = Manifest(
        stage="extract", key=KEY, files=files, made_from={}, numbers=HEADER.model_dump() | {"shards": listed}
    )
    text = part.model_dump_json(by_alias=True).encode()
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_bytes(text)
    number = len(names) * of_part
    table = {"train": torch.full((number,), 2350, dtype=torch.int32), "held_out": torch.empty(0, dtype=torch.int32)}
    digests = {f"{kind}.digests": torch.zeros(len(table[kind]), 2, 32, dtype=torch.uint8) for kind in table}
    save_file(table | digests, tmp_path / "lengths.safetensors")
    artifacts.publish(
        tmp_path,
        stage="extract",
        key=KEY,
        made_from={},
        numbers=HEADER.model_dump(),
        provenance={},
        parts=dict.fromkeys(names, text),
    )
    assert (tmp_path / MANIFEST).stat().st_size < artifacts.MANIFEST_LIMIT / 100
    train = Features.open(tmp_path).train
    assert len(train) == number
    assert train.place(number - 1) == f"number 0 of {names[-1]}/{shards[-1]}"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"layers": [1]}, "hidden"),
        ({"dtype": "fp32"}, "torch.float32"),
        ({"dtype": "fp8"}, "hidden_scale"),
        ({"teacher": "TopK"}, "top_tokens"),
    ],
)
def test_a_shard_of_another_kind_than_the_manifest_says_is_corrupt(
    tmp_path: Path, written: dict[str, Any], words: str
) -> None:
    header = HEADER.model_copy(update=written)
    columns = {name: torch.zeros(4, *row, dtype=dtype) for name, (dtype, row) in header.columns().items()}
    store(tmp_path, [[sample_of(columns)]], [], header)
    path = tmp_path / MANIFEST
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps(manifest | {"numbers": manifest["numbers"] | HEADER.model_dump()}))
    with pytest.raises(StageError, match=words) as raised:
        Features.open(tmp_path).train[0]
    assert raised.value.reason == Reason.CORRUPT_ARTIFACT


def test_a_store_of_a_version_that_did_not_say_how_it_is_taught_is_refused(tmp_path: Path) -> None:
    store(tmp_path, [[sample(4)]], [])
    path = tmp_path / MANIFEST
    manifest = json.loads(path.read_bytes())
    del manifest["numbers"]["teacher"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(StageError, match="teacher") as raised:
        Features.open(tmp_path)
    assert raised.value.reason == Reason.CORRUPT_ARTIFACT
    assert raised.value.retry is StageName.EXTRACT


def test_every_tensor_of_a_shard_begins_on_a_page_and_any_reader_of_safetensors_reads_it(tmp_path: Path) -> None:
    samples = [sample(5), sample(9)]
    written = write_shard(tmp_path / "x.safetensors", samples, HEADER)
    assert written.sha256 == file_digest(tmp_path / "x.safetensors")
    found = read_header(tmp_path / "x.safetensors").tensors
    named = {name for name in found if not name.startswith("padding.")}
    assert named == {"input_ids", "loss_mask", "hidden", "last", "greedy", "log_normaliser", "offsets"}
    assert all(found[name].begin % 4096 == 0 for name in named)
    read = load_file(tmp_path / "x.safetensors")
    assert torch.equal(read["hidden"], torch.cat([one.hidden for one in samples]))
    assert read["offsets"].tolist() == [0, 5, 14]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=30)  # it writes files
def test_conversations_that_lie_side_by_side_in_memory_are_written_as_others_are(cuts: list[tuple[int, int]]) -> None:
    computed = sample(60)
    beside = [computed.rows(slice(start, start + length)) for start, length in sorted(cuts)]
    beside += [beside[-1], computed.rows(slice(0, 30)), computed.rows(slice(30, 60))]
    assert all_finite(beside)
    apart = [sample_of({name: tensor.clone() for name, tensor in tensors(one).items()}) for one in beside]
    with TemporaryDirectory() as folder:
        written = [write_shard(Path(folder) / "x.safetensors", samples, HEADER) for samples in (beside, apart)]
    assert written[0] == written[1]


@given(st.integers(0, 59), st.sampled_from(["hidden", "last", "log_normaliser"]), st.sampled_from([nan, inf, -inf]))
@settings(deadline=None)
def test_a_number_that_is_none_is_seen_in_whichever_conversation_of_those_side_by_side(
    row: int, name: str, number: float
) -> None:
    computed = sample(60)
    tensors(computed)[name][row] = number
    beside = [computed.rows(slice(begin, begin + 20)) for begin in (0, 20, 40)]
    assert not all_finite(beside)
    assert [one.is_finite() for one in beside] == [row // 20 != at for at in range(3)]


def test_what_stops_the_writing_of_a_shard_leaves_nothing_of_it(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_shard(tmp_path / "x.safetensors", [sample(5000)], HEADER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["fp8", "bf16", "fp32"])
def test_the_most_likely_tokens_are_read_as_they_were_written_without_a_last_state(
    tmp_path: Path, dtype: FeatureDtype
) -> None:
    header = HEADER.model_copy(update={"teacher": "TopK", "dtype": dtype})
    one = top_k(sample(7))
    found = Features.open(store(tmp_path, [[one]], [[one]], header)).train[0]
    assert isinstance(found.teaching, TopK)
    assert isinstance(one.teaching, TopK)
    assert torch.equal(found.teaching.top_tokens, one.teaching.top_tokens)
    assert torch.equal(found.teaching.top_log_probabilities, one.teaching.top_log_probabilities)
    assert found.teaching.top_tokens.shape == (7, TOP_K)


@given(st.lists(st.integers(0, 50)), st.integers(1, 200))
def test_every_conversation_is_in_one_shard_and_shards_are_of_about_the_size_asked_for(
    lengths: list[int], shard_bytes: int
) -> None:
    shards = plan_shards(lengths, 3, shard_bytes)
    assert [index for shard in shards for index in shard] == list(range(len(lengths)))
    for shard in shards[:-1]:
        size = 3 * sum(lengths[index] for index in shard)
        assert shard_bytes <= size < shard_bytes + 3 * 50 + 1


def test_fp8_is_half_the_bytes_and_within_its_rounding_of_each_row(tmp_path: Path) -> None:
    header = HEADER.model_copy(update={"dtype": "fp8"})
    one = sample(50)
    one.hidden[3, :8] *= 1000  # a row of another size must not cost the others their bits
    assert isinstance(one.teaching, LastState)
    one.teaching.last[7] = 0
    writer = FeatureWriter(tmp_path, header)
    writer.write(Split.TRAIN, 0, ids([one, sample(4)]), [one, sample(4)])
    writer.publish(key=KEY, made_from={}, numbers={}, provenance={})
    stored = Features.open(tmp_path).train[0]
    assert isinstance(stored.teaching, LastState)
    assert stored.hidden.dtype == stored.teaching.last.dtype == torch.float8_e4m3fn
    hidden, last = stored.states(torch.bfloat16), stored.teaching.state(torch.bfloat16)
    assert torch.equal(stored.teaching.log_normaliser, one.teaching.log_normaliser)
    for mine, theirs in (
        (hidden.reshape(50, 2, 8), one.hidden.reshape(50, 2, 8)),
        (last, one.teaching.last),
    ):
        bound = theirs.float().abs().amax(-1, keepdim=True) * 2**-18 + theirs.float().abs() * 2**-4
        assert bool(((mine.float() - theirs.float()).abs() <= bound + 1e-6).all())
    assert torch.equal(last[7], torch.zeros(8, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", ["fp8", "bf16", "fp32"])
@pytest.mark.parametrize("teacher", ["LastState", "TopK"])
def test_a_store_takes_what_was_estimated(tmp_path: Path, dtype: FeatureDtype, teacher: TeacherKind) -> None:
    one = sample(20_000) if teacher == "LastState" else top_k(sample(20_000))
    write_shard(tmp_path / "x.safetensors", [one], HEADER.model_copy(update={"dtype": dtype, "teacher": teacher}))
    size = (tmp_path / "x.safetensors").stat().st_size
    assert 0 <= size - 20_000 * bytes_per_token(8, 2, dtype, teacher) < 10 * 4096
