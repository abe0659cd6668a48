"""What kind of draft it is, and how it says so."""

from collections.abc import Iterator

from eagle3_api.checkpoints.form import LATENT_SIZES, Form
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.conditions import Reason
from eagle3_api.sglang import DEEPER_SINCE, FC_NORM_SINCE, LATENT_ATTENTION, LATENT_DRAFT, NORM_BEFORE_FC_SINCE, OLDEST

#: Decoder layers that a draft may have.
DEEPEST = 16


def _kind(form: Form, served: Served) -> Iterator[Found]:
    for why in form.unsupported:
        yield refused(Reason.UNSUPPORTED_DRAFT, why)
    if form.latent is not None:
        yield from _latent(form, served)


KIND = HeaderRule(
    "kind",
    "what kind of draft it is",
    "SGLang serves other kinds as if they were EAGLE-3, at accept length 1.0",
    "Train or take an EAGLE-3 draft of Llama layers, or of one layer with latent attention.",
    _kind,
)


def _latent(form: Form, served: Served) -> Iterator[Found]:
    """What SGLang's class for latent attention does not know."""
    where = f"its attention is latent ({LATENT_DRAFT}), and SGLang's class of such drafts"
    if form.depth != 1:
        yield refused(Reason.UNSUPPORTED_DRAFT, f"{where} has one decoder layer, not {form.depth}")
    if form.norm_before_fc:
        yield refused(Reason.UNSUPPORTED_DRAFT, f"{where} has no norm_before_fc")
    if form.rope and form.rope.get("rope_type") not in ("default", "yarn"):
        yield refused(
            Reason.UNSUPPORTED_DRAFT, f"{where} would take its rope, {form.rope.get('rope_type')!r:.40}, for yarn"
        )
    if served.target is not None and served.target.architecture not in LATENT_ATTENTION:
        yield refused(
            Reason.UNSUPPORTED_DRAFT,
            f"its attention is latent, that of {served.target.architecture} is not: few of SGLang's attention backends serve "
            "both, and none was tried on a GPU. Take a draft with a Llama layer",
        )


def _layout(form: Form, _: Served) -> Iterator[Found]:
    for what in form.mended:
        yield Found(Level.MENDED, what)


LAYOUT = HeaderRule(
    "layout",
    "names, files and spellings of its family",
    "SGLang drops tensors whose names it does not know",
    "Nothing: conversion does.",
    _layout,
)


def _version(form: Form, served: Served) -> Iterator[Found]:
    if served.version < OLDEST:
        yield refused(
            Reason.VERSION_UNSUPPORTED,
            f"SGLang {served.version} is older than {OLDEST}, the oldest whose loader, flags and counters are known here",
        )
    for wanted, since, what in (
        (form.fc_norm, FC_NORM_SINCE, "fc_norm"),
        (form.norm_output, FC_NORM_SINCE, "norm_output"),
        (form.norm_before_fc, NORM_BEFORE_FC_SINCE, "norm_before_fc"),
    ):
        if wanted and served.version < since:
            yield refused(
                Reason.VERSION_UNSUPPORTED,
                f"{what} (EAGLE-3.1) is known to SGLang from {since} on; {served.version} would leave it out",
            )
    if form.depth > 1 and served.version < DEEPER_SINCE:
        yield refused(
            Reason.VERSION_UNSUPPORTED,
            f"{form.depth} decoder layers are known to SGLang from {DEEPER_SINCE} on; {served.version} refuses to start with more than one",
        )


def _meaning(form: Form, _: Served) -> Iterator[Found]:
    for what in form.doubts:
        yield Found(Level.WARNING, what)


MEANING = HeaderRule(
    "meaning",
    "fields that mean one thing to the trainer and another to the server",
    "what was trained one way and is served the other is accepted less, step by step",
    "Follow the message, and compare the accept lengths that asking the draft tells (eagle3-draft convert --ask).",
    _meaning,
)


VERSION = HeaderRule(
    "version",
    "that this SGLang knows the draft's parts, and is known itself",
    "older ones leave parts out without a word",
    "Serve with the version in the message, or a newer one.",
    _version,
)


def sizes_known(form: Form) -> bool:
    """Whether the form says all sizes, so that the shapes of its tensors can be told."""
    return not form.unsupported and not any(True for _ in _wrong_sizes(form))


def _wrong_sizes(form: Form) -> Iterator[Found]:
    for what in form.invalid:
        yield refused(Reason.CONFIG_INVALID, f"config.json: {what}")
    for name, value in (
        ("hidden_size", form.hidden_size),
        ("intermediate_size", form.intermediate_size),
        ("num_attention_heads", form.heads),
        ("num_key_value_heads", form.kv_heads),
        ("head_dim", form.head_dim),
        ("vocab_size", form.vocabulary_size),
        ("draft_vocab_size", form.draft_vocabulary_size),
        *((name, getattr(form.latent, name)) for name in LATENT_SIZES if form.latent is not None),
    ):
        if value is None:
            yield refused(Reason.CONFIG_INVALID, f"config.json does not say {name} as a positive number")
    if form.depth > DEEPEST:
        yield refused(
            Reason.UNSUPPORTED_DRAFT,
            f"it has {form.depth} decoder layers; a draft of more than {DEEPEST} saves no time",
        )
    if form.heads and form.kv_heads and form.heads % form.kv_heads:
        yield refused(
            Reason.CONFIG_INVALID,
            f"num_attention_heads {form.heads} is not a multiple of num_key_value_heads {form.kv_heads}",
        )


SIZES = HeaderRule(
    "sizes",
    "sizes in config.json",
    "they decide every shape, and a null is taken for a size",
    "Write the field in the message into config.json.",
    lambda form, _: _wrong_sizes(form),
)
