"""The command line of a server: every SGLang flag with the reason that it is there.

What SGLang would otherwise choose, adjust or inherit in silence is written out, and what can be compared afterwards is
expected of ``/server_info``. There is one algorithm here and no way to render another: ``EAGLE`` with an EAGLE-3 draft
makes a healthy server whose accept length is 1.0.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3_api.estimate import startup_seconds
from eagle3_api.jobs import Facts
from eagle3_api.sglang import draft_attention_backend, flag_values
from eagle3_api.spec import Eagle3DraftSpec, Serve, seconds
from eagle3_operator.manifests.names import revision_label
from eagle3_operator.settings import EVERYWHERE

ALGORITHM = "EAGLE3"

#: Decode steps between two updates of the gauges and of the log; SGLang's 40 are minutes for a server with few requests.
LOG_INTERVAL = 10

#: Seconds in which a forward pass must end. SGLang finds out within 1.5 times that.
WATCHDOG = "--watchdog-timeout"
WATCHDOG_SECONDS = 300

#: Least seconds that a collective may take: more than the 480 in which SGLang itself names the rank that still loads.
COLLECTIVES = "--dist-timeout"
COLLECTIVE_SECONDS = 600

#: Where a server that adapts its steps reads which ones it has, from its pod's annotation.
ADAPTIVE_FILE = "/eagle3/adaptive/steps.json"


@dataclass(frozen=True)
class Flag:
    """One flag with its values, as words of a command line, and one clause on why it is there."""

    words: tuple[str, ...]
    why: str


def serving(spec: Eagle3DraftSpec) -> Serve:
    """The serve section; ValueError for an object that only trains."""
    if spec.serve is None:
        raise ValueError("an object without serve has no servers")
    return spec.serve


def start_budget(spec: Eagle3DraftSpec, facts: Facts) -> float:
    """Seconds that a server may take to become ready, from its container's start."""
    timeout = serving(spec).start_timeout
    return seconds(timeout) if timeout is not None else startup_seconds(facts.weight_bytes)


def watchdog_seconds(spec: Eagle3DraftSpec) -> float:
    """Seconds after which SGLang takes a forward pass for hung: ours, or what the user's arguments say."""
    given = flag_values(serving(spec).arguments or (), WATCHDOG)
    try:
        return float(given[-1]) if given else WATCHDOG_SECONDS
    except ValueError:
        return WATCHDOG_SECONDS  # SGLang will refuse to start, and say so better


def served_context(spec: Eagle3DraftSpec, facts: Facts) -> int:
    """Tokens of the longest context that is served."""
    return serving(spec).context_length or facts.context_length


def server_flags(
    spec: Eagle3DraftSpec,
    facts: Facts,
    *,
    namespace: str,
    name: str,
    number: int,
    draft: str | None,
    listen: str = EVERYWHERE,
) -> tuple[Flag, ...]:
    """Every flag of one revision's server, in order; the user's own ones come last.

    Args:
        spec: what the user wants; it must have ``serve``.
        facts: what Inspect found.
        namespace: of the object.
        name: of the object, under which the model is served.
        number: of the revision.
        draft: folder of the converted draft; None for the plain revision.
        listen: address of the pod at which it answers.
    """
    return (
        *_target(spec, facts, name, listen),
        *_metrics(namespace, name, number),
        *_against_hangs(spec, facts),
        *(() if draft is None else _speculation(spec, facts, draft)),
        *_users(serving(spec).arguments or ()),
    )


def expected_server_info(
    spec: Eagle3DraftSpec, facts: Facts, *, draft: str | None
) -> dict[str, str | int | float | bool | None]:
    """What ``/server_info`` must say of this server, by its own field names.

    Only what SGLang cannot rightly say otherwise: ``speculative_draft_model_quantization``, for one, is given as
    ``unquant`` and resolved to null.
    """
    serve = serving(spec)
    expected: dict[str, str | int | float | bool | None] = {
        "model_path": facts.target_folder(spec.target.model),
        "tp_size": spec.target.tensor_parallel_size,
        "trust_remote_code": spec.target.trust_remote_code,
        "context_length": served_context(spec, facts),
        "max_running_requests": serve.max_running_requests,
        "enable_metrics": True,
        "decode_log_interval": LOG_INTERVAL,
        "speculative_algorithm": None,
    }
    if draft is None:
        return expected
    return expected | {
        "speculative_algorithm": ALGORITHM,
        "speculative_draft_model_path": draft,
        "speculative_num_steps": serve.speculative.num_steps,
        "speculative_eagle_topk": serve.speculative.top_k,
        "speculative_num_draft_tokens": serve.speculative.num_draft_tokens,
        # What it drafts at the moment stands elsewhere in the answer; that it adapts at all, SGLang drops with a warning.
        "speculative_adaptive": serve.speculative.mode == "Auto",
    }


