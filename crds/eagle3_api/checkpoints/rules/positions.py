"""How far the draft sees."""

from collections.abc import Iterator

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.conditions import Reason

#: Rotary embeddings that stay what they are when the configuration allows more positions.
ROPES = frozenset({"default", "linear", "llama3", "yarn", "mrope"})


def _rope(form: Form, _: Served) -> Iterator[Found]:
    if not form.rope:
        yield refused(Reason.CONFIG_INVALID, "rope_parameters (or rope_scaling) is no object")
    elif not isinstance(form.rope.get("rope_type"), str):
        yield refused(Reason.CONFIG_INVALID, f"rope_type is {form.rope.get('rope_type')!r:.40}")


ROPE = HeaderRule(
    "rope",
    "its rotary embedding",
    "positions turn otherwise than in training",
    "Spell out rope_parameters with rope_type and rope_theta.",
    _rope,
)


def _context(form: Form, served: Served) -> Iterator[Found]:
    if served.context_length is None:
        yield Found(Level.UNKNOWN, "no served context was given")
        return
    reach = form.max_position_embeddings or 0
    if reach >= served.context_length:
        return
    kind = form.rope.get("rope_type")
    if kind not in ROPES:
        yield refused(
            Reason.CONTEXT_TOO_SHORT,
            f"max_position_embeddings is {form.max_position_embeddings}, the served context {served.context_length}: SGLang "
            f"refuses to start, and with a rotary embedding of type {kind} another number would make it another draft",
        )
        return
    yield Found(
        Level.WARNING,
        f"max_position_embeddings is {form.max_position_embeddings}, and becomes the served context {served.context_length}, or "
        "SGLang would not start. Beyond what it was trained on, a draft is accepted less",
        Reason.CONTEXT_TOO_SHORT,
    )


CONTEXT = HeaderRule(
    "context",
    "positions against the served context",
    "SGLang refuses to start with a draft that says less",
    "Lower serve.contextLength, or train a draft that goes further.",
    _context,
)


def _window(form: Form, _: Served) -> Iterator[Found]:
    if form.window is not None:
        yield Found(
            Level.WARNING,
            f"its attention was trained to see {form.window} positions, and is served without that limit unless the server gets "
            f"--speculative-draft-window-size {form.window}",
        )


WINDOW = HeaderRule(
    "window",
    "a sliding window in its attention",
    "SGLang does not take it from config.json",
    "Pass the flag in the message in serve.arguments.",
    _window,
)
