"""The rules that a draft must pass, each small and with a name: what it looks at, why that matters, how to mend it.

SGLang drops unknown tensors, leaves missing ones at random values, and takes silent defaults where a configuration does not say
what it should; such a server is healthy and its accept length is 1.0. Every rule here sees one of these before a server is
started. They look at the form, at headers and at the vocabulary's map: neither torch nor the weights' values are needed.

Source: SGLang 0.5.16 to 0.5.23, ``models/llama_eagle3.py``, ``models/kimi_k25_eagle3.py`` and ``speculative/eagle_worker_v2.py``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from eagle3_api.checkpoints.files import UnreadableError
from eagle3_api.checkpoints.form import LATENT_SIZES, Form, MapKind, Notation
from eagle3_api.checkpoints.target import Target
from eagle3_api.checkpoints.vocabulary import Reading, read_integers, understand_map
from eagle3_api.conditions import Reason
from eagle3_api.sglang import (
    FC_NORM_SINCE,
    LATENT_ATTENTION,
    LATENT_DRAFT,
    NORM_BEFORE_FC_SINCE,
    RAW_UNLESS_FIRST_IS_ONE,
    UnsupportedLayersError,
    Version,
    capture_ids,
    captured_layers,
    default_layers,
    log_ids,
    supports_target,
)

FLOATS = ("BF16", "F16", "F32")

#: Decoder layers that a draft may have.
DEEPEST = 16

#: Rotary embeddings that stay what they are when the configuration allows more positions.
ROPES = frozenset({"default", "linear", "llama3", "yarn", "mrope"})


class Level(IntEnum):
    """How bad a finding is, the worst last."""

    PASSED = 0
    MENDED = 1  # conversion writes it as it must be
    UNKNOWN = 2  # could not be looked at: something was not given
    WARNING = 3
    REFUSED = 4


@dataclass(frozen=True)
class Served:
    """What a draft is to serve, and how; whatever is None is not checked.

    Attributes:
        version: the SGLang that serves.
        target: the model.
        layers: whose outputs are to be captured, in this product's convention.
        context_length: the longest that is served.
    """

    version: Version
    target: Target | None = None
    layers: tuple[int, ...] | None = None
    context_length: int | None = None


@dataclass(frozen=True)
class Found:
    """What one look of a rule found."""

    level: Level
    message: str
    reason: Reason | None = None


@dataclass(frozen=True)
class Rule:
    """One thing that must be right.

    Attributes:
        id: its name.
        what: it looks at.
        why: it matters.
        mend: how to mend it.
    """

    id: str
    what: str
    why: str
    mend: str


@dataclass(frozen=True)
class HeaderRule(Rule):
    """A rule for which a look at the form is enough; it yields what is not simply right."""

    look: Callable[[Form, Served], Iterator[Found]]


@dataclass(frozen=True)
class Finding:
    """What a rule says about a draft."""

    rule: Rule
    level: Level
    message: str = ""
    reason: Reason | None = None


def check(form: Form, served: Served) -> list[Finding]:
    """Every rule's findings, in the order of the rules; one that found nothing has passed."""
    findings: list[Finding] = []
    for rule in RULES:
        found = [Finding(rule, one.level, one.message, one.reason) for one in rule.look(form, served)]
        findings += found or [Finding(rule, Level.PASSED)]
    return findings


def resolve_layers(form: Form, served: Served) -> tuple[int, ...] | None:
    """The layers that a draft reads, in this product's convention; None where nobody says.

    What the checkpoint says comes first, then what the caller does, then the default that all families share.
    """
    ids, target = form.layers.ids, served.target
    if ids is not None:
        if form.layers.notation is Notation.OUTPUT or (form.layers.notation is Notation.SERVER and target is None):
            return ids
        if form.layers.notation is Notation.INPUT or target is None:
            return tuple(i - 1 for i in ids)
        return tuple(captured_layers(ids, target.architecture, served.version))
    if served.layers is not None:
        return served.layers
    default = default_layers(target.num_layers) if target is not None else None
    return tuple(default) if default is not None else None


