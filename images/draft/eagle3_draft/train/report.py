"""The training's report as a page that opens anywhere: curves, numbers, settings."""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from eagle3_api.estimate import readable_bytes
from eagle3_draft.train.charts import Line, line_chart

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --page: light-dark(#ffffff, #16181d); --ink: light-dark(#1c2026, #e6e8ec); --quiet: light-dark(#5c6470, #9aa3b0);
  --rule: light-dark(#e3e6ea, #2e333b); --one: light-dark(#1f6fb4, #6db3f2); --two: light-dark(#b45f06, #f0a35e);
  --three: light-dark(#2f7d4f, #74c493);
}
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
p, td, th { color: var(--ink); } .quiet { color: var(--quiet); }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.grid { stroke: var(--rule); } .mark { stroke: var(--quiet); stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.tick, .axis { fill: var(--quiet); } .label { font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
td:first-child, th:first-child { text-align: left; }
pre { overflow-x: auto; color: var(--quiet); }
</style>
</head>
<body>
<h1>$title</h1>
<p>$summary</p>
<h2>Expected accept length</h2>
<p class="quiet">By replay on the held-out conversations, the target's own token counted: what a server would accept per
verification if it drafted so many tokens.</p>
$accept_lengths
<h2>Loss</h2>
$losses
<h2>Accuracy by unroll step</h2>
<p class="quiet">Of the published weights: how often a step's proposal is the target's own token, and how often all steps up
to it are.</p>
$accuracies
<h2>Evaluations</h2>
$evaluations
<h2>Numbers</h2>
$numbers
<h2>Settings</h2>
<pre>$settings</pre>
</body>
</html>
""")

#: Draft steps whose accept length gets a line, of those that were replayed.
_SHOWN_STEPS = (1, 2, 3, 5, 8)


def page(report: Mapping[str, Any]) -> str:
    """The HTML of a training's ``report.json``: one file, no script, nothing that is fetched."""
    result, evaluations = report["result"], report["heldOut"]
    best = next(one for one in evaluations if one["step"] == result["bestStep"])
    owner = report["config"]["owner"]
    return _PAGE.substitute(
        title=escape(f"Draft of {owner['namespace']}/{owner['name']}"),
        summary=escape(
            f"Expected accept length {result['expectedAcceptLengths'][-1]:.2f} with "
            f"{len(result['expectedAcceptLengths'])} draft steps, on {result['heldOut']:,} held-out conversations. The "
            f"published weights are those {_published(report)}."
        ),
        accept_lengths=_accept_lengths(evaluations, result["bestStep"]),
        losses=_losses(report["training"], evaluations, result["bestStep"]),
        accuracies=_accuracies(best),
        evaluations=_evaluations(evaluations),
        numbers=_table(["", ""], _numbers(result, report["passedOver"])),
        settings=escape("\n".join(f"{name}: {value}" for name, value in sorted(report["config"].items()))),
    )


def _published(report: Mapping[str, Any]) -> str:
    """When the published weights were reached, in words."""
    best, steps = report["result"]["bestStep"], report["result"]["steps"]
    if best:
        return f"after step {best:,} of {steps:,} (epoch {report['bestEpoch']})"
    return "that it began with" + (f", which none of {steps:,} steps made better" if steps else "")


def _accept_lengths(evaluations: Sequence[Mapping[str, Any]], best: int) -> str:
    """One hue, the deeper the more steps are drafted."""
    shown = [steps for steps in _SHOWN_STEPS if steps <= len(evaluations[0]["accept_length"])]
    lines = [
        Line(
            f"{steps} draft step{'s' if steps > 1 else ''}",
            [(one["step"], one["accept_length"][steps - 1]) for one in evaluations],
            f"color-mix(in srgb, var(--one) {40 + 60 * (number + 1) // len(shown)}%, var(--page))",
        )
        for number, steps in enumerate(shown)
    ]
    return line_chart(lines, x_title="optimizer step", y_title="tokens per verification", mark=(best, "published"))


def _losses(training: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], best: int) -> str:
    lines = [
        Line("in training", [(point["step"], point["loss"]) for point in training], "var(--one)"),
        Line("held out", [(one["step"], one["loss"]) for one in evaluations], "var(--two)"),
    ]
    return line_chart(lines, x_title="optimizer step", y_title="loss", mark=(best, "published"))


def _accuracies(best: Mapping[str, Any]) -> str:
    lines = [
        Line("right", list(enumerate(best["accuracy"], 1)), "var(--one)"),
        Line("right so far", list(enumerate(best["prefix_survival"], 1)), "var(--three)"),
    ]
    return line_chart(lines, x_title="unroll step", y_title="share")


def _evaluations(evaluations: Sequence[Mapping[str, Any]]) -> str:
    lengths = range(1, len(evaluations[0]["accept_length"]) + 1)
    rows = [
        [
            f"{one['step']:,}",
            str(one["epoch"]),
            f"{one['loss']:.3f}",
            *(f"{length:.2f}" for length in one["accept_length"]),
        ]
        for one in evaluations
    ]
    return _table(["step", "epoch", "loss", *(f"{steps} drafted" for steps in lengths)], rows)


def _numbers(result: Mapping[str, Any], passed_over: Sequence[str]) -> list[list[str]]:
    named = {
        "tokens trained on": f"{result['tokens']:,}",
        "tokens/s": f"{result['tokensPerSecond']:,.0f}",
        "time waiting for data": f"{result['waiting']:.1%}",
        "measuring the draft, beside the steps": f"{result['measuringSeconds']:,.0f} s",
        "time in which the GPUs compute, by their conversations": f"{result['busy']:.0%}",
        "peak memory": readable_bytes(result["peakMemoryBytes"]),
        "resumed": f"{result['resumed']} times",
        "draft vocabulary": f"{result['vocabularySize']:,}",
        "supervised tokens it covers": f"{result['vocabularyCoverage']:.2%}",
        "special tokens in it": f"{result['specialTokensInside']:,} of {result['specialTokens']:,}",
    }
    if passed_over:
        named["checkpoints passed over"] = "; ".join(passed_over)
    return [[name, value] for name, value in named.items()]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads) if any(heads) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if head else f"<table>{body}</table>"
