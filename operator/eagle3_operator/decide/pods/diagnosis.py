"""Why a server does not start: what its pods and its last log lines say, as a reason and a message.

The signatures are SGLang's and CUDA's own words; a start that matches none is told with its last line.
"""

import re
from datetime import datetime

from eagle3_api.conditions import Reason
from eagle3_operator.decide.pods.waiting import held_up, unplaced
from eagle3_operator.decision import Because
from eagle3_operator.observation import Deployment

_MEMORY_ADVICE = (
    "Lower --mem-fraction-static in serve.arguments, or capture fewer CUDA graph sizes (--cuda-graph-max-bs)"
)

#: First match wins. The words are those of SGLang 0.5.17 to 0.5.23; what they mean, docs/failures.md has.
_SIGNATURES = (
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|Not enough memory",
        Reason.OUT_OF_MEMORY,
        f"the GPU's memory is exhausted. {_MEMORY_ADVICE}",
    ),
    (
        r"captured \d+ of \d+ aux hidden states|mat1 and mat2 shapes cannot be multiplied",
        Reason.START_FAILED,
        "the server does not capture the layers that the draft reads: capture is not active for this target",
    ),
    (
        r"trtllm_mla backend can only be used with MLA models",
        Reason.START_FAILED,
        "the draft inherits a backend for MLA models; name one that serves both: --attention-backend flashinfer",
    ),
    (
        r"[Cc]annot find the config file for",
        Reason.START_FAILED,
        "the draft inherits the target's quantization; it has none of its own",
    ),
    (
        r"User-specified context_length .* is greater than the derived context_length",
        Reason.CONTEXT_TOO_SHORT,
        "the served context is longer than the model's; lower serve.contextLength",
    ),
)


def diagnose(deployment: Deployment) -> Because:
    """Why this Deployment's server ended or does not get ready."""
    newest = max(deployment.pods, key=lambda pod: pod.created_at, default=None)
    if newest is not None and newest.oom_killed:
        return Because(
            Reason.OUT_OF_MEMORY, f"pod {newest.name} ran out of memory and was killed; raise serve.placement.memory"
        )
    log = "\n".join(deployment.log)
    for pattern, reason, message in _SIGNATURES:
        if found := re.search(pattern, log):
            return Because(reason, f'{message} (log: "{found[0]}")')
    ending = f"code {newest.exit_code}" if newest and newest.exit_code is not None else "no exit code"
    line = next((line.strip() for line in reversed(deployment.log) if line.strip()), "")
    return Because(
        Reason.START_FAILED, f"the server ended with {ending}" + (f'; last line: "{line[:300]}"' if line else "")
    )


def refused(deployment: Deployment) -> Because | None:
    """What lets fewer pods be made than there are to be: a quota, an admission."""
    if deployment.refused is None or len(deployment.without_former_pods.pods) >= deployment.replicas:
        return None
    return Because(Reason.UNSCHEDULABLE, f"a pod of {deployment.name} cannot be made: {deployment.refused}")


def not_begun(deployment: Deployment, now: datetime) -> Because | None:
    """What keeps a pod of a server from being started, or made, at all. Pods that are about to end do not count."""
    return held_up(deployment.without_former_pods.pods, now) or refused(deployment)


def without_place(deployment: Deployment | None) -> datetime | None:
    """Since when a pod of a server has no node, no quota in its queue, or cannot even be made; None if none waits for that."""
    if deployment is None:
        return None
    waiting = unplaced(deployment.pods)
    if waiting is not None:
        return waiting.unschedulable_since or waiting.created_at
    return (deployment.refused_since or deployment.created_at) if refused(deployment) else None


def hung_since(deployment: Deployment, budget: float, now: datetime) -> float | None:
    """Seconds that a server has had since its container was started, without being ready, if that is more than its budget."""
    starts = (pod.started_at for pod in deployment.pods if not pod.ready)
    age = max(((now - start).total_seconds() for start in starts if start is not None), default=0.0)
    return age if deployment.ready_replicas == 0 and age > budget else None