def read_map(form: Form, vocabulary_size: int) -> Reading | None:
    """What the draft's vocabulary map means; None where it has none.

    Raises:
        UnreadableError: it cannot be read.
    """
    ids, members = form.vocabulary.ids, form.vocabulary.members
    if ids is None:
        return None
    known = read_integers(members) if members is not None else None
    return understand_map(read_integers(ids), form.vocabulary.kind, vocabulary_size, known)


def expected_tensors(form: Form) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that SGLang's class of the draft fills, from the draft's own sizes, which must be known.

    Rows of a weight come first: ``fc.weight`` is (hidden, auxiliary states x target hidden).
    """
    hidden, inner = form.hidden_size or 0, form.intermediate_size or 0
    states, width = auxiliary_states(form), form.target_hidden_size or hidden
    whole: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, states * width),
        "norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
    }
    for number in range(form.depth):
        wide = hidden if number else 2 * hidden  # the first layer reads embeddings beside states
        layer: dict[str, tuple[int, ...]] = {
            **{f"self_attn.{name}": shape for name, shape in _attention_tensors(form, wide).items()},
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "hidden_norm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        whole |= {f"layers.{number}.{name}" if number else f"midlayer.{name}": shape for name, shape in layer.items()}
    if form.fc_bias:
        whole["fc.bias"] = (hidden,)
    if not form.shares_head or "lm_head.weight" in form.tensors:
        whole["lm_head.weight"] = (form.draft_vocabulary_size or 0, hidden)
    if form.own_embedding:
        whole["embed_tokens.weight"] = (form.vocabulary_size or 0, hidden)
    if form.norm_before_fc:
        whole["input_norm.weight"] = (states * width,)
    if form.fc_norm:
        whole |= {f"fc_norm.{state}.weight": (width,) for state in range(states)}
    return whole


def _attention_tensors(form: Form, width: int) -> dict[str, tuple[int, ...]]:
    """Those of a layer's attention, which reads ``width`` numbers."""
    hidden, heads, kv_heads, head = (s or 0 for s in (form.hidden_size, form.heads, form.kv_heads, form.head_dim))
    if form.latent is not None:
        latent = form.latent
        queries, keys, plain, turned, value = (getattr(latent, name) or 0 for name in LATENT_SIZES)
        return {
            "q_a_proj.weight": (queries, width),
            "q_a_layernorm.weight": (queries,),
            "q_b_proj.weight": (heads * (plain + turned), queries),
            "kv_a_proj_with_mqa.weight": (keys + turned, width),
            "kv_a_layernorm.weight": (keys,),
            "kv_b_proj.weight": (heads * (plain + value), keys),
            "o_proj.weight": (hidden, heads * value),
        }
    return {
        "q_proj.weight": (heads * head, width),
        "k_proj.weight": (kv_heads * head, width),
        "v_proj.weight": (kv_heads * head, width),
        "o_proj.weight": (hidden, heads * head),
        **({"o_proj.bias": (hidden,)} if form.output_bias else {}),
    }


