"""What the work will take, before it starts."""

import pytest

from eagle3_api.estimate import bytes_per_token, conversion_memory, readable_bytes, startup_seconds, ways_to_store


def test_the_kimi_extraction_needs_four_and_a_half_tebibytes() -> None:
    assert readable_bytes(87.8e6 * bytes_per_token(7168, 3, "bf16", "LastState")) == "4.58 TiB"
    assert readable_bytes(87.8e6 * bytes_per_token(7168, 3, "fp8", "LastState")) == "2.29 TiB"
    assert readable_bytes(87.8e6 * bytes_per_token(7168, 3, "fp8", "TopK")) == "1.75 TiB"


def test_three_layers_and_the_last_take_eight_bytes_a_hidden_number_in_bf16() -> None:
    assert bytes_per_token(4096, 3, "bf16", "LastState") == 8 * 4096 + 13
    assert bytes_per_token(4096, 3, "fp32", "LastState") == 16 * 4096 + 13
    assert bytes_per_token(4096, 3, "fp8", "LastState") == 4 * 4096 + 4 * 4 + 13


def test_the_most_likely_tokens_alone_take_less_than_512_bytes_beside_three_layers_in_fp8() -> None:
    assert bytes_per_token(4096, 3, "fp8", "TopK") == 3 * (4096 + 4) + 6 * 64 + 5 <= 3 * 4096 + 512


def test_every_other_way_of_storing_says_what_to_set() -> None:
    ways = {(way.dtype, way.teacher): way.change for way in ways_to_store("fp8", "LastState")}
    assert len(ways) == 6
    assert ways["fp8", "LastState"] == ""
    assert ways["bf16", "TopK"] == "extract.dtype bf16 and extract.teacher TopK"
    assert ways["fp8", "TopK"] == "extract.teacher TopK"


@pytest.mark.parametrize(
    ("hidden_size", "dtype", "gibibytes"),
    [
        (64, "float32", 1.02),
        (2048, "bfloat16", 1.38),
        (4096, "bfloat16", 2.0),
        (4096, "float32", 3.0),
        (7168, "bfloat16", 3.41),
        (8192, "float16", 4.0),
        (16384, "bfloat16", 11.0),
    ],
)
def test_a_conversion_asks_for_memory_by_the_width_of_its_draft(hidden_size: int, dtype: str, gibibytes: float) -> None:
    assert conversion_memory(hidden_size, dtype) / 2**30 == pytest.approx(gibibytes, abs=0.01)


def test_the_start_up_budget_grows_with_the_weights_to_be_read() -> None:
    assert startup_seconds(0) == 600
    assert startup_seconds(16 * 10**9) == 632
    assert startup_seconds(595 * 10**9) == pytest.approx(30 * 60, rel=0.01)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (2**30, "1.00 GiB"),
        (3.1 * 2**40, "3.10 TiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_bytes_are_written_as_people_read_them(count: float, text: str) -> None:
    assert readable_bytes(count) == text
