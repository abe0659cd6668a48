"""The images' recipes, as far as they can be checked without an engine: BuildKit's own parser reads them, and ``make lint`` has hadolint."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import dockerfile
import pytest

from eagle3_operator.settings import NOBODY
from testbed import images

ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.glob("images/*/Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

recipes = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.parent.name)


def instructions(recipe: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The instructions with their words; flags first."""
    return [(one.cmd.upper(), (*one.flags, *one.value)) for one in dockerfile.parse_file(str(recipe))]


def named(recipe: Path, name: str) -> list[tuple[str, ...]]:
    return [words for other, words in instructions(recipe) if other == name]


def copied(recipe: Path) -> set[str]:
    """What comes from the repository."""
    return {source for words in named(recipe, "COPY") if not words[0].startswith("--") for source in words[:-1]}


def extras(recipe: Path) -> set[str]:
    words = " ".join(word for name, words in instructions(recipe) if name in ("ARG", "RUN") for word in words)
    return set(re.findall(r"--extra ([a-z0-9]+)", words))


def variables(recipe: Path) -> dict[str, str]:
    """Of the finished image."""
    (*_, last) = named(recipe, "ENV")
    return dict(zip(last[::2], last[1::2], strict=True))


def test_both_images_have_a_recipe() -> None:
    assert {recipe.parent.name for recipe in RECIPES} >= {"draft", "operator"}


@recipes
def test_every_stage_begins_with_the_base_that_the_builder_may_choose(recipe: Path) -> None:
    assert instructions(recipe)[0] == ("ARG", ("BASE_IMAGE=python:3.12-slim",))
    assert {words[0] for words in named(recipe, "FROM")} == {"${BASE_IMAGE}"}


@recipes
def test_an_image_runs_as_the_user_that_pods_have(recipe: Path) -> None:
    (user,), (last, _) = named(recipe, "USER"), instructions(recipe)[-1]
    assert user == (f"{NOBODY}:{NOBODY}",)
    assert last == "ENTRYPOINT"
    chart = (ROOT / "helm/eagle3-operator/values.yaml").read_text()
    assert set(re.findall(r"(?:runAsUser|runAsGroup|user): (\d+)", chart)) == {str(NOBODY)}


@recipes
def test_what_is_copied_is_there_and_reaches_the_builder(recipe: Path) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied(recipe) <= let_in
    assert all((ROOT / source).exists() for source in copied(recipe))


@recipes
def test_the_wheel_can_be_built_of_what_is_copied(recipe: Path) -> None:
    project, wheel = PROJECT["project"], PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = ["pyproject.toml", "uv.lock", project["readme"], *project["license-files"], *wheel["packages"]]
    assert [path for path in needed if not any(Path(path).is_relative_to(source) for source in copied(recipe))] == []


@recipes
def test_what_is_installed_is_named_in_the_project_and_locked(recipe: Path) -> None:
    locked = next(
        package
        for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
        if package["name"] == PROJECT["project"]["name"]
    )
    assert extras(recipe)
    assert extras(recipe) <= PROJECT["project"]["optional-dependencies"].keys()
    assert extras(recipe) <= locked["optional-dependencies"].keys()


@recipes
def test_what_was_built_is_where_the_finished_image_looks_for_it(recipe: Path) -> None:
    (_, source, target) = named(recipe, "COPY")[-1]
    assert source == target
    build = [*named(recipe, "ENV")[0], *(word for words in named(recipe, "RUN") for word in words)]
    assert any(source in word for word in build)
    assert any(source in value for value in variables(recipe).values())


@recipes
def test_an_image_starts_what_pods_start(recipe: Path) -> None:
    python, flag, module = named(recipe, "ENTRYPOINT")[0]
    assert (python, flag) == ("python3", "-m")
    assert find_spec(f"{module}.__main__")
    places = {
        "eagle3_operator": "helm/eagle3-operator/templates/deployment.yaml",
        "eagle3_draft": "tests/unit/manifests/golden",
    }
    place = ROOT / places[module]
    texts = [path.read_text() for path in ([place] if place.is_file() else place.glob("*.yaml"))]
    assert any(re.search(rf"python3\W+-m\W+{module}\b", text) for text in texts)


def test_inspect_needs_no_more_than_what_every_image_has() -> None:
    """Packages by the lock file: the project's own, without an extra."""
    locked = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    held, found = {PROJECT["project"]["name"]}, [PROJECT["project"]["name"]]
    for name in found:
        new = {one["name"] for one in locked[name].get("dependencies", ())} - held
        held |= new
        found += new
    told = "import sys; before = {*sys.modules}; import eagle3_draft.inspect; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    owners = packages_distributions()
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    needed = {owner.lower().replace("_", "-") for name in imported for owner in owners.get(name, ())}
    assert "jinja2" in needed
    assert needed <= held


def test_the_image_as_it_is_shipped_reads_what_data_sets_are_written_in_and_hubs_that_have_them() -> None:
    assert extras(ROOT / "images/draft/Dockerfile") == {"hub", "parquet"}


def test_the_tests_images_have_what_the_recipes_install() -> None:
    shipped = {images.OPERATOR: "operator", images.DRAFT: "draft"}
    apart = {
        recipe: set(images.EXTRAS[name]) ^ extras(ROOT / "images" / recipe / "Dockerfile")
        for name, recipe in shipped.items()
    }
    # The tests have features in an object store, and no Parquet
    assert apart == {"operator": set(), "draft": {"parquet", "s3"}}


def test_all_images_are_built_with_one_uv() -> None:
    versions = {version for recipe in RECIPES for version in re.findall(r"uv==(\S+)", recipe.read_text())}
    assert len(versions) == 1
