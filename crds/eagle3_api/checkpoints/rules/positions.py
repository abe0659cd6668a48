"""How far the draft sees."""

from collections.abc import Iterator

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rope import SGLANGS_YARN
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.conditions import Reason

#: Rotary embeddings that stay what they are when the configuration allows more positions.
ROPES = frozenset({"default", "linear", "llama3", "yarn", "mrope"})


#: Kinds that SGLang's ``get_rope`` builds, each with the fields without which it turns positions otherwise than in training, or
#: does not start. Its defaults for the rest are the published ones. Source: SGLang 0.5.21, rotary_embedding/factory.py.
_REQUIRED = {
    "default": (),
    "mrope": ("mrope_section",),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    SGLANGS_YARN: ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "proportional": (),
}

#: What kinds were called before, which SGLang does not know.
_FORMERLY = {"su": "longrope"}

_LISTS = frozenset({"mrope_section", "short_factor", "long_factor"})
_PER_PAIR = frozenset({"short_factor", "long_factor"})
_NUMBERS = frozenset(
    {
        "factor",
        "alpha",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attn_factor",
        "extrapolation_factor",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
    }
)


def _rope(form: Form, _: Served) -> Iterator[Found]:
    kind = form.rope.get("rope_type")
    if not form.rope:
        yield refused(Reason.CONFIG_INVALID, "rope_parameters (or rope_scaling) is not an object")
        return
    if not isinstance(kind, str) or kind not in _REQUIRED:
        yield refused(
            Reason.CONFIG_INVALID,
            f"rope_type is {kind!r:.40}, and SGLang refuses to start with what is none of {', '.join(_REQUIRED)}"
            + (f". {_FORMERLY[kind]} was called so: write that" if isinstance(kind, str) and kind in _FORMERLY else ""),
        )
        return
    if "mrope_section" in form.rope and kind not in ("default", "mrope"):
        yield refused(
            Reason.CONFIG_INVALID,
            f"its rotary embedding is of type {kind} and has an mrope_section: SGLang takes every kind that has one for default, "
            "and positions would not be scaled as in training",
        )
    if form.rope.get("use_fope"):
        yield refused(
            Reason.CONFIG_INVALID,
            "use_fope is set: such a rotary embedding has coefficients of its own, and conversion carries none",
        )
    missing = [name for name in _REQUIRED[kind] if name not in form.rope]
    if missing and not (kind == "dynamic" and "alpha" in form.rope):  # Hunyuan's, which SGLang scales by instead
        yield refused(
            Reason.CONFIG_INVALID,
            f"a rotary embedding of type {kind} needs {', '.join(missing)}: without a factor SGLang takes 1.0, and positions turn "
            "otherwise than in training",
        )
    for name, value in form.rope.items():
        if (name in _NUMBERS and not _is_number(value)) or (
            name in _LISTS and not (isinstance(value, list) and value and all(map(_is_number, value)))
        ):
            yield refused(
                Reason.CONFIG_INVALID,
                f"{name} of its rotary embedding is {value!r:.40}, not {'numbers' if name in _LISTS else 'a number'}",
            )
        elif name in _PER_PAIR and isinstance(value, list) and form.head_dim and len(value) != form.head_dim // 2:
            yield refused(
                Reason.CONFIG_INVALID,
                f"{name} of its rotary embedding has {len(value)} numbers, and a head of {form.head_dim} has {form.head_dim // 2} pairs "
                "that turn: SGLang refuses to start",
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30


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
    if not isinstance(kind, str) or kind not in ROPES:
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
