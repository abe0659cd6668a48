"""Facts and rules about SGLang, by version: the one place that knows them.

Layers. Everywhere in this product a layer is *the index of the decoder layer whose output is taken, 0-based; -1 is the
embedding's output*. SGLang captures the residual stream before a layer, and its models read the configured ids in
different ways; ``capture_ids`` alone translates.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

#: Flags that the operator renders itself (``--speculative-*`` besides).
OWNED_FLAGS = (
    "--model-path",
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tp",
    "--tp-size",
    "--tensor-parallel-size",
    "--trust-remote-code",
    "--context-length",
    "--max-running-requests",
    "--enable-metrics",
    "--extra-metric-labels",
    "--decode-log-interval",
    "--skip-server-warmup",
    "--config",
)

#: What is out of scope, as flags.
UNSUPPORTED_FLAGS = (
    "--nnodes",
    "--node-rank",
    "--dist-init-addr",
    "--disaggregation-mode",
    "--enable-dp-attention",
    "--pp",
    "--pp-size",
    "--pipeline-parallel-size",
)

_VERSION = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)\.(?P<patch>\d+)(?:\.?post(?P<post>\d+))?")


class UnsupportedLayersError(ValueError):
    """A layer set that this SGLang version cannot capture on this architecture; the message says which and why."""


@dataclass(frozen=True, order=True)
class Version:
    """An SGLang release."""

    major: int
    minor: int
    patch: int
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> "Version":
        """The version in a text such as ``0.5.23`` or ``lmsysorg/sglang:v0.5.23-cu130``; ValueError if there is none.

        An image may be pinned by its digest besides: ``lmsysorg/sglang:v0.5.23@sha256:...``.
        """
        found = _VERSION.search(text.partition("@")[0].rpartition(":")[2])
        if found is None:
            raise ValueError(f"no SGLang version in {text!r}; set sglangVersion")
        return cls(*(int(found[part] or 0) for part in ("major", "minor", "patch", "post")))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")


#: The oldest release whose counters, loader and flags the operator relies on (sglang:spec_verify_calls_total).
OLDEST = Version(0, 5, 17)

#: The newest release whose loader was read for these facts.
NEWEST = Version(0, 5, 23)

#: Draft architectures of SGLang 0.5.16 and later.
LLAMA_DRAFT = "LlamaForCausalLMEagle3"
LATENT_DRAFT = "Eagle3DeepseekV2ForCausalLM"

#: From here on drafts may have a norm for each auxiliary state and feed back the normalised one (EAGLE-3.1), and from the
#: second on a norm before fc.
FC_NORM_SINCE = Version(0, 5, 16)
NORM_BEFORE_FC_SINCE = Version(0, 5, 17)

#: From here on a draft may have several decoder layers; 0.5.11 raises an error.
DEEPER_SINCE = Version(0, 5, 16)

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
    "itself, which is no layer's output",
}

#: Targets with multi-head latent attention, of those above. Their drafts have ordinary attention or latent one.
LATENT_ATTENTION = RAW_UNLESS_FIRST_IS_ONE

#: Attention backends that know latent attention only: a draft that inherits one refuses to start.
LATENT_BACKENDS = frozenset({"trtllm_mla", "cutedsl_mla", "cutlass_mla", "flashmla", "tokenspeed_mla", "dsa", "nsa"})

#: Flags that say which backend the target's attention takes.
BACKEND_FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")

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


def flag_values(arguments: Sequence[str], flag: str) -> list[str]:
    """What a command line gives a flag, as ``--flag value`` or ``--flag=value``; empty where it is not given."""
    joined = [word.partition("=")[2] for word in arguments if word.startswith(f"{flag}=")]
    return joined + [value for word, value in pairwise(arguments) if word == flag]


def draft_attention_backend(architecture: str, arguments: Sequence[str]) -> str | None:
    """The backend that a draft's attention must be given, or None where it does well to inherit the target's.

    A draft without a backend of its own inherits the target's. On a target with latent attention that may be one for
    latent attention only (``trtllm_mla``, which SGLang picks by itself on Blackwell), and the draft, which has ordinary
    attention, then refuses to start (SGLang issue 23490). Which GPU it will be is not known here; ``flashinfer`` runs
    on every NVIDIA GPU that SGLang supports, and one layer's attention is little of a step anywhere.

    Args:
        architecture: the target's ``architectures[0]``.
        arguments: the user's own flags. A backend named there that serves both is inherited.
    """
    if architecture not in LATENT_ATTENTION:
        return None
    named = {value for flag in BACKEND_FLAGS for value in flag_values(arguments, flag)}
    return None if named and not named & LATENT_BACKENDS else "flashinfer"


# ----------------------------------------------------------------------------------- what extraction takes hold of


@dataclass(frozen=True)
class CapturePoints:
    """Where a release of SGLang shows what its model computes, by the names under which its hook registry finds them.

    Attributes:
        loaded: returns when the model is there: ``runner.model.set_eagle3_layers_to_capture(ids)`` is called after it.
        logits: gets ``(processor, input_ids, hidden, lm_head, batch, aux_hidden_states)``: of every forward, the last state
            after the final norm and the auxiliary ones, as a draft would be given them.
    """

    loaded: str = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
    logits: str = "sglang.srt.layers.logits_processor.LogitsProcessor.forward"


#: Those of which a small one can run on a CPU. Of the others there are kernels for GPUs alone.
_RUN_ON_A_CPU = KNOWN_TARGETS - {
    "Qwen3NextForCausalLM",
    "DeepseekV32ForCausalLM",
}

#: Releases whose models and capture points were read, each with the architectures whose states were also compared with those
#: that transformers computes. Capture points are the same in all of them; another release gets a warning, and a hook that is
#: not found ends the extraction by name.
CAPTURE_KNOWN: Mapping[Version, frozenset[str]] = {
    Version(0, 5, 17): frozenset(
        {
            "LlamaForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen2_5_VLForConditionalGeneration",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "Qwen3VLForConditionalGeneration",
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "MiniMaxM2ForCausalLM",
        }
    ),
    Version(0, 5, 21): _RUN_ON_A_CPU,
    Version(0, 5, 23): _RUN_ON_A_CPU,
}


def capture_known(architecture: str, version: Version) -> Literal["compared", "read", "unknown"]:
    """How it is known that a release captures the layers of a target that it is told to."""
    if version not in CAPTURE_KNOWN:
        return "unknown"
    return "compared" if architecture in CAPTURE_KNOWN[version] else "read"


#: What extraction adds to a command line. A cached prefix is not computed again, so it has no rows; hooks are Python, which
#: a replayed graph does not run; tokens come and go, no text.
CAPTURE_FLAGS = (
    "--skip-tokenizer-init",
    "--disable-radix-cache",
    "--cuda-graph-backend-prefill",
    "disabled",
)

#: Where nothing is decoded, graphs of decoding would only cost time and memory.
_STATES_ONLY_FLAGS = ("--cuda-graph-backend-decode", "disabled")

#: Requests that are decoded together at most where the target answers: there is a graph for as many.
_DECODED_TOGETHER = "512"

#: What extraction adds where the target answers, too. Graphs of decoding stay: states are taken of forwards that extend a
#: sequence by a prompt, and in all releases of ``CAPTURE_KNOWN`` such a forward runs in no graph but one of the prefill
#: (``ModelRunner._forward_raw`` asks ``ForwardMode.is_cuda_graph``). Should it do so in another release, the hooks would not
#: be called, and states that are missing end the extraction. States go before answers in the queue, and interrupt none.
_ANSWER_FLAGS = (
    "--max-running-requests",
    _DECODED_TOGETHER,
    "--cuda-graph-max-bs-decode",
    _DECODED_TOGETHER,
    "--enable-priority-scheduling",
    "--disable-priority-preemption",
)

#: Flags by which a user says how many tokens a forward takes, or how much of a GPU is kept free for one.
_FORWARD_FLAGS = ("--chunked-prefill-size", "--max-prefill-tokens", "--mem-fraction-static")

#: How much of an extraction's forward may be: bytes of its states, and times the tokens that SGLang takes by itself.
FORWARD_BYTES, FORWARD_TIMES = 256 * 1024 * 1024, 4

#: Flags of a server (and how many words follow) that contradict ours and do not change what is computed.
_DROPPED_FLAGS = {
    "--enable-hierarchical-cache": 0,
    "--enable-lmcache": 0,
    "--tokenizer-worker-num": 1,
    "--cuda-graph-config": 1,
    "--schedule-policy": 1,
    "--schedule-low-priority-values-first": 0,
    "--abort-on-priority-when-disabled": 0,
    "--max-queued-requests": 1,
}


#: Flags of a server that change what the target computes, and not only in what order it rounds: types, quantization, other
#: weights, overrides of the configuration, attention that looks at a part. Attention and matrix backends compute the same.
NUMERIC_FLAGS = frozenset(
    {
        "--custom-weight-loader",
        "--deepep-dispatcher-output-dtype",
        "--ds-channel-config-path",
        "--ds-heavy-channel-num",
        "--ds-heavy-channel-type",
        "--ds-heavy-token-num",
        "--ds-sparse-decode-threshold",
        "--dtype",
        "--enable-deepseek-v4-fp4-indexer",
        "--enable-double-sparsity",
        "--enable-fp32-lm-head",
        "--enable-hisparse",
        "--enable-int8-mamba-checkpoint",
        "--enable-mamba-cache-stochastic-rounding",
        "--enable-quant-communications",
        "--enable-w4a4-mxfp4-megamoe",
        "--flashinfer-mxfp4-moe-precision",
        "--hisparse-config",
        "--json-model-override-args",
        "--kt-max-deferred-experts-per-token",
        "--kt-method",
        "--kt-num-gpu-experts",
        "--kt-weight-path",
        "--kv-cache-dtype",
        "--load-format",
        "--mamba-ssm-dtype",
        "--model-impl",
        "--model-loader-extra-config",
        "--modelopt-checkpoint-restore-path",
        "--modelopt-quant",
        "--prefill-kv-cache-dequant-dtype",
        "--quantization",
        "--quantization-param-path",
        "--quantize-and-serve",
        "--revision",
        "--rl-on-policy-target",
        "--rl-quant-profile",
        "--torchao-config",
        "--triton-attention-reduce-in-fp32",
    }
)

#: What these flags say where they leave the choice to the checkpoint, as they do where they are not given.
_UNSAID = "auto"


def numeric_arguments(arguments: Sequence[str]) -> list[str]:
    """Those of a server's flags that change what the target computes, in one spelling and order; none at their default.

    Args:
        arguments: of the server, as ``--flag value`` or ``--flag=value``; of a flag that is repeated the last holds.
    """
    said: dict[str, list[str]] = {}
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            flag, joined, value = word.partition("=")
            said[flag] = [value] if joined else []
        elif flag:
            said[flag].append(word)
    return [" ".join([flag, *said[flag]]) for flag in sorted(said) if flag in NUMERIC_FLAGS and said[flag] != [_UNSAID]]


def capture_points(version: Version) -> CapturePoints:
    """The capture points of a release.

    Raises:
        ValueError: it is older than the operator supports.
    """
    if version < OLDEST:
        raise ValueError(f"SGLang {version} is older than {OLDEST}")
    return CapturePoints()


def capture_arguments(arguments: Sequence[str], *, answers: bool = False) -> list[str]:
    """A server's own flags as an extraction takes them: all but those that contradict its own, and its own.

    Args:
        arguments: of the server.
        answers: whether the target answers as well.
    """
    kept, skip = [], 0
    for word in arguments:
        flag, joined, _ = word.partition("=")
        if skip:
            skip -= 1
        elif flag in _DROPPED_FLAGS:
            skip = 0 if joined else _DROPPED_FLAGS[flag]
        else:
            kept.append(word)
    return [*kept, *CAPTURE_FLAGS, *(_ANSWER_FLAGS if answers else _STATES_ONLY_FLAGS)]


def forward_arguments(arguments: Sequence[str], own_tokens: int, token_bytes: int) -> list[str]:
    """What an extraction adds so that a GPU is not through with a forward before SGLang has launched the next one.

    To launch a forward takes a scheduler 20 to 28 ms, whatever it holds (0.5.17, 30 layers), in which a GPU computes a small
    target several times. So forwards hold as many times SGLang's own number of tokens as their states allow: small targets
    have small states, and a large one, which keeps the GPU busy with fewer tokens, gets no larger forwards. SGLang itself
    then keeps as much more of the GPU free. It changes the order of rounding alone, as batches of another size do.

    Args:
        arguments: of the server. One that says how large forwards are, or how memory is divided, is left as it is.
        own_tokens: of a forward, where SGLang chooses by the GPU's memory; not positive where it cuts none.
        token_bytes: of one token's features.
    """
    if own_tokens <= 0 or any(flag_values(arguments, flag) for flag in _FORWARD_FLAGS):
        return []
    times = min(FORWARD_TIMES, FORWARD_BYTES // (own_tokens * token_bytes))
    if times < 2:
        return []
    tokens = str(own_tokens * times)
    return ["--chunked-prefill-size", tokens, "--max-prefill-tokens", tokens]


# --------------------------------------------------------------------------------------------- steps by the load

#: Where SGLang's own adaptive steps change: from so many requests decoded together on.
_TIERS = (1, 8, 32)

#: What SGLang tries by itself with few requests, and the most that it tries with more.
_LADDER = (1, 3, 5, 7)
_MOST_STEPS = {8: 3, 32: 1}


def adaptive_config(num_steps: int) -> dict[str, dict[str, list[int]]]:
    """``--speculative-adaptive-config`` for a server that drafts at most so many steps: candidates by requests together.

    Tiers and steps are SGLang's own (its defaults differ between 0.5.17 and 0.5.23), but bounded by ``num_steps`` and
    without its candidate 0, with which it drafts nothing: of such traffic nobody could tell whether the draft is good.
    """
    candidates = {}
    for tier in _TIERS:
        most = min(num_steps, _MOST_STEPS.get(tier, num_steps))
        candidates[str(tier)] = {"candidate_steps": sorted({*(step for step in _LADDER if step < most), most})}
    return candidates


def adaptive_tier(requests: float) -> int:
    """Which of the tiers so many requests, decoded together, belong to: the number that it begins with."""
    return max((tier for tier in _TIERS if tier <= requests), default=_TIERS[0])
