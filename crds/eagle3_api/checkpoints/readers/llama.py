"""What all families share: a Llama layer, described by a configuration like Transformers' and by its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_api.checkpoints.files import Folder, StoredTensor
from eagle3_api.checkpoints.form import Form, Layers, MapKind, Notation, Vocabulary
from eagle3_api.checkpoints.readers.names import Names, understand
from eagle3_api.checkpoints.rope import in_sglangs_terms
from eagle3_api.sglang import LLAMA_DRAFT

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"

_SIZE_LIMIT = 2**31
_LAYERS_LIMIT = 64
_DEFAULT_THETA, _DEFAULT_EPS = 10000.0, 1e-6


def read_llama(
    folder: Folder,
    family: str,
    *,
    notation: Notation = Notation.SERVER,
    config: Mapping[str, Any] | None = None,
    layers: Layers | None = None,
    vocabulary: Vocabulary | None = None,
    shares_head: bool = False,
    ignore: Sequence[str] = (),
    unsupported: Sequence[str] = (),
    architecture: str = LLAMA_DRAFT,
) -> Form:
    """The form of a draft with a Llama layer.

    Args:
        folder: the checkpoint.
        family: for people.
        notation: what the ids in ``eagle_config`` mean in this family.
        config: in place of config.json, where that nests the layer's.
        layers: in place of those in ``eagle_config``.
        vocabulary: in place of d2t and t2d among the weights.
        shares_head: a draft of the whole vocabulary without a head uses the target's, even if it says its size.
        ignore: beginnings of stored names that belong to something else.
        unsupported: why the family cannot be served.
        architecture: what the converted draft is called.
    """
    given = folder.config if config is None else config
    stored = {name: tensor for name, tensor in folder.tensors.items() if not name.startswith(tuple(ignore))}
    names = understand(stored)
    tensors = {canonical: stored[name] for canonical, name in names.found.items()}
    members, ids = tensors.pop("t2d", None), tensors.pop("d2t", None)
    for number in range(1, names.depth):  # SGLang's own classes have this one in every layer, and use the first layer's
        if f"layers.{number}.hidden_norm.weight" in tensors:
            tensors.pop(f"layers.{number}.input_layernorm.weight", None)
    known = vocabulary or Vocabulary(ids, MapKind.EITHER, members)
    hidden, heads = size(given, "hidden_size"), size(given, "num_attention_heads")
    vocabulary_size = size(given, "vocab_size")
    stated = size(given, "draft_vocab_size")
    tied = bool(given.get("tie_word_embeddings", False))
    inner = "intermediate_size_mlp" if given.get("model_type") == "llama4_text" else "intermediate_size"
    return Form(
        family=family,
        path=folder.path,
        hidden_size=hidden,
        intermediate_size=size(given, inner),
        heads=heads,
        kv_heads=size(given, "num_key_value_heads") or heads,
        head_dim=size(given, "head_dim") or (hidden // heads if hidden and heads else None),
        target_hidden_size=size(given, "target_hidden_size") or hidden,
        vocabulary_size=vocabulary_size,
        draft_vocabulary_size=stated or _rows(tensors, known) or vocabulary_size,
        max_position_embeddings=size(given, "max_position_embeddings"),
        rms_norm_eps=positive(given.get("rms_norm_eps"), _DEFAULT_EPS) or _DEFAULT_EPS,
        activation=str(given.get("hidden_act") or "silu"),
        rope=rope_of(given),
        layers=layers or nested_layers(given, notation),
        vocabulary=known,
        tensors=tensors,
        extra=names.extra,
        depth=max(names.depth, _stated_depth(given, folder.architectures)),
        tied=tied,
        shares_head=known.ids is None and (stated is None or shares_head or (tied and stated == vocabulary_size)),
        fc_norm=bool(_flag(given, "fc_norm") or given.get("use_aux_norm")),
        norm_before_fc=bool(_flag(given, "norm_before_fc")),
        norm_output=bool(_flag(given, "norm_output")),
        fc_bias="fc.bias" in tensors,
        output_bias=any(name.endswith("self_attn.o_proj.bias") for name in tensors),
        embedding_trained=given.get("embed_requires_grad") is True,
        window=_window(given),
        unsupported=(*unsupported, *_unsupported(given, folder.tensors)),
        invalid=_no_numbers(given),
        mended=_mended(folder, given, names, tensors, architecture),
    )


def size(config: Mapping[str, Any], name: str) -> int | None:
    """A positive number, or None where it is missing, null or something else."""
    value = config.get(name)
    return value if type(value) is int and 0 < value < _SIZE_LIMIT else None


def nested_layers(config: Mapping[str, Any], notation: Notation) -> Layers:
    """The layers in ``eagle_config``, where SGLang reads them."""
    eagle = config.get("eagle_config")
    where = f"eagle_config.{LAYER_IDS}"
    if eagle is not None and not isinstance(eagle, Mapping):
        return Layers(None, notation, where, f"eagle_config is {type(eagle).__name__}, not an object")
    value = eagle.get(LAYER_IDS) if eagle else None
    if value is None and config.get(LAYER_IDS) is not None:
        return Layers(
            None,
            notation,
            LAYER_IDS,
            f"{LAYER_IDS} stands at the top level, where SGLang does not see it and vLLM takes it for inputs: put the layers whose outputs it reads into eagle_config",
        )
    return layers_of(value, notation, where)


def layers_of(value: object, notation: Notation, where: str) -> Layers:
    """Layers as somebody wrote them. An empty list says nothing, as null does."""
    if value is None or value == []:
        return Layers(None, notation, where)
    if (
        isinstance(value, list)
        and len(value) <= _LAYERS_LIMIT
        and all(type(i) is int and -1 <= i < 10**6 for i in value)
    ):
        return Layers(tuple(value), notation, where)
    return Layers(None, notation, where, f"{where} is {value!r:.80}, not a list of layers")


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding in Transformers 5's spelling, from that or from the older one (``rope_theta``, ``rope_scaling``); YaRN's stretch in
    SGLang's terms."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        return {}
    nested = given.get("full_attention")
    rope = {
        name: value for name, value in (nested if isinstance(nested, Mapping) else given).items() if value is not None
    }
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    if kind != "default" and (original := config.get("original_max_position_embeddings")):
        rope["original_max_position_embeddings"] = original  # Phi's place for it, which SGLang takes first
    theta = positive(rope.pop("rope_theta", None) or config.get("rope_theta"), _DEFAULT_THETA)
    return in_sglangs_terms({"rope_type": kind, **rope, "rope_theta": theta or _DEFAULT_THETA})


def positive(value: object, default: float) -> float | None:
    """A positive number, also one in quotes (``1e-5`` is a string in YAML); the default for a null, None for all else."""
    if value is None:
        return default
    try:
        read = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return read if 0 < read < 1e30 else None


def _fractions(config: Mapping[str, Any]) -> dict[str, object]:
    """What config.json must say as positive numbers, by the field."""
    ropes = {name: config.get(name) for name in ("rope_parameters", "rope_scaling")}
    nested = {f"{name}.rope_theta": rope.get("rope_theta") for name, rope in ropes.items() if isinstance(rope, Mapping)}
    return {name: config.get(name) for name in ("rms_norm_eps", "rope_theta")} | nested


def _no_numbers(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} is {value!r:.40}, not a positive number"
        for name, value in _fractions(config).items()
        if positive(value, 1.0) is None
    )


def _flag(config: Mapping[str, Any], name: str) -> object:
    eagle = config.get("eagle_config")
    return (eagle.get(name) if isinstance(eagle, Mapping) else None) or config.get(name)


def _rows(tensors: Mapping[str, StoredTensor], vocabulary: Vocabulary) -> int | None:
    """The draft's vocabulary by its tensors, where the configuration leaves it out."""
    head = tensors.get("lm_head.weight")
    if head is not None and head.shape:
        return head.shape[0]
    return vocabulary.ids.elements if vocabulary.ids is not None else None


