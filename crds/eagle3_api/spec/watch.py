"""``watch``: how what serves is judged."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.spec.duration import Duration, WindowLength
from eagle3_api.spec.schema import rule, rules, section
from eagle3_api.spec.strings import Name


class PrometheusReference(Model):
    """A Prometheus server named in the chart's values."""

    name: Name = Field(description="Its name under prometheus.servers in the chart's values.")


class Failures(Model):
    """How many failed windows it takes before the operator acts."""

    model_config = rules(rule("self.of <= self.__in__", "failures.of cannot be larger than failures.in"))

    of: int = Field(2, ge=1, le=10, description="How many windows must fail before the operator acts.")
    within: int = Field(
        2, ge=1, le=10, alias="in", description="How many of the most recent judged windows are counted."
    )


class Watch(Model):
    """Judgement of the serving revision from what its servers count."""

    prometheus: PrometheusReference | None = Field(
        None,
        description="The Prometheus that has the counters. Without it the operator reads them directly from the "
        "serving pods.",
    )
    window: WindowLength = Field(
        "5m", description="Length of one window, ten seconds at least; windows do not overlap."
    )
    min_tokens: int = Field(
        1000, ge=1, le=1_000_000_000, description="Verified tokens that a window needs to be judged."
    )
    failures: Failures = section(Failures)
    mode: Literal["Enforce", "Observe"] = Field("Enforce", description="Observe reports and never rolls back.")
    cooldown: Duration = Field(
        "10m",
        description="After the watch has acted, by a rollback or by looking for new data, it does not act again for "
        "this long.",
    )
    on_no_data: Literal["Ignore", "Report"] = Field(
        "Ignore",
        description="Report makes DraftHealthy False, not Unknown, while metrics cannot be read or none of the last windows "
        "had enough traffic. Nothing is rolled back for it.",
    )
    drift_band: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="How far the accept length may fall below that of the revision's first windows, as a share of it, "
        "before the draft is said to drift.",
    )
    on_drift: Literal["Report", "Retrain"] = Field(
        "Report",
        description="What to do about a draft that drifts: it is still faster than none and keeps serving. Report "
        "only says so; Retrain inspects the data again and trains on it if it has changed.",
    )
