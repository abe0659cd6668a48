"""The images' recipes, as far as they can be checked without an engine."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.glob("images/*/Dockerfile"))


def instructions(recipe: Path) -> list[tuple[str, str]]:
    """The instructions with their arguments, continued lines joined."""
    lines = recipe.read_text().replace("\\\n", " ").splitlines()
    words = (line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#"))
    return [(name, rest) for name, rest in words]


def test_both_images_have_a_recipe() -> None:
    assert {recipe.parent.name for recipe in RECIPES} >= {"draft", "operator"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.parent.name)
def test_every_stage_begins_with_the_base_that_the_builder_may_choose(recipe: Path) -> None:
    made = instructions(recipe)
    assert made[0] == ("ARG", "BASE_IMAGE=python:3.12-slim")
    assert {rest.split()[0] for name, rest in made if name == "FROM"} == {"${BASE_IMAGE}"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.parent.name)
def test_no_image_runs_as_root(recipe: Path) -> None:
    final = instructions(recipe)
    assert ("USER", "65532:65532") in final[-2:]
    assert final[-1][0] == "ENTRYPOINT"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.parent.name)
def test_what_is_copied_is_there_and_reaches_the_builder(recipe: Path) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, rest in instructions(recipe):
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert set(sources) <= let_in
            assert all((ROOT / source).exists() for source in sources)


def test_the_image_as_it_is_shipped_reads_what_data_sets_are_written_in_and_hubs_that_have_them() -> None:
    defaults = [rest for name, rest in instructions(ROOT / "images/draft/Dockerfile") if name == "ARG"]
    assert 'EXTRAS="--extra hub --extra parquet"' in defaults


def test_all_images_are_built_with_one_uv() -> None:
    versions = {version for recipe in RECIPES for version in re.findall(r"uv==(\S+)", recipe.read_text())}
    assert len(versions) == 1
