"""Rows that leave the engine a forward at a time come back a conversation at a time, each with all of its own."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_api.conditions import Reason
from eagle3_draft.errors import StageError
from eagle3_draft.extract.handover import HandoverReader, HandoverWriter, Rows, folder_on_disk, remove_left
from eagle3_draft.extract.regions import Regions
from eagle3_draft.features.pieces import PAGE
from served.volume import small_volume
from testcluster.wait import wait_for


def columns(rows: list[Rows]) -> dict[str, torch.Tensor]:
    """Rows that say of which conversation and which token they are."""
    whose = [(one.conversation, one.start + at) for one in rows for at in range(one.tokens)]
    return {
        "input_ids": torch.tensor([token for _, token in whose]),
        "hidden": torch.tensor(whose, dtype=torch.float32),
    }


def rows(conversation: int, start: int, count: int) -> Rows:
    return Rows(conversation, start, count)


def pair(folder: Path, regions: int = 0, region_bytes: int = 2 * PAGE) -> tuple[HandoverWriter, HandoverReader]:
    """In files of their own, unless there are regions."""
    return HandoverWriter(folder, refuse, Regions(folder, region_bytes, regions)), HandoverReader(folder)


def refuse(error: Exception) -> None:
    raise error


def taken(reader: HandoverReader, conversation: int, tokens: int) -> dict[str, torch.Tensor]:
    """A conversation's rows, as soon as the writer's thread has written them."""

    def look() -> dict[str, torch.Tensor]:
        reader.look()
        return reader.take(conversation, tokens) or {}

    return wait_for("rows", 10, look)


@settings(deadline=None, max_examples=50)  # it writes files
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    chunk=st.integers(1, 16),
    look_each=st.booleans(),
    regions=st.integers(0, 3),
)
def test_conversations_come_back_whole_however_forwards_cut_them(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], chunk: int, regions: int, *, look_each: bool
) -> None:
    folder = tmp_path_factory.mktemp("handover")
    writer, reader = pair(folder, regions, region_bytes=4 * PAGE)
    waiting = dict.fromkeys(range(len(lengths)), 0)
    while waiting:
        forward, room = [], chunk
        for number, start in list(waiting.items()):
            count = min(room, lengths[number] - start)
            if count:
                forward.append(rows(number, start, count))
            room -= count
            waiting[number] += count
            if waiting[number] == lengths[number]:
                del waiting[number]
        writer.write(forward, columns(forward))
        if look_each:
            reader.look()
    for number, length in enumerate(lengths):
        found = taken(reader, number, length)
        assert found["input_ids"].tolist() == list(range(length))
        assert found["hidden"][:, 0].tolist() == [number] * length
    assert not [path for path in folder.iterdir() if not path.name.startswith("region-")]


def test_memory_is_used_again_once_nothing_of_it_is_held_and_never_before(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path, regions=9)
    held = []
    for number in range(12):
        writer.write([rows(number, 0, 4)], columns([rows(number, 0, 4)]))
        found = taken(reader, number, 4)
        assert found["hidden"][:, 0].tolist() == [number] * 4
        if number % 4 == 0:  # as a conversation that waits until its shard is full
            held.append((number, found["hidden"][1:]))
        del found
    assert len(list(tmp_path.iterdir())) == len(held) + 1
    for number, rest in held:
        assert rest.tolist() == [[number, at] for at in (1, 2, 3)]


@pytest.mark.parametrize(
    ("regions", "region_bytes"),
    [
        pytest.param(1, PAGE, id="more than a region holds"),
        pytest.param(3, 1 << 60, id="no room for a region"),
        pytest.param(0, 2 * PAGE, id="no shared memory"),
    ],
)
def test_rows_for_which_there_is_no_region_come_in_a_file_that_goes(
    tmp_path: Path, regions: int, region_bytes: int
) -> None:
    writer, reader = pair(tmp_path, regions, region_bytes)
    writer.write([rows(0, 0, 4)], columns([rows(0, 0, 4)]))
    assert taken(reader, 0, 4)["input_ids"].tolist() == [0, 1, 2, 3]
    assert not list(tmp_path.iterdir())


def test_memory_that_was_full_is_used_once_there_is_room_and_it_is_said_once_that_there_was_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_volume(tmp_path / "memory", mebibytes=1) as memory:
        writer, reader = pair(memory, regions=2, region_bytes=128 * PAGE)
        somebody_else = memory / "somebody-else"
        somebody_else.write_bytes(bytes(800 * 1024))
        for number in range(4):
            if number == 2:
                assert not [*memory.glob("region-*")]
                somebody_else.unlink()
            writer.write([rows(number, 0, 4)], columns([rows(number, 0, 4)]))
            assert taken(reader, number, 4)["hidden"][:, 0].tolist() == [number] * 4
        assert [*memory.iterdir()] == [memory / "region-0"]
        del writer, reader
    said = capsys.readouterr().err
    assert said.count("No space left on device. extract.placement.shmSize") == 1


def test_what_is_being_written_is_seen_and_what_is_not_is_missing(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path)
    assert reader.under_way() is None
    (tmp_path / "0.rows").write_bytes(b"begun")
    assert reader.under_way() == 5
    writer.write([rows(0, 0, 4)], columns([rows(0, 0, 4)]))
    taken(reader, 0, 4)
    assert reader.under_way() is None


@pytest.mark.parametrize("regions", [0, 1])
def test_what_was_handed_over_may_change_at_once(tmp_path: Path, regions: int) -> None:
    writer, reader = pair(tmp_path, regions)
    shown = columns([rows(0, 0, 4)])
    writer.write([rows(0, 0, 4)], shown)
    for column in shown.values():
        column.zero_()
    assert taken(reader, 0, 4)["input_ids"].tolist() == [0, 1, 2, 3]


def test_a_conversation_that_begins_anew_loses_what_it_had(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path)
    for forward in ([rows(0, 0, 4)], [rows(0, 0, 6)]):
        writer.write(forward, columns(forward))
    assert taken(reader, 0, 6)["input_ids"].tolist() == list(range(6))


def test_rows_that_are_missing_before_others_are_features_misaligned(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path)
    writer.write([rows(0, 3, 4)], columns([rows(0, 3, 4)]))
    with pytest.raises(StageError, match="prefix cache") as caught:
        taken(reader, 0, 7)
    assert caught.value.reason is Reason.FEATURES_MISALIGNED


def test_a_conversation_without_all_of_its_rows_is_none(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path)
    writer.write([rows(0, 0, 3), rows(1, 0, 2)], columns([rows(0, 0, 3), rows(1, 0, 2)]))
    taken(reader, 1, 2)
    assert reader.take(0, 4) is None
    assert reader.take(2, 1) is None


def test_no_file_follows_one_that_could_not_be_written_and_the_engine_is_told(tmp_path: Path) -> None:
    errors: list[Exception] = []
    folder = tmp_path / "handover"
    folder.mkdir()
    writer = HandoverWriter(folder, errors.append, Regions(folder, 2 * PAGE, 0))
    (folder / "0.partial").mkdir()  # where the file would be written
    for start in (0, 4, 8, 12):
        writer.write([rows(0, start, 4)], columns([rows(0, start, 4)]))
    wait_for("the error", 10, lambda: errors)
    assert isinstance(errors[0], OSError)
    assert not [*folder.glob("*.json"), *folder.glob("*.rows")]


def test_what_a_killed_pod_left_on_the_disk_is_told_from_what_others_have_there(tmp_path: Path) -> None:
    left, others = folder_on_disk(tmp_path, 1), folder_on_disk(tmp_path, 11)
    (left / "rows").write_bytes(b"x")
    remove_left(tmp_path, 1)
    assert list(tmp_path.iterdir()) == [others]
