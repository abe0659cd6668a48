"""Which of the target's layers the draft reads."""

from collections.abc import Iterator

from eagle3_api.checkpoints.form import Form, Notation
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.conditions import Reason
from eagle3_api.sglang import (
    RAW_IF_LAST_IS_ALL,
    RAW_UNLESS_FIRST_IS_ONE,
    UnsupportedLayersError,
    capture_ids,
    captured_layers,
    default_layers,
    log_ids,
)


def resolve_layers(form: Form, served: Served) -> tuple[int, ...] | None:
    """The layers that a draft reads, in this product's convention; None where nobody says.

    What the checkpoint says comes first, then what the caller does, then the default that all families share.
    """
    ids, target, notation = form.layers.ids, served.target, form.layers.notation
    if ids is not None:
        if notation is Notation.INPUT:
            return tuple(i - 1 for i in ids)
        # Of gpt-oss a list that names the number of its layers means inputs, whoever wrote it: there is no such output
        if target is not None and (notation is Notation.SERVER or target.architecture in RAW_IF_LAST_IS_ALL):
            return tuple(captured_layers(ids, target.architecture, target.num_layers, served.version))
        return ids
    if served.layers is not None:
        return served.layers
    default = default_layers(target.num_layers) if target is not None else None
    return tuple(default) if default is not None else None


def _features(form: Form, served: Served) -> Iterator[Found]:
    layers = None if form.layers.problem else resolve_layers(form, served)
    if layers is None:
        yield Found(Level.UNKNOWN, "it is not known which layers it reads")
        return
    fc = form.tensors.get("fc.weight")
    width = form.target_hidden_size or 0
    if fc is not None and len(fc.shape) == 2 and width and fc.shape[1] != len(layers) * width:
        yield refused(
            Reason.FEATURE_MISMATCH,
            f"fc reads {fc.shape[1]} numbers, {len(layers)} layers of the target have {len(layers) * width}",
        )
    if served.layers is not None and layers != served.layers:
        named = f"{form.layers.field} {list(form.layers.ids or ())}"
        if form.layers.notation is Notation.INPUT:
            named += ", which name inputs"
        yield refused(
            Reason.FEATURE_MISMATCH,
            f"the draft reads the outputs of layers {list(layers)} ({named}), the object's are {list(served.layers)}. Such a "
            "draft serves at accept length 1.0: set draft.auxiliaryLayers to what it was trained on, or retrain",
        )


FEATURES = HeaderRule(
    "features",
    "the states that it reads against those that will be captured",
    "from the states of other layers, or of as many as fc does not take, it predicts nothing",
    "Set draft.auxiliaryLayers to what it was trained on, or retrain.",
    _features,
)


def _layers(form: Form, served: Served) -> Iterator[Found]:
    if form.layers.problem:
        yield refused(Reason.CONFIG_INVALID, f"{form.layers.problem}; SGLang would silently capture its default layers")
        return
    layers = resolve_layers(form, served)
    if layers is None:
        yield refused(
            Reason.LAYERS_REQUIRED,
            "config.json does not say which layers the draft reads, and without a target of seven or more layers there are no "
            "default ones: set draft.auxiliaryLayers (--layers) to what it was trained on",
        )
        return
    if form.layers.ids is None:
        whose = "the object's" if served.layers is not None else "every family's default"
        yield Found(
            Level.WARNING,
            f"config.json does not say which layers the draft reads; {whose} are taken: the outputs of {list(layers)}. "
            "Other ones serve at accept length 1.0",
        )
    yield from _as_sglang_names(form, served, layers)


LAYERS = HeaderRule(
    "layers",
    "which of the target's layers it reads",
    "from other ones it predicts nothing, and the notation differs between families and versions",
    "Set draft.auxiliaryLayers to what it was trained on.",
    _layers,
)


def _as_sglang_names(form: Form, served: Served, layers: tuple[int, ...]) -> Iterator[Found]:
    """What SGLang calls the layers, and whether it can capture them."""
    if served.target is None:
        return
    target = served.target
    try:
        ids = capture_ids(list(layers), target.architecture, target.num_layers, served.version)
    except UnsupportedLayersError as error:
        yield refused(Reason.LAYER_CONVENTION, str(error))
        return
    if form.layers.ids is not None and tuple(ids) != form.layers.ids:
        yield Found(
            Level.MENDED,
            f"layers {list(form.layers.ids)} become {ids} in the notation of SGLang {served.version} "
            f"({', '.join(map(str, log_ids(list(layers))))} in its log)",
        )
    if (
        target.architecture in RAW_UNLESS_FIRST_IS_ONE
        and form.layers.ids
        and form.layers.notation is not Notation.INPUT
    ):
        yield Found(
            Level.WARNING,
            f"SGLang up to 0.5.11 took {list(form.layers.ids)} for outputs on {target.architecture}, later ones take them for "
            "inputs unless the first is 1: only its trainer knows which was meant, and the difference is 0.1 of accept length",
        )
