"""That the draft was trained for this target."""

from collections.abc import Iterator

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.conditions import Reason
from eagle3_api.sglang import supports_target, why_unsupported


def _target(form: Form, served: Served) -> Iterator[Found]:
    target = served.target
    if target is None:
        yield Found(Level.UNKNOWN, "no target was given")
        return
    if not supports_target(target.architecture):
        yield refused(Reason.TARGET_UNSUPPORTED, why_unsupported(target.architecture))
    if form.target_hidden_size not in (None, target.hidden_size):
        yield refused(
            Reason.FEATURE_MISMATCH,
            f"the draft reads states of {form.target_hidden_size} numbers, the target's have {target.hidden_size}: it was "
            "trained for another model",
        )
    if form.vocabulary_size not in (None, target.vocabulary_size):
        yield refused(
            Reason.CONFIG_INVALID,
            f"vocab_size is {form.vocabulary_size}, the target's is {target.vocabulary_size}: it was trained for another model",
        )


TARGET = HeaderRule(
    "target",
    "that it was trained for this target",
    "it would read other states and propose other tokens",
    "Take the draft of this target.",
    _target,
)
