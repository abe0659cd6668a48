"""What was extracted is what is trained on, to the bit."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token
from eagle3_draft import artifacts
from eagle3_draft.features import Features, FeatureWriter, Header, Sample, Split, plan_shards, read_shard, write_shard
from eagle3_draft.stage import StageError

HEADER = Header(
    layers=[-1, 1],
    hidden_size=8,
    dtype="bf16",
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
        last=torch.randn(tokens, 8, generator=made).bfloat16(),
    )


def ids(samples: Sequence[Sample]) -> list[Sequence[int]]:
    return [array("i", sample.input_ids.tolist()) for sample in samples]


def store(folder: Path, train: Sequence[Sequence[Sample]], held_out: Sequence[Sequence[Sample]]) -> Path:
    writer = FeatureWriter(folder, HEADER)
    for split, shards in ((Split.TRAIN, train), (Split.HELD_OUT, held_out)):
        for number, samples in enumerate(shards):
            writer.write(split, number, ids(samples), samples)
    writer.publish(key=KEY, made_from={}, numbers={"tokens": 7}, provenance={})
    return folder


def assert_same(found: Sample, expected: Sample) -> None:
    for name in ("input_ids", "loss_mask", "hidden", "last"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


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


def test_a_conversation_whose_states_were_not_finite_counts_as_skipped(tmp_path: Path) -> None:
    record = FeatureWriter(tmp_path, HEADER).write(Split.TRAIN, 0, ids([sample(5), sample(6)]), [sample(6)])
    assert (record.lengths, record.skipped) == ([6], 1)


@pytest.mark.parametrize("part", ["loss_mask", "hidden", "last"])
def test_a_missing_row_is_features_misaligned(tmp_path: Path, part: str) -> None:
    whole = sample(5)
    cut = Sample(**{**vars(whole), part: getattr(whole, part)[:-1]})
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


def test_a_shard_that_changed_is_corrupt_when_it_is_read(tmp_path: Path) -> None:
    store(tmp_path, [[sample(5)]], [[sample(3)]])
    path = tmp_path / "train-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    features = Features.open(tmp_path)
    assert len(features.held_out[0]) == 3
    with pytest.raises(StageError) as raised:
        features.train[0]
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
    with pytest.raises(StageError, match="not"):
        read_shard(tmp_path / "train-00000.safetensors", HEADER.model_copy(update={"layers": [1]}))
    (tmp_path / "noise").write_bytes(b"noise")
    with pytest.raises(StageError, match="no safetensors file"):
        read_shard(tmp_path / "noise", HEADER)


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
    one.last[7] = 0
    writer = FeatureWriter(tmp_path, header)
    writer.write(Split.TRAIN, 0, ids([one, sample(4)]), [one, sample(4)])
    writer.publish(key=KEY, made_from={}, numbers={}, provenance={})
    found = Features.open(tmp_path).train[0]
    assert found.hidden.dtype == torch.bfloat16
    for mine, theirs in (
        (found.hidden.reshape(50, 2, 8), one.hidden.reshape(50, 2, 8)),
        (found.last, one.last),
    ):
        bound = theirs.float().abs().amax(-1, keepdim=True) * 2**-18 + theirs.float().abs() * 2**-4
        assert bool(((mine.float() - theirs.float()).abs() <= bound + 1e-6).all())
    assert torch.equal(found.last[7], torch.zeros(8, dtype=torch.bfloat16))


def test_fp8_without_its_scales_is_corrupt(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.safetensors", [sample(3)], HEADER)
    with pytest.raises(StageError, match="hidden_scale"):
        read_shard(tmp_path / "x.safetensors", HEADER.model_copy(update={"dtype": "fp8"}))


@pytest.mark.parametrize("dtype", ["fp8", "bf16", "fp32"])
def test_a_store_takes_what_was_estimated(tmp_path: Path, dtype: str) -> None:
    write_shard(tmp_path / "x.safetensors", [sample(2000)], HEADER.model_copy(update={"dtype": dtype}))
    size = (tmp_path / "x.safetensors").stat().st_size
    assert abs(size - 2000 * bytes_per_token(8, 2, dtype)) < 8000
