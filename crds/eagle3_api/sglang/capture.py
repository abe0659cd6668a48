"""Extraction: where SGLang shows what its model computes, and how it is started for that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3_api.sglang.flags import flag_values
from eagle3_api.sglang.layers import KNOWN_TARGETS
from eagle3_api.sglang.versions import OLDEST, Version


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
            "Qwen3NextForCausalLM",
            "Qwen3VLForConditionalGeneration",
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "KimiK25ForConditionalGeneration",
            "MiniMaxM2ForCausalLM",
            "ApertusForCausalLM",
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
FORWARD_FLAGS = ("--chunked-prefill-size", "--max-prefill-tokens", "--mem-fraction-static")

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
    if own_tokens <= 0 or any(flag_values(arguments, flag) for flag in FORWARD_FLAGS):
        return []
    times = min(FORWARD_TIMES, FORWARD_BYTES // (own_tokens * token_bytes))
    if times < 2:
        return []
    tokens = str(own_tokens * times)
    return ["--chunked-prefill-size", tokens, "--max-prefill-tokens", tokens]