def _target(spec: Eagle3DraftSpec, facts: Facts, name: str, listen: str) -> Iterator[Flag]:
    serve = serving(spec)
    yield Flag(("--model-path", facts.target_folder(spec.target.model)), "target.model")
    yield Flag(("--served-model-name", name), "clients name the object, not a path that may change")
    yield Flag(("--host", listen), "SGLang listens to its own pod only otherwise")
    yield Flag(("--port", str(serve.port)), "serve.port")
    yield Flag(("--tp-size", str(spec.target.tensor_parallel_size)), "target.tensorParallelSize")
    if spec.target.trust_remote_code:
        yield Flag(("--trust-remote-code",), "target.trustRemoteCode")
    if spec.data is not None and spec.data.chat_template is not None:
        yield Flag(("--chat-template", spec.data.chat_template), "data.chatTemplate: served as the draft learned it")
    yield Flag(
        ("--context-length", str(served_context(spec, facts))),
        "serve.contextLength" if serve.context_length else "the target's own; SGLang refuses a draft that is shorter",
    )
    yield Flag(
        ("--max-running-requests", str(serve.max_running_requests)),
        "serve.maxRunningRequests; with speculation SGLang resets it to 48 in silence otherwise",
    )


def _metrics(namespace: str, name: str, number: int) -> Iterator[Flag]:
    stamped = {"eagle3_name": name, "eagle3_namespace": namespace, "eagle3_revision": revision_label(number)}
    yield Flag(("--enable-metrics",), "the watch reads this server's counters")
    yield Flag(
        ("--extra-metric-labels", json.dumps(stamped, separators=(",", ":"))),
        "on every series, so that revisions are never judged by each other's traffic",
    )
    yield Flag(
        ("--decode-log-interval", str(LOG_INTERVAL)),
        "gauges and log keep up with a server that has few requests; SGLang's default is 40 steps",
    )


def _against_hangs(spec: Eagle3DraftSpec, facts: Facts) -> Iterator[Flag]:
    """A hang becomes a crash with stacks, within limits that the user may set instead."""
    arguments = serving(spec).arguments or ()
    if not flag_values(arguments, WATCHDOG):
        yield Flag((WATCHDOG, str(WATCHDOG_SECONDS)), "a forward pass that hangs ends as a crash with stack dumps")
    if not flag_values(arguments, COLLECTIVES):
        allowed = max(COLLECTIVE_SECONDS, int(start_budget(spec, facts) / 2))
        yield Flag(
            (COLLECTIVES, str(allowed)),
            "a collective that not every rank enters ends as a crash instead of holding the GPUs for ever",
        )


def _speculation(spec: Eagle3DraftSpec, facts: Facts, draft: str) -> Iterator[Flag]:
    serve = serving(spec)
    wanted = serve.speculative
    yield Flag(("--speculative-algorithm", ALGORITHM), "EAGLE with an EAGLE-3 draft serves at accept length 1.0")
    yield Flag(("--speculative-draft-model-path", draft), "the converted draft, under its key: never overwritten")
    together = "set with the other two: SGLang asserts or guesses when one is missing"
    yield Flag(("--speculative-num-steps", str(wanted.num_steps)), f"serve.speculative.numSteps; {together}")
    yield Flag(("--speculative-eagle-topk", str(wanted.top_k)), f"serve.speculative.topK; {together}")
    yield Flag(
        ("--speculative-num-draft-tokens", str(wanted.num_draft_tokens)),
        f"serve.speculative.numDraftTokens; {together}",
    )
    if wanted.mode == "Auto":
        yield Flag(("--speculative-adaptive",), "serve.speculative.mode Auto: numSteps is the most that it drafts")
        yield Flag(
            ("--speculative-adaptive-config", ADAPTIVE_FILE),
            "the steps to choose from: SGLang's own go beyond numSteps, and down to drafting nothing",
        )
    yield Flag(
        ("--speculative-draft-model-quantization", "unquant"),
        "the draft would inherit the target's --quantization and look for a config that it has not",
    )
    backend = draft_attention_backend(facts.architecture, serve.arguments or ())
    if backend is not None and facts.draft_attention == "Heads":
        yield Flag(
            ("--speculative-draft-attention-backend", backend),
            f"{facts.architecture} has latent attention and the draft has not: it cannot run on trtllm_mla, which it "
            "would inherit on Blackwell",
        )


def _users(arguments: Sequence[str]) -> Iterator[Flag]:
    """The user's words as they stand, a new flag at each that begins with dashes."""
    words: list[str] = []
    for word in arguments:
        if word.startswith("--") and words:
            yield Flag(tuple(words), "serve.arguments")
            words = []
        words.append(word)
    if words:
        yield Flag(tuple(words), "serve.arguments")
