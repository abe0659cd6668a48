"""What the documents promise to be complete, and that what they tell a person to write and to type is there."""

import io
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_api import KIND, artifacts
from eagle3_api.checkpoints.rules import RULES
from eagle3_api.conditions import EventReason, Reason, Type
from eagle3_api.crd import definition
from eagle3_api.exit_codes import ExitCode
from eagle3_api.jobs import StageName
from eagle3_api.sglang import KNOWN_TARGETS, NEWEST, OLDEST, UNFIT, Version, capture_known
from eagle3_draft.cli import main as by_hand
from eagle3_draft.convert.accuracy import ACCURACY
from eagle3_draft.convert.agreement import AGREEMENT
from eagle3_draft.convert.proposals import PROPOSALS
from eagle3_draft.convert.reading import READING
from eagle3_draft.convert.values import DISTINCT, FILLED, FINITE, TRAINED
from eagle3_operator.cli.files import unknown_fields
from eagle3_operator.cli.main import main
from eagle3_operator.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
SOURCES = [DOCS.parent / folder for folder in ("crds", "operator", "images/draft")]
PAGES = sorted([*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")])


def pages_with(find: Callable[[Path], Iterable[object]]) -> pytest.MarkDecorator:
    """For a test of every page in which there is something to look at. If there is none, its collection fails."""
    return pytest.mark.parametrize("page", [page for page in PAGES if any(find(page))], ids=lambda page: page.name)


def rows(page: str, *, before: str = "\0") -> list[list[str]]:
    """The cells of every table's rows whose first cell is a name in code, of a page or of what stands before a heading."""
    lines = (DOCS / page).read_text().partition(before)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_every_reason_is_documented_once_with_its_meaning_and_what_to_do() -> None:
    found = [cells for cells in rows("conditions.md", before="## Events") if len(cells) == 3]
    reasons = {cells[0].strip("`"): cells[1:] for cells in found}
    assert set(reasons) == set(Reason)
    assert len(found) == len(reasons)
    assert all(meaning and advice for meaning, advice in reasons.values())


def test_every_condition_is_documented_in_the_order_in_which_people_read_them() -> None:
    documented = [cells[0].strip("`") for cells in rows("conditions.md") if len(cells) == 5]
    assert documented == list(Type)


@pytest.mark.parametrize("kind", [Reason, EventReason])
def test_every_reason_that_is_documented_is_given_somewhere(kind: type[Reason | EventReason]) -> None:
    given = {f"{stage.capitalize()}{end}" for stage in StageName for end in ("Started", "Succeeded", "Failed")}
    given |= {
        Reason.INVALID_CONFIGURATION,
        Reason.INTERNAL_ERROR,
    }  # which a condition and an Event tell in the same words
    for file in (file for folder in SOURCES for file in folder.rglob("*.py")):
        given |= {str(kind[name]) for name in re.findall(rf"\b{kind.__name__}\.([A-Z_]+)\b", file.read_text())}
    assert [str(reason) for reason in kind if reason not in given] == []


def test_every_event_is_documented_once() -> None:
    section = (DOCS / "conditions.md").read_text().partition("\n## Events\n")[2]
    named = [
        name
        for line in section.splitlines()
        for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    ]
    assert sorted(named) == sorted(EventReason)
    stages = {stage.capitalize() for stage in StageName} - {"Probe"}
    assert {f"{stage}{end}" for stage in stages for end in ("Started", "Succeeded", "Failed")} <= set(EventReason)


def test_the_runbook_has_what_the_conditions_page_sends_there_for() -> None:
    sent = [cells[0].strip("`") for cells in rows("conditions.md") if cells[-1].startswith("See the runbook")]
    headings = re.findall(r"^## (\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert sent
    assert set(sent) <= set(headings)


def test_every_known_failure_has_a_test_or_is_said_not_to_be_looked_for() -> None:
    found = re.findall(r"^\| (\d+) \|.*\| (.*) \| (.*?) ?\|$", (DOCS / "failures.md").read_text(), re.MULTILINE)
    assert found
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    for number, here, tested in found:
        assert bool(tested) is not here.startswith("Not looked for"), number


def test_the_format_of_artifacts_is_specified() -> None:
    text = (DOCS / "artifacts.md").read_text()
    for name in (
        artifacts.MANIFEST,
        artifacts.FORMAT,
        artifacts.PROMPTS,
        artifacts.VOCABULARY,
        artifacts.WEIGHTS,
        artifacts.CONFIG,
        artifacts.REPORT,
        artifacts.REPORT_PAGE,
        artifacts.PROVENANCE,
        artifacts.HELD_OUT,
        artifacts.ANSWERS,
    ):
        assert f"`{name}`" in text, name


def test_every_rule_for_drafts_is_documented_with_what_it_looks_at_and_how_to_mend_it() -> None:
    documented = {cells[0].strip("`"): cells[1:] for cells in rows("checkpoints.md") if len(cells) == 3}
    rules = (*RULES, FINITE, FILLED, DISTINCT, TRAINED, PROPOSALS, ACCURACY, READING, AGREEMENT)
    assert documented == {rule.id: [rule.what, rule.mend] for rule in rules}
    assert list(documented) == [rule.id for rule in rules]


def test_every_target_that_is_supported_is_listed_with_how_its_states_are_known_and_every_other_that_is_refused() -> (
    None
):
    (section,) = re.findall(
        r"^## Which targets$(.*?)^## ", (DOCS / "compatibility.md").read_text(), re.MULTILINE | re.DOTALL
    )
    rows = re.findall(r"^\| (`.*?) \| (\w+)", section, re.MULTILINE)
    listed = {name: how for names, how in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {name: capture_known(name, Version(0, 5, 21)) for name in KNOWN_TARGETS}
    assert all(f"`{name}`" in section for name in UNFIT)


def test_the_first_page_says_which_releases_of_sglang_are_served() -> None:
    assert f"An SGLang image, {OLDEST} to {NEWEST}," in (DOCS.parent / "README.md").read_text()


def test_the_first_page_shows_the_least_that_works_as_the_example_has_it() -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```", (DOCS.parent / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert shown == [(DOCS.parent / "examples" / "minimal.yaml").read_text()]


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page leads to, and where in them: an anchor, or nothing."""
    found = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text())
    return [((page.parent / target).resolve() if target else page, anchor) for target, anchor in found]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^-\w ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages_with(links)
def test_no_link_leads_nowhere(page: Path) -> None:
    assert [
        target for target, anchor in links(page) if not target.exists() or (anchor and anchor not in anchors(target))
    ] == []


def test_the_index_leads_to_every_page_and_every_example() -> None:
    index = DOCS / "README.md"
    led_to = {target for target, _ in links(index)}
    examples = set((DOCS.parent / "examples").rglob("*.yaml"))
    assert {*DOCS.rglob("*.md"), *examples} - {index} <= led_to


def test_each_word_of_the_glossary_is_explained_once() -> None:
    words = [
        line.split("|")[1].strip()
        for line in (DOCS / "README.md").read_text().partition("## Words")[2].splitlines()[5:]
    ]
    assert len(words) == len(set(words)) > 10


# ------------------------------------------------------------------------------------------- what is looked up

CODE = [path for folder in ("crds", "operator", "images/draft") for path in (DOCS.parent / folder).rglob("*.py")]
SOURCE = "\n".join(path.read_text() for path in CODE)
REFERENCE = (DOCS / "reference.md").read_text()


def test_every_metric_is_listed_and_no_other() -> None:
    metrics = Metrics()
    metrics.known("llm", "kimi", "Serving", available=True)
    ours = [metric for metric in metrics.registry.collect() if metric.name.startswith("eagle3_")]
    operators = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in ours}
    trains = {f"eagle3_train_{name}" for name in re.findall(r'_gauge\(\s*"(\w+)"', SOURCE)}
    assert set(re.findall(r"`(eagle3_(?:operator|train)_\w+)`", REFERENCE)) == operators | trains


def test_every_exit_code_is_listed_under_its_name() -> None:
    assert re.findall(r"^\| (\d+) \| `(\w+)` \|", REFERENCE, re.MULTILINE) == [(str(int(c)), c.name) for c in ExitCode]


def test_every_variable_of_ours_is_listed_and_those_that_pages_name_are_there() -> None:
    pattern = r"\bEAGLE3_[A-Z_]+\b"
    there = set(re.findall(pattern, SOURCE))
    assert there == set(re.findall(pattern, REFERENCE))
    tests = {name for path in tracked() for name in re.findall(pattern, path.read_text())}
    assert {name for page in PAGES for name in re.findall(pattern, page.read_text())} <= there | tests


def test_every_annotation_and_label_is_listed_and_those_that_pages_name_are_there() -> None:
    there = set(re.findall(r"""_(?:LABEL|ANNOTATION) = f?"(?:\{GROUP\}|eagle3\.dev)/([a-z]+)\"""", SOURCE))
    assert {"retry", "approve", "name", "stage", "revision", "key", "config"} <= there
    pattern = r"eagle3\.dev/([a-z]+)\b(?![/.])"
    listed = set(re.findall(pattern, REFERENCE))
    assert there == listed
    assert {name for page in PAGES for name in re.findall(pattern, page.read_text())} - {"v"} <= there


def test_every_file_of_the_repository_that_a_page_names_is_there() -> None:
    files = {str(path.relative_to(DOCS.parent)) for path in tracked()}
    missing = [
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", page.read_text())
        if not any(f"/{file}".endswith(f"/{name}") for file in files) and name not in OTHERS
    ]
    assert missing == []


#: Other projects' own.
OTHERS = {"prepare_hidden_states.py"}


def tracked() -> Iterator[Path]:
    """The Python files of the repository."""
    for folder in ("crds", "operator", "images", "tests", "examples"):
        yield from (DOCS.parent / folder).rglob("*.py")


def test_every_value_of_the_chart_that_a_page_names_is_one() -> None:
    values = yaml.safe_load((DOCS.parent / "helm" / "eagle3-operator" / "values.yaml").read_text())
    sections = {name for name, value in values.items() if isinstance(value, dict) and name not in SECTIONS}
    named = 0
    for page in PAGES:
        for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", page.read_text()):
            section, *path = name.split(".")
            if section in sections and path[-1] not in ("yaml", "py"):
                assert path[0] in values[section], f"{page.name}: {name}"
                named += 1
    assert named


def drafted(page: Path) -> list[list[str]]:
    """How a page has the drafts' own command typed."""
    found = re.findall(r"^eagle3-draft ((?:[^`\n|#\\]|\\\n)+)", page.read_text(), re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in found]


@pages_with(drafted)
def test_every_command_for_drafts_in_a_page_has_the_flags_that_it_is_given(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no torch, and so nothing is done
    monkeypatch.chdir(tmp_path)
    for words in drafted(page):
        try:
            code = by_hand(words)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        assert code != 2, words


SCHEMA = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SECTIONS = SCHEMA["properties"]["spec"]["properties"]
Schema = dict[str, Any]


def field(schema: Schema, path: list[str]) -> Schema | None:
    """The schema of a field; None if there is none of that name."""
    for name in path:
        while schema["type"] == "array":
            schema = schema["items"]
        inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if not isinstance(inner, dict):
            return None
        schema = inner
    return schema


def blocks(page: Path) -> Iterator[dict[str, Any]]:
    """The specs, or parts of one, in a page's YAML."""
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        written = yaml.safe_load(text)
        if written.get("kind", KIND) != KIND:
            continue
        spec = written.get("spec", written)
        if "spec" in written or set(spec) <= set(SECTIONS):
            yield spec


@pages_with(blocks)
def test_every_field_in_the_yaml_of_a_page_is_one_of_the_objects(page: Path) -> None:
    assert [name for spec in blocks(page) for name in unknown_fields(SCHEMA["properties"]["spec"], spec, "spec")] == []


#: Its names of that form are those of tensors.
FEATURES = DOCS / "features.md"


def fields(page: Path) -> list[list[str]]:
    """The dotted names in a page that begin as those of fields do: below ``spec``, or as they stand in it."""
    if page == FEATURES:
        return []
    text = page.read_text()
    named = [words.split(".") for words in re.findall(r"`([a-z]\w*(?:\.[a-z]\w*)+)(?:: [^`]*)?`", text)]
    named += [words.split(".") for words in re.findall(r"{\.((?:spec|status)(?:\.\w+)*)", text)]
    files = ("json", "jsonl", "safetensors", "html", "py", "yaml")
    return [
        path if path[0] in ("spec", "status") else ["spec", *path]
        for path in named
        if path[-1] not in files and (path[0] in ("spec", "status") or path[0] in SECTIONS)
    ]


@pages_with(fields)
def test_every_field_that_a_page_names_is_one_of_the_objects(page: Path) -> None:
    assert [".".join(path) for path in fields(page) if field(SCHEMA, path) is None] == []


def enumerated(schema: Schema) -> set[str]:
    """The values that fields of a schema may have, where they are listed."""
    parts = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return set(schema.get("enum", ())).union(*(enumerated(part) for part in parts if isinstance(part, dict)))


#: Answers of object stores, and the operator's error of its API server, as its metrics and log have it.
SAID_ELSEWHERE = {"SlowDown", "PathStyleDomainForbidden", "SecondLevelDomainForbidden", "ApiError"}


def words_of_status(page: Path) -> list[str]:
    """The names in a page that are written as reasons and conditions are, of two words or more."""
    return re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", page.read_text())


@pages_with(words_of_status)
def test_every_reason_and_condition_that_a_page_names_is_one(page: Path) -> None:
    there = {*Reason, *EventReason, *Type} | enumerated(SCHEMA["properties"]["spec"])
    assert set(words_of_status(page)) - there - SAID_ELSEWHERE == set()


#: What stands for a word of the reader's.
STANDING_FOR = {"VERSION": str(NEWEST), "rN": "r3"}


def typed(page: Path) -> list[list[str]]:
    """How a page has the plugin's commands typed: their words, after its own."""
    lines = re.findall(r"kubectl eagle3 ((?:[^`\n|#\\]|\\\n)+)", page.read_text())
    return [[STANDING_FOR.get(word, word) for word in shlex.split(line.replace("\\\n", " "))] for line in lines]


@pages_with(typed)
def test_every_command_of_the_plugin_in_a_page_has_the_flags_that_it_is_given(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no kubectl, and so nobody's cluster
    monkeypatch.chdir(tmp_path)
    for words in typed(page):
        monkeypatch.setattr("sys.stdin", io.StringIO())
        try:
            code = main(words if len(words) > 1 else [*words, "--help"])  # in a sentence the command is named alone
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        assert code != 2, words


def annotations(page: Path) -> list[tuple[str, str]]:
    """What a page has somebody annotate: the annotation's name, and what it is about."""
    return re.findall(r"eagle3\.dev/(\w+)[=:] ?([\w]+)@", page.read_text())


@pages_with(annotations)
def test_every_annotation_in_a_page_is_one_that_is_acted_on(page: Path) -> None:
    stages = {*StageName, "STAGE"}
    for kind, what in annotations(page):
        assert kind in ("retry", "approve")
        assert what in stages or re.fullmatch(r"r(\d+|N)", what), what


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (DOCS.parent / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^ +|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert {"demo", "test", "crd"} <= named <= targets
