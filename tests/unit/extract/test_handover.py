"""Rows that leave the engine a forward at a time come back a conversation at a time, each with all of its own."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_api.conditions import Reason
from eagle3_draft.extract.handover import HandoverReader, HandoverWriter, Rows
from eagle3_draft.stage import StageError


def columns(rows: list[Rows]) -> dict[str, torch.Tensor]:
    """Rows that say of which conversation and which token they are."""
    whose = [(one.conversation, one.start + at) for one in rows for at in range(one.count)]
    return {
        "input_ids": torch.tensor([token for _, token in whose]),
        "hidden": torch.tensor(whose, dtype=torch.float32),
    }


def rows(conversation: int, start: int, count: int) -> Rows:
    return Rows(conversation=conversation, start=start, count=count)


@settings(deadline=None, max_examples=50)  # it writes files
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), chunk=st.integers(1, 16), look_each=st.booleans())
def test_conversations_come_back_whole_however_forwards_cut_them(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], chunk: int, *, look_each: bool
) -> None:
    folder = tmp_path_factory.mktemp("handover")
    writer, reader = HandoverWriter(folder), HandoverReader(folder)
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
    reader.look()
    for number, length in enumerate(lengths):
        found = reader.take(number)
        assert found is not None
        assert found["input_ids"].tolist() == list(range(length))
        assert found["hidden"][:, 0].tolist() == [number] * length
    assert not list(folder.iterdir())


def test_a_conversation_that_begins_anew_loses_what_it_had(tmp_path: Path) -> None:
    writer, reader = HandoverWriter(tmp_path), HandoverReader(tmp_path)
    for forward in ([rows(0, 0, 4)], [rows(0, 0, 6)]):
        writer.write(forward, columns(forward))
    reader.look()
    found = reader.take(0)
    assert found is not None
    assert found["input_ids"].tolist() == list(range(6))


def test_rows_that_are_missing_before_others_are_features_misaligned(tmp_path: Path) -> None:
    writer, reader = HandoverWriter(tmp_path), HandoverReader(tmp_path)
    writer.write([rows(0, 3, 4)], columns([rows(0, 3, 4)]))
    with pytest.raises(StageError, match="prefix cache") as caught:
        reader.look()
    assert caught.value.reason is Reason.FEATURES_MISALIGNED


def test_a_conversation_without_rows_is_none(tmp_path: Path) -> None:
    reader = HandoverReader(tmp_path)
    reader.look()
    assert reader.take(0) is None
