"""The stages as values of one type, and the chain of them that an object wants.

A stage says what it is made from, which of that determines its output (its key hashes it, with its upstream's key) and which
configuration its Job gets. A new stage is a module here, beside its ``Traits`` and its part of ``eagle3_api.jobs``.
"""

from functools import partial

from eagle3_api.jobs import Facts, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.stages.attempts import Attempts
from eagle3_operator.decide.stages.clean import clean, clean_for_adopted
from eagle3_operator.decide.stages.configuration import sglang_version
from eagle3_operator.decide.stages.convert import CONVERT
from eagle3_operator.decide.stages.extract import EXTRACT
from eagle3_operator.decide.stages.fetch import fetch
from eagle3_operator.decide.stages.hook import HOOK, Pushed
from eagle3_operator.decide.stages.inspect import INSPECT, Look
from eagle3_operator.decide.stages.probe import PROBE, Probed
from eagle3_operator.decide.stages.publish import PUBLISH, Push
from eagle3_operator.decide.stages.stage import Context, Link
from eagle3_operator.decide.stages.train import TRAIN

__all__ = [
    "HOOK",
    "INSPECT",
    "PROBE",
    "PUBLISH",
    "Attempts",
    "Link",
    "Look",
    "Probed",
    "Push",
    "Pushed",
    "after_inspection",
    "clean",
    "clean_for_adopted",
    "fetch",
    "sglang_version",
]


def after_inspection(
    obj: Eagle3Draft, facts: Facts, attempts: Attempts, features_capacity: int | None = None
) -> list[Link]:
    """The stages that follow, in order: all three, or Convert alone for an adopted checkpoint.

    Args:
        obj: the object.
        facts: what Inspect saw.
        attempts: what was asked for again.
        features_capacity: bytes of the features claim; in no key, as it changes no output.
    """
    stages = [CONVERT] if obj.spec.draft.checkpoint else [EXTRACT, TRAIN, CONVERT]
    links: dict[StageName, Link] = {}
    for stage in stages:
        links[stage.name] = attempts.link(partial(stage.link, Context(obj, facts, dict(links), features_capacity)))
    return list(links.values())
