"""What a server says that it runs with, against what it was asked for."""

from typing import Any

import pytest

from eagle3_api.jobs.probe import MISMATCHES
from eagle3_draft.probe.arguments import CHARACTERS, Scalar, mismatches


def test_a_server_that_does_as_asked_has_no_mismatches() -> None:
    asked: dict[str, Scalar] = {"tp_size": 8, "model_path": "/models/kimi", "speculative_algorithm": "EAGLE3"}
    assert mismatches(asked, asked | {"more": [1]}) == []


def test_silently_adjusted_arguments_are_named_with_both_values() -> None:
    asked: dict[str, Scalar] = {
        "speculative_num_draft_tokens": 16,
        "max_running_requests": 64,
        "speculative_algorithm": "EAGLE3",
    }
    info = {"speculative_num_draft_tokens": 2, "max_running_requests": 48, "speculative_algorithm": None}
    assert [str(one) for one in mismatches(asked, info)] == [
        "speculative_num_draft_tokens: asked 16, got 2",
        "max_running_requests: asked 64, got 48",
        'speculative_algorithm: asked "EAGLE3", got null',
    ]


@pytest.mark.parametrize(
    ("asked", "got", "same"),
    [
        (1, 1.0, True),
        (0.9, 0.9, True),
        (0.9, 0.8, False),
        (1, True, False),
        (True, True, True),
        (False, 0, False),
        ("48", 48, False),
        (None, None, True),
        (None, "EAGLE", False),
        ("x", ["x"], False),
    ],
)
def test_numbers_are_equal_by_value_and_nothing_else_is_converted(asked: Scalar, got: Any, same: bool) -> None:
    assert (mismatches({"name": asked}, {"name": got}) == []) is same


def test_what_the_server_does_not_say_is_null() -> None:
    (one,) = mismatches({"a": None, "b": 1}, {})
    assert (str(one), one.unset) == ("b: asked 1, got null", True)
    assert not mismatches({"b": 1}, {"b": "null"})[0].unset


def test_the_texts_fit_a_report() -> None:
    long: dict[str, Scalar] = {f"argument_{i}": "/models/" + "x" * 500 for i in range(20)}
    found = mismatches(long, dict.fromkeys(long, "y" * 5000))
    assert len(found) == MISMATCHES
    assert all(len(text) <= CHARACTERS for one in found for text in (one.asked, one.got))


def test_of_long_paths_the_ends_are_told_by_which_they_differ() -> None:
    folder = "/models/" + "x" * 500
    (one,) = mismatches({"model_path": f"{folder}/kimi"}, {"model_path": f"{folder}/llama"})
    assert one.asked.startswith('"/models/')
    assert (one.asked[-6:], one.got[-7:]) == ('/kimi"', '/llama"')
