"""A draft is converted piece by piece and proven as it lies there: how large it is does not show in the memory that it takes."""

import multiprocessing
from pathlib import Path

import pytest

from bench import bench_conversion
from eagle3_api.artifacts import WEIGHTS

#: Of pieces of 16 MiB a few are held at a time, in their own type and in float32; and what is computed of some rows.
BOUND = 96 * 2**20


@pytest.mark.stages
def test_the_whole_stage_takes_a_fraction_of_the_drafts_size(tmp_path: Path) -> None:
    sizes = bench_conversion.sized(0.06)
    bench_conversion.make_target(tmp_path, sizes)
    bench_conversion.make_published(tmp_path, sizes)
    bench_conversion.make_trained(tmp_path, sizes, conversations=4)
    assert (tmp_path / "trained" / WEIGHTS).stat().st_size > 2.5 * BOUND
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for kind in ("published", "trained"):
            run = pool.apply(bench_conversion.stage, (tmp_path, kind))
            assert run["memory"] < BOUND, kind