def _stated_depth(config: Mapping[str, Any], architectures: tuple[str, ...]) -> int:
    """Layers by the configuration. NeMo Automodel leaves the target's number there, which says nothing."""
    layers = config.get("num_hidden_layers")
    return layers if type(layers) is int and 0 < layers < _SIZE_LIMIT and LLAMA_DRAFT in architectures else 1


def _window(config: Mapping[str, Any]) -> int | None:
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" not in kinds:
        return None
    return size(config, "sliding_window") if config.get("use_sliding_window", isinstance(kinds, list)) else None


def _unsupported(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> list[str]:
    found = []
    if config.get("norm_before_residual"):
        found.append(
            "norm_before_residual is set: its residual is the normalised state, which no SGLang computes; it would serve at "
            "accept length 1.0. Train it with norm_before_residual false"
        )
    if config.get("parallel_drafting"):
        found.append("parallel_drafting is set: SGLang would serve it as an ordinary draft, at accept length 1.0")
    if any("parallel_draft_heads." in name for name in tensors):
        found.append("it has parallel_draft_heads: a hybrid of EAGLE-3 and Medusa, which SGLang does not serve")
    if config.get("quantization_config"):
        found.append("it is quantised (quantization_config): only drafts in floating point are converted")
    ropes = [config, *(config.get(name) for name in ("rope_parameters", "rope_scaling"))]
    parts = [rope.get("partial_rotary_factor") for rope in ropes if isinstance(rope, Mapping)]
    if config.get("rope_is_neox_style") is False:
        found.append("rope_is_neox_style is false: only heads whose halves turn against each other are converted")
    if cut := [part for part in parts if part not in (None, 1)]:
        found.append(f"partial_rotary_factor is {cut[0]!r:.40}: only heads that turn as a whole are converted")
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and eagle.get("use_aux_hidden_state") is False:
        found.append("use_aux_hidden_state is false: an EAGLE draft of an older kind, which reads one state only")
    if (config.get("hidden_act") or "silu") != "silu":
        found.append(f"hidden_act is {config.get('hidden_act')!r:.40}: SGLang's Llama layer knows silu only")
    return found


def _mended(
    folder: Folder, config: Mapping[str, Any], names: Names, tensors: Mapping[str, StoredTensor], architecture: str
) -> tuple[str, ...]:
    found = []
    if folder.architectures != (architecture,):
        found.append(f"architectures {list(folder.architectures)!r:.80} becomes [{architecture!r}]")
    renamed = [(name, canonical) for canonical, name in names.found.items() if name != canonical]
    if renamed:
        found.append(
            f"{len(renamed)} tensors get the names that every SGLang loads ({renamed[0][0]} becomes {renamed[0][1]})"
        )
    if folder.kind != "safetensors":
        found.append(f"weights in *.{folder.kind} become safetensors")
    nulls = [name for name in ("target_hidden_size", "draft_vocab_size", "head_dim") if config.get(name, "") is None]
    if nulls:
        found.append(f"{', '.join(nulls)} {'is' if len(nulls) == 1 else 'are'} null, and left out or written out")
    if "draft_vocab_size" not in config and "d2t" in names.found:
        found.append("draft_vocab_size is missing, and written out: SGLang fails without it")
    found += [
        f"{name} {value!r:.40} becomes a number"
        for name, value in _fractions(config).items()
        if isinstance(value, str) and positive(value, 1.0)
    ]
    ropes = (config.get(name) for name in ("rope_parameters", "rope_scaling"))
    if any(isinstance(rope, Mapping) and "attention_factor" in rope for rope in ropes) and "attn_factor" in rope_of(
        config
    ):
        found.append(
            "attention_factor becomes attn_factor: by that name SGLang has what it multiplies beside YaRN's own stretch"
        )
    if config.get("tie_word_embeddings", False) and "lm_head.weight" in tensors:
        found.append("tie_word_embeddings becomes false: it has a head of its own")
    return tuple(found)
