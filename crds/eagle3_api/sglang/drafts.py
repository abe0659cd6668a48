"""Drafts as SGLang serves them: their classes, what they may have since when, their attention, and their steps by the load."""

from collections.abc import Sequence

from eagle3_api.sglang.flags import flag_values
from eagle3_api.sglang.layers import LATENT_ATTENTION
from eagle3_api.sglang.versions import Version

#: Draft architectures of SGLang 0.5.16 and later.
LLAMA_DRAFT = "LlamaForCausalLMEagle3"
LATENT_DRAFT = "Eagle3DeepseekV2ForCausalLM"

#: From here on drafts may have a norm for each auxiliary state and feed back the normalised one (EAGLE-3.1), and from the
#: second on a norm before fc.
FC_NORM_SINCE = Version(0, 5, 16)
NORM_BEFORE_FC_SINCE = Version(0, 5, 17)

#: From here on a draft may have several decoder layers; 0.5.11 raises an error.
DEEPER_SINCE = Version(0, 5, 16)

#: Attention backends that know latent attention only: a draft that inherits one refuses to start.
LATENT_BACKENDS = frozenset({"trtllm_mla", "cutedsl_mla", "cutlass_mla", "flashmla", "tokenspeed_mla", "dsa", "nsa"})

#: Flags that say which backend the target's attention takes.
BACKEND_FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")

#: Where SGLang's own adaptive steps change: from so many requests decoded together on.
_TIERS = (1, 8, 32)

#: What SGLang tries by itself with few requests, and the most that it tries with more.
_LADDER = (1, 3, 5, 7)
_MOST_STEPS = {8: 3, 32: 1}


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