def auxiliary_states(form: Form) -> int:
    """How many of the target's layers the draft reads: by its layers, else by fc's width, else three, as everywhere."""
    if form.layers.ids is not None:
        return len(form.layers.ids)
    fc = form.tensors.get("fc.weight")
    if fc is not None and len(fc.shape) == 2 and form.target_hidden_size:
        return max(1, fc.shape[1] // form.target_hidden_size)
    return 3


# ------------------------------------------------------------------------------------------------------- the looks


def _refused(reason: Reason, message: str) -> Found:
    return Found(Level.REFUSED, message, reason)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")


def _kind(form: Form, served: Served) -> Iterator[Found]:
    for why in form.unsupported:
        yield _refused(Reason.UNSUPPORTED_DRAFT, why)
    if form.latent is not None:
        yield from _latent(form, served)


def _latent(form: Form, served: Served) -> Iterator[Found]:
    """What SGLang's class for latent attention does not know."""
    where = f"its attention is latent ({LATENT_DRAFT}), and SGLang's class of such drafts"
    if form.depth != 1:
        yield _refused(Reason.UNSUPPORTED_DRAFT, f"{where} has one decoder layer, not {form.depth}")
    if form.norm_before_fc:
        yield _refused(Reason.UNSUPPORTED_DRAFT, f"{where} has no norm_before_fc")
    if form.rope and form.rope.get("rope_type") not in ("default", "yarn"):
        yield _refused(
            Reason.UNSUPPORTED_DRAFT, f"{where} would take its rope, {form.rope.get('rope_type')!r:.40}, for yarn"
        )
    if served.target is not None and served.target.architecture not in LATENT_ATTENTION:
        yield _refused(
            Reason.UNSUPPORTED_DRAFT,
            f"its attention is latent, that of {served.target.architecture} is not: no backend of SGLang serves both. Take a "
            "draft with a Llama layer",
        )


def _layout(form: Form, _: Served) -> Iterator[Found]:
    for what in form.mended:
        yield Found(Level.MENDED, what)


def _version(form: Form, served: Served) -> Iterator[Found]:
    for wanted, since, what in (
        (form.fc_norm, FC_NORM_SINCE, "fc_norm"),
        (form.norm_output, FC_NORM_SINCE, "norm_output"),
        (form.norm_before_fc, NORM_BEFORE_FC_SINCE, "norm_before_fc"),
    ):
        if wanted and served.version < since:
            yield _refused(
                Reason.VERSION_UNSUPPORTED,
                f"{what} (EAGLE-3.1) is known to SGLang from {since} on; {served.version} would leave it out",
            )


def _sizes(form: Form, _: Served) -> Iterator[Found]:
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
            yield _refused(Reason.CONFIG_INVALID, f"config.json does not say {name} as a positive number")
    if form.depth > DEEPEST:
        yield _refused(
            Reason.UNSUPPORTED_DRAFT,
            f"it has {form.depth} decoder layers; a draft of more than {DEEPEST} saves no time",
        )
    if form.heads and form.kv_heads and form.heads % form.kv_heads:
        yield _refused(
            Reason.CONFIG_INVALID,
            f"num_attention_heads {form.heads} is no multiple of num_key_value_heads {form.kv_heads}",
        )


def _known_sizes(form: Form) -> bool:
    return not any(True for _ in _sizes(form, Served(Version(0, 0, 0)))) and not form.unsupported


def _complete(form: Form, _: Served) -> Iterator[Found]:
    if not _known_sizes(form):
        return
    if missing := sorted(expected_tensors(form).keys() - form.tensors.keys()):
        yield _refused(
            Reason.CHECKPOINT_INCOMPLETE,
            f"tensors missing: {_names(missing)}. SGLang would serve them with random values and say nothing",
        )


def _nothing_else(form: Form, _: Served) -> Iterator[Found]:
    if not _known_sizes(form):
        return
    beyond = sorted(form.tensors.keys() - expected_tensors(form).keys() - {"embed_tokens.weight"})
    extra = sorted({*form.extra, *(form.tensors[name].name for name in beyond)})
    if extra:
        yield _refused(Reason.CHECKPOINT_INCOMPLETE, f"tensors that SGLang would drop without a word: {_names(extra)}")


def _shapes(form: Form, _: Served) -> Iterator[Found]:
    if not _known_sizes(form):
        return
    for name, shape in sorted(expected_tensors(form).items()):
        tensor = form.tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            yield _refused(
                Reason.CHECKPOINT_INCOMPLETE,
                f"{tensor.name} has shape {list(tensor.shape)}, the configuration says {list(shape)}",
            )


def _types(form: Form, _: Served) -> Iterator[Found]:
    for tensor in form.tensors.values():
        if tensor.dtype not in FLOATS:
            yield _refused(
                Reason.CHECKPOINT_INCOMPLETE, f"{tensor.name} is {tensor.dtype}, not one of {', '.join(FLOATS)}"
            )


def _head(form: Form, _: Served) -> Iterator[Found]:
    if form.shares_head and "lm_head.weight" not in form.tensors and not form.unsupported:
        what = "embedding, to which it is tied" if form.tied else "head"
        yield Found(Level.MENDED, f"it has no head of its own; the target's {what} is written into the converted draft")


def _map(form: Form, served: Served) -> Iterator[Found]:
    vocabulary_size = served.target.vocabulary_size if served.target else form.vocabulary_size
    draft = form.draft_vocabulary_size
    if vocabulary_size is None or draft is None:
        return
    ids = form.vocabulary.ids
    if ids is None:
        if draft != vocabulary_size:
            yield _refused(
                Reason.VOCABULARY_MAP,
                f"d2t is missing although the draft knows {draft} of {vocabulary_size} tokens; its ids would be taken for "
                "the target's",
            )
        return
    if ids.elements != draft:
        yield _refused(
            Reason.VOCABULARY_MAP, f"{ids.name} has {list(ids.shape)} entries, the draft's head {draft} rows"
        )
        return
    try:
        reading = read_map(form, vocabulary_size)
    except UnreadableError as error:
        yield _refused(Reason.VOCABULARY_MAP, str(error))
        return
    if reading is not None and reading.problem:
        yield _refused(Reason.VOCABULARY_MAP, reading.problem)
    elif reading is not None and reading.absolute:
        yield Found(Level.MENDED, f"{ids.name} holds absolute ids, which become offsets")
    if form.vocabulary.members is None and form.vocabulary.kind is not MapKind.ABSOLUTE:
        yield Found(Level.MENDED, "t2d is missing, and derived from d2t")


def _target(form: Form, served: Served) -> Iterator[Found]:
    target = served.target
    if target is None:
        yield Found(Level.UNKNOWN, "no target was given")
        return
    if not supports_target(target.architecture):
        yield _refused(
            Reason.TARGET_UNSUPPORTED,
            f"{target.architecture} is not among the architectures that SGLang captures hidden states of in a known way",
        )
    if form.target_hidden_size not in (None, target.hidden_size):
        yield _refused(
            Reason.FEATURE_MISMATCH,
            f"the draft reads states of {form.target_hidden_size} numbers, the target's have {target.hidden_size}: it was "
            "trained for another model",
        )
    if form.vocabulary_size not in (None, target.vocabulary_size):
        yield _refused(
            Reason.CONFIG_INVALID,
            f"vocab_size is {form.vocabulary_size}, the target's is {target.vocabulary_size}: it was trained for another model",
        )


def _layers(form: Form, served: Served) -> Iterator[Found]:
    if form.layers.problem:
        yield _refused(
            Reason.CONFIG_INVALID, f"{form.layers.problem}; SGLang would silently capture its default layers"
        )
        return
    layers = resolve_layers(form, served)
    if layers is None:
        yield _refused(
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
    yield from _layers_fit(form, served, layers)


def _layers_fit(form: Form, served: Served, layers: tuple[int, ...]) -> Iterator[Found]:
    """Layers that somebody named: what is wanted, what fc takes, what SGLang can capture."""
    fc = form.tensors.get("fc.weight")
    width = form.target_hidden_size or 0
    if fc is not None and len(fc.shape) == 2 and width and fc.shape[1] != len(layers) * width:
        yield _refused(
            Reason.FEATURE_MISMATCH,
            f"fc reads {fc.shape[1]} numbers, {len(layers)} layers of the target have {len(layers) * width}",
        )
    if served.layers is not None and layers != served.layers:
        named = f"{form.layers.field} {list(form.layers.ids or ())}"
        if form.layers.notation is Notation.INPUT:
            named += ", which name inputs"
        yield _refused(
            Reason.FEATURE_MISMATCH,
            f"the draft reads the outputs of layers {list(layers)} ({named}), the object's are {list(served.layers)}. Such a "
            "draft serves at accept length 1.0: set draft.auxiliaryLayers to what it was trained on, or retrain",
        )
    if served.target is None:
        return
    target = served.target
    try:
        ids = capture_ids(list(layers), target.architecture, target.num_layers, served.version)
    except UnsupportedLayersError as error:
        yield _refused(Reason.LAYER_CONVENTION, str(error))
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


def _rope(form: Form, _: Served) -> Iterator[Found]:
    if not form.rope:
        yield _refused(Reason.CONFIG_INVALID, "rope_parameters (or rope_scaling) is no object")
    elif not isinstance(form.rope.get("rope_type"), str):
        yield _refused(Reason.CONFIG_INVALID, f"rope_type is {form.rope.get('rope_type')!r:.40}")


def _context(form: Form, served: Served) -> Iterator[Found]:
    if served.context_length is None:
        yield Found(Level.UNKNOWN, "no served context was given")
        return
    reach = form.max_position_embeddings or 0
    if reach >= served.context_length:
        return
    kind = form.rope.get("rope_type")
    if kind not in ROPES:
        yield _refused(
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


def _window(form: Form, _: Served) -> Iterator[Found]:
    if form.window is not None:
        yield Found(
            Level.WARNING,
            f"its attention was trained to see {form.window} positions, and is served without that limit unless the server gets "
            f"--speculative-draft-window-size {form.window}",
        )


def _padding(form: Form, _: Served) -> Iterator[Found]:
    if form.draft_vocabulary_size and form.draft_vocabulary_size % 64:
        yield Found(
            Level.WARNING,
            f"its vocabulary of {form.draft_vocabulary_size} tokens is no multiple of 64; some SGLang versions then fail at graph "
            "capture",
        )


_EXPORT = "Export the draft again from where it was trained."

RULES = (
    HeaderRule(
        "kind",
        "what kind of draft it is",
        "SGLang serves other kinds as if they were EAGLE-3, at accept length 1.0",
        "Train or take an EAGLE-3 draft of Llama layers, or of one layer with latent attention.",
        _kind,
    ),
    HeaderRule(
        "layout",
        "names, files and spellings of its family",
        "SGLang drops tensors whose names it does not know",
        "Nothing: conversion does.",
        _layout,
    ),
    HeaderRule(
        "version",
        "parts that only newer SGLang versions know",
        "older ones leave them out without a word",
        "Serve with the version in the message, or a newer one.",
        _version,
    ),
    HeaderRule(
        "sizes",
        "sizes in config.json",
        "they decide every shape, and a null is taken for a size",
        "Write the field in the message into config.json.",
        _sizes,
    ),
    HeaderRule(
        "target",
        "that it was trained for this target",
        "it would read other states and propose other tokens",
        "Take the draft of this target.",
        _target,
    ),
    HeaderRule(
        "complete",
        "every tensor that SGLang fills is there",
        "a missing one stays random, without a message",
        _EXPORT,
        _complete,
    ),
    HeaderRule(
        "nothing-else",
        "no tensor that SGLang does not know",
        "it is dropped, and with it what was trained",
        _EXPORT,
        _nothing_else,
    ),
    HeaderRule("shapes", "every tensor's shape", "it belongs to another configuration", _EXPORT, _shapes),
    HeaderRule(
        "types", "every tensor's type", "only floating point is converted", "Save the draft unquantised.", _types
    ),
    HeaderRule(
        "head",
        "the draft's head",
        "with draft_vocab_size and without lm_head the head is random",
        "Nothing: conversion does.",
        _head,
    ),
    HeaderRule(
        "vocabulary-map",
        "which of the target's tokens each row of the head is",
        "SGLang takes d2t for offsets whatever it is; a wrong map proposes other words",
        "Store offsets (d2t[i] = target id - i) of the same training as t2d.",
        _map,
    ),
    HeaderRule(
        "layers",
        "which of the target's layers it reads",
        "from other ones it predicts nothing, and the notation differs between families and versions",
        "Set draft.auxiliaryLayers to what it was trained on.",
        _layers,
    ),
    HeaderRule(
        "rope",
        "its rotary embedding",
        "positions turn otherwise than in training",
        "Spell out rope_parameters with rope_type and rope_theta.",
        _rope,
    ),
    HeaderRule(
        "context",
        "positions against the served context",
        "SGLang refuses to start with a draft that says less",
        "Lower serve.contextLength, or train a draft that goes further.",
        _context,
    ),
    HeaderRule(
        "window",
        "a sliding window in its attention",
        "SGLang does not take it from config.json",
        "Pass the flag in the message in serve.arguments.",
        _window,
    ),
    HeaderRule(
        "padding",
        "the size of its vocabulary",
        "heads are padded to multiples of 64 (SGLang issue 10106)",
        "Take a vocabulary that is a multiple of 64.",
        _padding,
    ),
)
