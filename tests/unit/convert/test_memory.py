"""A draft is converted piece by piece: how large it is does not show in the memory that it takes."""

import multiprocessing
from pathlib import Path

from bench import bench_conversion

#: Of pieces of 16 MiB a few are held at a time, in their own type and in float32.
BOUND = 100 * 2**20


def test_a_draft_is_converted_in_a_fraction_of_its_own_size(tmp_path: Path) -> None:
    size = bench_conversion.make(tmp_path, scale=0.13)
    assert size > 2 * BOUND
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        _, memory, _ = pool.apply(bench_conversion.convert, (tmp_path,))
    assert memory < BOUND
