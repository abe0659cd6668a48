"""The report opens anywhere and shows what the training measured."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.train.charts import HEIGHT, WIDTH, Line, line_chart
from eagle3_draft.train.report import page

RESULT = {
    "steps": 40,
    "tokens": 123456,
    "expectedAcceptLengths": [1.5, 2.0, 2.25],
    "heldOut": 12,
    "vocabularySize": 64,
    "vocabularyCoverage": 0.991,
    "specialTokens": 256,
    "specialTokensInside": 11,
    "tokensPerSecond": 5000.0,
    "waiting": 0.021,
    "busy": 0.87,
    "measuringSeconds": 1234.5,
    "peakMemoryBytes": 3 * 2**30,
    "bestStep": 20,
    "resumed": 1,
}


def evaluation(step: int, length: float) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": 1 + step // 21,
        "loss": 3.0 - length / 2,
        "accuracy": [0.7, 0.6],
        "prefix_survival": [0.7, 0.5],
        "accept_length": [1.5, 2.0, length],
    }


REPORT = {
    "result": RESULT,
    "bestEpoch": 1,
    "training": [{"step": step, "loss": 4.0 / step, "accuracy": 0.5, "learningRate": 1e-4} for step in range(1, 41)],
    "heldOut": [evaluation(20, 2.25), evaluation(40, 2.2)],
    "passedOver": [],
    "config": {"owner": {"namespace": "llm", "name": "<script>"}, "epochs": 2},
}


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>") for part in html.split("<svg")[1:]]


def test_the_page_says_what_was_reached_and_which_weights_are_published() -> None:
    html = page(REPORT)
    assert "Expected accept length 2.25 with 3 draft steps, on 12 held-out conversations" in html
    assert "after step 20 of 40 (epoch 1)" in html
    for number in ("123,456", "5,000", "2.1%", "87%", "1,234 s", "3.00 GiB", "99.10%", "11 of 256"):
        assert number in html


def test_the_page_says_where_a_training_was_in_vain_and_where_there_was_none() -> None:
    vain = REPORT | {"result": RESULT | {"bestStep": 0}, "heldOut": [evaluation(0, 2.25), evaluation(40, 2.2)]}
    assert "The published weights are those that it began with, which none of 40 steps made better." in page(vain)
    none = REPORT | {"result": RESULT | {"bestStep": 0, "steps": 0}, "heldOut": [evaluation(0, 2.25)]}
    assert "The published weights are those that it began with." in page(none)


def test_the_page_names_checkpoints_that_could_not_be_gone_on_from() -> None:
    assert "checkpoints passed over" not in page(REPORT)
    assert "<td>.step-12: state.json is not as it was written</td>" in page(
        REPORT | {"passedOver": [".step-12: state.json is not as it was written"]}
    )


def test_the_page_runs_nothing_and_fetches_nothing() -> None:
    html = page(REPORT).lower()
    assert "<script" not in html
    assert not any(word in html for word in ("http:", "https:", "src=", "href=", "@import", "url("))


def test_its_curves_are_accept_length_loss_and_accuracy() -> None:
    lengths, losses, accuracies = svgs(page(REPORT))
    assert [text.text for text in lengths.findall("text[@class='label']")] == [
        "3 draft steps",
        "2 draft steps",
        "1 draft step",
    ]
    assert {text.text for text in losses.findall("text[@class='label']")} == {"in training", "held out"}
    assert {text.text for text in accuracies.findall("text[@class='label']")} == {"right", "right so far"}
    training = max((path.get("d", "") for path in losses.findall("path[@class='line']")), key=len)
    assert training.count("L") == 39


POINTS = st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e6, 1e6)), max_size=12)


@given(st.lists(POINTS, max_size=5))
def test_whatever_is_drawn_stays_inside(lines: list[list[tuple[float, float]]]) -> None:
    drawn = [Line(f"line {number}", sorted(points), "red") for number, points in enumerate(lines)]
    svg = ElementTree.fromstring(line_chart(drawn, x_title="x", y_title="y"))
    for path in svg.findall("path[@class='line']"):
        for place in path.get("d", "").removeprefix("M").split("L"):
            x, y = map(float, place.split())
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_left_out(value: float) -> None:
    points = [(1.0, 2.0), (2.0, value), (3.0, 4.0)]
    svg = ElementTree.fromstring(line_chart([Line("line", points, "red")], x_title="x", y_title="y"))
    path = svg.find("path[@class='line']")
    assert path is not None
    assert path.get("d", "").count("L") == 1
