"""That the tensors are those that SGLang fills, each in its shape."""

from collections.abc import Iterator, Sequence

from eagle3_api.checkpoints.expected import expected_tensors
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rules.kind import sizes_known
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.conditions import Reason

FLOATS = ("BF16", "F16", "F32")

_EXPORT = "Export the draft again from where it was trained."


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")


def _complete(form: Form, _: Served) -> Iterator[Found]:
    if not sizes_known(form):
        return
    if missing := sorted(expected_tensors(form).keys() - form.tensors.keys()):
        yield refused(
            Reason.CHECKPOINT_INCOMPLETE,
            f"tensors missing: {_names(missing)}. SGLang would serve them with random values and say nothing",
        )


COMPLETE = HeaderRule(
    "complete",
    "every tensor that SGLang fills is there",
    "a missing one stays random, without a message",
    _EXPORT,
    _complete,
)


def _nothing_else(form: Form, _: Served) -> Iterator[Found]:
    if not sizes_known(form):
        return
    beyond = sorted(form.tensors.keys() - expected_tensors(form).keys() - {"embed_tokens.weight"})
    extra = sorted({*form.extra, *(form.tensors[name].name for name in beyond)})
    if extra:
        yield refused(Reason.CHECKPOINT_INCOMPLETE, f"tensors that SGLang would drop without a word: {_names(extra)}")


NOTHING_ELSE = HeaderRule(
    "nothing-else",
    "no tensor that SGLang does not know",
    "it is dropped, and with it what was trained",
    _EXPORT,
    _nothing_else,
)


def _shapes(form: Form, _: Served) -> Iterator[Found]:
    if not sizes_known(form):
        return
    for name, shape in sorted(expected_tensors(form).items()):
        tensor = form.tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            yield refused(
                Reason.CHECKPOINT_INCOMPLETE,
                f"{tensor.name} has shape {list(tensor.shape)}, the configuration says {list(shape)}",
            )


SHAPES = HeaderRule("shapes", "every tensor's shape", "it belongs to another configuration", _EXPORT, _shapes)


def _types(form: Form, _: Served) -> Iterator[Found]:
    for tensor in form.tensors.values():
        if tensor.dtype not in FLOATS:
            yield refused(
                Reason.CHECKPOINT_INCOMPLETE, f"{tensor.name} is {tensor.dtype}, not one of {', '.join(FLOATS)}"
            )


TYPES = HeaderRule(
    "types", "every tensor's type", "only floating point is converted", "Save the draft unquantised.", _types
)


def _head(form: Form, _: Served) -> Iterator[Found]:
    if form.shares_head and "lm_head.weight" not in form.tensors and not form.unsupported:
        what = "embedding, to which it is tied" if form.tied else "head"
        yield Found(Level.MENDED, f"it has no head of its own; the target's {what} is written into the converted draft")


HEAD = HeaderRule(
    "head",
    "the draft's head",
    "with draft_vocab_size and without lm_head the head is random",
    "Nothing: conversion does.",
    _head,
)
