"""What the documents promise to be complete."""

import re
from pathlib import Path

import pytest

from eagle3_api import artifacts
from eagle3_api.checkpoints.rules import RULES
from eagle3_api.conditions import Reason, Type
from eagle3_api.sglang import NEWEST, OLDEST, PLUS_ONE, RAW_UNLESS_FIRST_IS_ONE
from eagle3_draft.convert.agreement import AGREEMENT
from eagle3_draft.convert.proof import ACCURACY
from eagle3_draft.convert.values import DISTINCT, FILLED, FINITE, TRAINED

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")])


def rows(page: str) -> list[list[str]]:
    """The cells of every table's rows whose first cell is a name in code."""
    lines = (DOCS / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_every_reason_is_documented_once_with_its_meaning_and_what_to_do() -> None:
    reasons = {cells[0].strip("`"): cells[1:] for cells in rows("conditions.md") if len(cells) == 3}
    assert set(reasons) == set(Reason)
    assert sum(len(cells) == 3 for cells in rows("conditions.md")) == len(reasons)
    assert all(meaning and advice for meaning, advice in reasons.values())


def test_every_condition_is_documented_in_the_order_in_which_people_read_them() -> None:
    documented = [cells[0].strip("`") for cells in rows("conditions.md") if len(cells) == 5]
    assert documented == list(Type)


def test_the_runbook_has_what_the_conditions_page_sends_there_for() -> None:
    sent = [cells[0].strip("`") for cells in rows("conditions.md") if cells[-1].startswith("See the runbook")]
    headings = re.findall(r"^## (\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert sent
    assert set(sent) <= set(headings)


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
    documented = {cells[0].strip("`"): cells[1:] for cells in rows("checkpoints.md")}
    rules = (*RULES, FINITE, FILLED, DISTINCT, TRAINED, ACCURACY, AGREEMENT)
    assert documented == {rule.id: [rule.what, rule.mend] for rule in rules}
    assert list(documented) == [rule.id for rule in rules]


def test_every_target_that_is_supported_is_listed() -> None:
    (section,) = re.findall(
        r"^## Which targets$(.*?)^## ", (DOCS / "extraction.md").read_text(), re.MULTILINE | re.DOTALL
    )
    listed = re.findall(r"`(\w+For\w+)`", section)
    assert sorted(listed) == sorted(PLUS_ONE | RAW_UNLESS_FIRST_IS_ONE)


def test_the_first_page_says_which_releases_of_sglang_are_served() -> None:
    assert f"An SGLang image, {OLDEST} to {NEWEST}," in (DOCS.parent / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_leads_nowhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
