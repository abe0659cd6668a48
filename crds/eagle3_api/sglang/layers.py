"""Layers of a target, by its architecture and SGLang's release.

SGLang captures the residual stream before a layer, and its models read the configured ids in different ways; ``capture_ids`` alone
translates.
"""

from collections.abc import Sequence

from eagle3_api.sglang.versions import Version

#: Since 0.5.16 these read the ids raw unless the first is 1 (SGLang PR 25454); before, they too added one.
RAW_UNLESS_FIRST_IS_ONE = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "Glm4MoeLiteForCausalLM",
    }
)
RAW_SINCE = Version(0, 5, 16)

#: Those that read the ids as outputs, to which they add one.
PLUS_ONE = frozenset(
    {
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Glm4MoeForCausalLM",
        "MiniMaxM2ForCausalLM",
        "ApertusForCausalLM",
    }
)

#: These read the ids as outputs, too, unless the largest is the number of layers: then all name inputs, the final norm's among
#: them, which no other captures (SGLang PR 32334).
RAW_IF_LAST_IS_ALL = frozenset({"GptOssForCausalLM"})

#: Every target architecture that the operator knows the convention of.
KNOWN_TARGETS = PLUS_ONE | RAW_UNLESS_FIRST_IS_ONE | RAW_IF_LAST_IS_ALL

#: Targets of which SGLang captures what a draft must not be trained on, and why.
UNFIT = {
    # The model of 0.5.17, 0.5.21 and 0.5.23 hands over ``hidden_states`` of a layer that keeps the residual beside them
    "Gemma3ForCausalLM": "SGLang gives a draft what the last block of a layer adds to the residual stream and not the stream "
    "itself, which is not a layer's output",
}

#: Targets with multi-head latent attention, of those above. Their drafts have ordinary attention or latent one.
LATENT_ATTENTION = RAW_UNLESS_FIRST_IS_ONE

#: From 0.5.22 a Llama-like model can capture the embedding; before, layer 0 has no residual yet and the forward fails.
EMBEDDING_SINCE = Version(0, 5, 22)

#: From 0.5.21 on these capture a layer's output once the ranks' parts of it are summed. In 0.5.17 their own code takes it
#: before, and with several GPUs of Hopper or Blackwell SGLang leaves that sum, by itself and for forwards of up to 2,048
#: tokens, to the next layer's norm: what one rank computed then passes for all of it.
WHOLE_SINCE = {
    "Glm4MoeForCausalLM": Version(0, 5, 21),
    "Glm4MoeLiteForCausalLM": Version(0, 5, 21),
    "GptOssForCausalLM": Version(0, 5, 21),
}


class UnsupportedLayersError(ValueError):
    """A layer set that this SGLang version cannot capture on this architecture; the message says which and why."""


def default_layers(layers: int) -> list[int] | None:
    """The layers that EAGLE-3 reads by default, or None where the target is too small to have them.

    Args:
        layers: number of decoder layers of the target.

    Source: outputs of 1, n//2-1, n-4, which are the inputs of 2, n//2, n-3 in the official implementation and in
    SGLang's default. Strictly increasing from n = 7 on.
    """
    return [1, layers // 2 - 1, layers - 4] if layers >= 7 else None


def supports_target(architecture: str) -> bool:
    """Whether this architecture's capture convention is known."""
    return architecture in KNOWN_TARGETS


def why_unsupported(architecture: str) -> str:
    """Why there can be no draft for targets of this architecture, as a sentence that names it."""
    if architecture in UNFIT:
        return f"{architecture}: {UNFIT[architecture]}"
    return f"{architecture} is not among the architectures that SGLang captures hidden states of in a known way"


def convention(architecture: str, version: Version) -> str:
    """The name of the way in which a target's model code reads the configured ids: part of Convert's key.

    ``output``: ids are this product's (SGLang adds one). ``input-unless-first-is-1``: ids name the layer's *input*,
    unless the first is 1, which makes the whole list outputs. ``output-unless-last-is-all``: ids are this product's, unless
    the largest is the number of layers, which makes the whole list inputs.
    """
    if architecture in RAW_IF_LAST_IS_ALL:
        return "output-unless-last-is-all"
    raw = architecture in RAW_UNLESS_FIRST_IS_ONE and version >= RAW_SINCE
    return "input-unless-first-is-1" if raw else "output"


def capture_ids(layers: list[int], architecture: str, num_layers: int, version: Version) -> list[int]:
    """What ``eagle_config.eagle_aux_hidden_state_layer_ids`` must say so that SGLang captures these layers' outputs.

    Args:
        layers: this product's layers (outputs, -1 the embedding), strictly increasing.
        architecture: the target's ``architectures[0]``.
        num_layers: decoder layers of the target.
        version: the SGLang that serves.

    Raises:
        UnsupportedLayersError: the set cannot be captured by this version on this architecture.
    """
    if architecture in WHOLE_SINCE and version < WHOLE_SINCE[architecture]:
        raise UnsupportedLayersError(
            f"SGLang {version} may give a draft what one GPU computed of a layer's output on {architecture}, and not the sum "
            f"over all; {WHOLE_SINCE[architecture]} gives the whole"
        )
    if not layers:
        raise UnsupportedLayersError("no layers are named, and a draft reads one at least")
    if layers != sorted(set(layers)):
        raise UnsupportedLayersError(f"layers {layers} are not strictly increasing; SGLang captures in layer order")
    last = num_layers - (1 if architecture in RAW_IF_LAST_IS_ALL else 2)
    if layers[-1] > last:
        raise UnsupportedLayersError(
            f"layer {layers[-1]}: SGLang captures what enters the next layer, so the last that can be taken of "
            f"{num_layers} is {last}"
        )
    if layers[0] < -1:
        raise UnsupportedLayersError(f"layer {layers[0]} does not exist; -1 is the embedding's output")
    inputs = [layer + 1 for layer in layers]
    match convention(architecture, version):
        case "output":
            if layers[0] == -1 and version < EMBEDDING_SINCE:
                raise UnsupportedLayersError(
                    f"the embedding's output (-1) cannot be captured by SGLang {version} on {architecture}; "
                    f"{EMBEDDING_SINCE} can"
                )
            return list(layers)
        case "output-unless-last-is-all":
            return inputs if inputs[-1] == num_layers else list(layers)
    if layers[0] == 1:
        return list(layers)
    if inputs[0] == 1:
        raise UnsupportedLayersError(
            f"layers {layers} on {architecture}: SGLang {version} reads a list that begins with 1 as outputs, so the "
            "output of layer 0 cannot be named; choose another first layer"
        )
    return inputs


def captured_layers(ids: Sequence[int], architecture: str, num_layers: int, version: Version) -> list[int]:
    """The layers whose outputs SGLang captures for ``eagle_aux_hidden_state_layer_ids``: the inverse of ``capture_ids``."""
    match convention(architecture, version):
        case "output":
            raw = False
        case "output-unless-last-is-all":
            raw = max(ids, default=None) == num_layers
        case _:
            raw = next(iter(ids), None) != 1
    return [i - 1 for i in ids] if raw else list(ids)


def log_ids(layers: list[int]) -> list[int]:
    """How SGLang's log names the same tensors: the layer whose input they are."""
    return [layer + 1 for layer in layers]
