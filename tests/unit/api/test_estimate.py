"""What the work will take, before it starts."""

import pytest

from eagle3_api.estimate import bytes_per_token, readable_bytes, startup_seconds


def test_the_kimi_extraction_needs_four_and_a_half_tebibytes() -> None:
    needed = 87.8e6 * bytes_per_token(7168, 3, "bf16")
    assert readable_bytes(needed) == "4.58 TiB"


def test_three_layers_and_the_last_take_eight_bytes_a_hidden_number_in_bf16() -> None:
    assert bytes_per_token(4096, 3, "bf16") == 8 * 4096 + 9
    assert bytes_per_token(4096, 3, "fp32") == 16 * 4096 + 9
    assert bytes_per_token(4096, 3, "fp8") == 4 * 4096 + 4 * 4 + 9


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
