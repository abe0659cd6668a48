"""That pods see the environment in which SGLang runs on a CPU, or somebody is told why not before anything is built."""

from pathlib import Path

import pytest
from image import refusal


@pytest.mark.parametrize(
    ("cache", "python"),
    [("/tmp/home/.cache", "/usr"), ("/home/me/.cache", "/tmp/python"), ("/run/user/0", "/usr"), ("/dev/shm/c", "/usr")],
)
def test_what_a_pod_would_not_see_is_refused_with_what_to_do(cache: str, python: str) -> None:
    why = refusal(Path(cache), Path(python))
    assert why is not None
    assert any(word in why for word in ("EAGLE3_CACHE", "PATH"))


def test_a_link_does_not_lead_a_cache_past_the_refusal(tmp_path: Path) -> None:
    link = tmp_path / "cache"
    link.symlink_to("/tmp")
    assert refusal(link, Path("/usr"))


def test_what_pods_see_is_taken() -> None:
    assert refusal(Path("/home/me/.cache/eagle3-operator"), Path("/usr")) is None
    assert refusal(Path("/opt/tmp"), Path("/tmpfiles")) is None
