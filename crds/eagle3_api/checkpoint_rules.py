"""What SGLang's loader needs of a draft checkpoint, and never checks itself.

SGLang drops unknown keys and leaves missing parameters at their random initial values, without a word; such a server is
healthy and its accept length is 1.0. These rules look at a checkpoint's configuration and at the names, shapes and types
of its tensors, which stand in a safetensors header, so they need neither torch nor the weights.

Source: SGLang 0.5.16 to 0.5.23, ``models/llama_eagle3.py`` and ``speculative/eagle_worker_v2.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.sglang import LLAMA_DRAFT


@dataclass(frozen=True)
class Tensor:
    """A tensor as a safetensors header names it: dtype as there (``BF16``, ``I64``), shape as a tuple."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """Something that would make the draft useless: what, where, and what to do."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Target:
    """What the rules need to know of the target and of how it is served."""

    hidden_size: int
    vocabulary_size: int
    capture_ids: tuple[int, ...]
    context_length: int


_FLOATS = ("BF16", "F16", "F32")
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "draft_vocab_size")


def expected_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that ``LlamaForCausalLMEagle3`` fills, from the draft's own configuration.

    Rows of a weight come first: ``fc.weight`` is (hidden, auxiliary layers x target hidden). ``embed_tokens`` is left
    out: the server always takes the target's.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or hidden // heads
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    layer = {
        "self_attn.q_proj.weight": (heads * head, 2 * hidden),
        "self_attn.k_proj.weight": (kv_heads * head, 2 * hidden),
        "self_attn.v_proj.weight": (kv_heads * head, 2 * hidden),
        "self_attn.o_proj.weight": (hidden, heads * head),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "hidden_norm.weight": (hidden,),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    return {
        "fc.weight": (hidden, len(ids) * (config.get("target_hidden_size") or hidden)),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
    }


def check_config(config: Mapping[str, Any], target: Target) -> list[Finding]:
    """What is wrong with a draft's config.json, for this target and this way of serving it."""

    def invalid(message: str, reason: Reason = Reason.CONFIG_INVALID) -> Finding:
        return Finding(reason, f"config.json: {message}")

    found: list[Finding] = []
    if config.get("architectures") != [LLAMA_DRAFT]:
        found.append(
            invalid(f"architectures is {config.get('architectures')}, not [{LLAMA_DRAFT!r}]", Reason.UNSUPPORTED_DRAFT)
        )
    if config.get("num_hidden_layers") != 1:
        found.append(
            invalid(
                f"num_hidden_layers is {config.get('num_hidden_layers')}; an EAGLE-3 draft has one layer",
                Reason.UNSUPPORTED_DRAFT,
            )
        )
    found.extend(
        invalid(
            f"{field} is set; SGLang has no such draft and would serve it at accept length 1.0",
            Reason.UNSUPPORTED_DRAFT,
        )
        for field in ("norm_before_residual", "parallel_drafting")
        if config.get(field)
    )
    found.extend(
        invalid(f"{field} is {config.get(field)}, not a positive number")
        for field in _SIZES
        if not isinstance(config.get(field), int) or config[field] < 1
    )
    if "target_hidden_size" in config and config["target_hidden_size"] is None:
        found.append(invalid("target_hidden_size is null: leave it out, or the server multiplies nothing"))
    if config.get("tie_word_embeddings", True) is not False:
        found.append(invalid("tie_word_embeddings must be false, or the server's head is the target's embedding"))
    if config.get("vocab_size") != target.vocabulary_size:
        found.append(invalid(f"vocab_size is {config.get('vocab_size')}, the target's is {target.vocabulary_size}"))
    if (config.get("target_hidden_size") or config.get("hidden_size")) != target.hidden_size:
        found.append(
            invalid(
                f"the draft reads states of {config.get('target_hidden_size') or config.get('hidden_size')} numbers, the "
                f"target's have {target.hidden_size}",
                Reason.FEATURE_MISMATCH,
            )
        )
    if (config.get("max_position_embeddings") or 0) < target.context_length:
        found.append(
            invalid(
                f"max_position_embeddings is {config.get('max_position_embeddings')}, the served context "
                f"{target.context_length}: SGLang refuses to start",
                Reason.CONTEXT_TOO_SHORT,
            )
        )
    if not isinstance(config.get("rope_parameters"), Mapping):
        found.append(invalid("rope_parameters is missing; spell out rope_type and rope_theta"))
    return found + _check_layers(config, target)


def _check_layers(config: Mapping[str, Any], target: Target) -> list[Finding]:
    """The layers: silently the default ones unless eagle_config is nested and well-formed."""
    eagle = config.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        return [
            Finding(
                Reason.CONFIG_INVALID,
                "config.json: eagle_config.eagle_aux_hidden_state_layer_ids is missing or no list of numbers; SGLang "
                "would silently capture its default layers",
            )
        ]
    if tuple(ids) != target.capture_ids:
        return [
            Finding(
                Reason.FEATURE_MISMATCH,
                f"config.json makes SGLang capture {ids}; the object's layers are {list(target.capture_ids)} in the "
                "same notation. Such a draft serves at accept length 1.0: set draft.auxiliaryLayers to what it was "
                "trained on, or retrain",
            )
        ]
    return []


def check_tensors(config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Target) -> list[Finding]:
    """What is wrong with the tensors' names, shapes and types. The configuration must have passed ``check_config``."""
    expected = expected_tensors(config)
    present = {name for name in tensors if name not in ("d2t", "t2d", "embed_tokens.weight")}
    found: list[Finding] = []
    if missing := sorted(expected.keys() - present):
        found.append(
            Finding(
                Reason.CHECKPOINT_INCOMPLETE,
                f"tensors missing: {', '.join(missing)}. SGLang would serve them with random values and say nothing",
            )
        )
    if extra := sorted(present - expected.keys()):
        found.append(
            Finding(
                Reason.CHECKPOINT_INCOMPLETE,
                f"tensors that SGLang would drop without a word: {', '.join(extra[:8])}{' …' if len(extra) > 8 else ''}",
            )
        )
    for name in sorted(expected.keys() & present):
        tensor = tensors[name]
        if tensor.shape != expected[name]:
            found.append(
                Finding(
                    Reason.CHECKPOINT_INCOMPLETE,
                    f"{name} has shape {list(tensor.shape)}, the configuration says {list(expected[name])}",
                )
            )
        elif tensor.dtype not in _FLOATS:
            found.append(
                Finding(Reason.CHECKPOINT_INCOMPLETE, f"{name} is {tensor.dtype}, not one of {', '.join(_FLOATS)}")
            )
    return found + _check_map_header(config, tensors, target)


def _check_map_header(config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Target) -> list[Finding]:
    draft = config["draft_vocab_size"]
    if draft == target.vocabulary_size and "d2t" not in tensors:
        return []
    if "d2t" not in tensors:
        return [
            Finding(
                Reason.VOCABULARY_MAP,
                f"d2t is missing although the draft knows {draft} of {target.vocabulary_size} tokens; its ids would be "
                "taken for the target's",
            )
        ]
    if tensors["d2t"] != Tensor("I64", (draft,)):
        found = tensors["d2t"]
        return [Finding(Reason.VOCABULARY_MAP, f"d2t is {found.dtype} {list(found.shape)}, not I64 [{draft}]")]
    return []


def check_vocabulary_map(offsets: list[int], target: Target, in_vocabulary: list[bool] | None = None) -> list[Finding]:
    """What is wrong with d2t, read as SGLang reads it: target id = draft id + offset.

    Args:
        offsets: d2t.
        target: for its vocabulary's size.
        in_vocabulary: t2d where the checkpoint has one. Without it, a d2t that is valid in both readings is refused:
            offsets without any two alike would mean that no two neighbouring tokens are in the vocabulary.
    """
    ids = [draft + offset for draft, offset in enumerate(offsets)]
    as_absolute = len(offsets) > 1 and _is_map(offsets, target.vocabulary_size)
    named = None if in_vocabulary is None else {i for i, inside in enumerate(in_vocabulary) if inside}
    advice = "; as absolute ids it is valid: store d2t[i] - i" if as_absolute and named in (None, set(offsets)) else ""
    if not _is_map(ids, target.vocabulary_size):
        wrong = f"d2t + index is not a set of distinct ids below {target.vocabulary_size}{advice}"
    elif named is not None and named != set(ids):
        wrong = "d2t and t2d name different tokens" + (advice or ": one of them was regenerated")
    elif named is None and as_absolute:
        wrong = "d2t can be read as offsets and as absolute ids, and there is no t2d to tell which it is: add it"
    else:
        return []
    return [Finding(Reason.VOCABULARY_MAP, wrong)]


def _is_map(ids: list[int], vocabulary_size: int) -> bool:
    return len(set(ids)) == len(ids) and all(0 <= i < vocabulary_size for i in ids)
