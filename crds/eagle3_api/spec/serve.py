"""``serve``: how the target is served, with a draft and without."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from eagle3_api.base import Model
from eagle3_api.sglang import HIDING_FLAGS, OVERRIDE_FLAG, OWNED_FLAGS, UNSUPPORTED_FLAGS
from eagle3_api.spec.duration import Duration, Period
from eagle3_api.spec.placement import STAGE_PLACEMENT, Placement
from eagle3_api.spec.schema import rule, rules, section

#: Nodes that a draft tree can have, in CEL.
_TREE = "self.topK + (self.numSteps - 1) * self.topK * self.topK"


class Speculative(Model):
    """How the server speculates. The three numbers belong together; SGLang adjusts some combinations silently."""

    model_config = rules(
        rule(
            "self.topK != 1 || self.numDraftTokens == self.numSteps + 1",
            "with topK 1 SGLang uses numSteps + 1 draft tokens",
            computed="'with topK 1 SGLang uses numSteps + 1 draft tokens; numSteps is %d and numDraftTokens %d. "
            "Set numDraftTokens to %d or numSteps to %d.'"
            ".format([self.numSteps, self.numDraftTokens, self.numSteps + 1, self.numDraftTokens - 1])",
        ),
        rule(
            f"self.topK == 1 || self.numDraftTokens - 1 <= {_TREE}",
            "the tree is too small for numDraftTokens",
            computed="'a tree of %d steps with topK %d has %d nodes, fewer than numDraftTokens - 1 = %d; SGLang would crash "
            "at the first request. Lower numDraftTokens to %d or raise numSteps or topK.'"
            f".format([self.numSteps, self.topK, {_TREE}, self.numDraftTokens - 1, {_TREE} + 1])",
        ),
        rule(
            "self.mode == 'Fixed' || (self.topK == 1 && self.numSteps > 1)",
            "mode Auto: SGLang adapts how far it drafts in a chain, up to numSteps: topK must be 1 and numSteps more than 1",
        ),
    )

    mode: Literal["Fixed", "Auto"] = Field(
        "Fixed",
        description="Fixed always drafts numSteps; Auto lets SGLang draft fewer, down to one, when fewer are accepted or many "
        "requests are decoded together.",
    )

    num_steps: int = Field(3, ge=1, le=32, description="Tokens drafted in a row before the target verifies them.")
    top_k: int = Field(1, ge=1, le=16, description="Branches of the draft tree; 1 is a chain.")
    num_draft_tokens: int = Field(
        4, ge=2, le=256, description="Tokens that one verification covers; with topK 1 it must be numSteps + 1."
    )


def _none_names(flags: tuple[str, ...]) -> str:
    """CEL: no argument is one of these flags, or begins one as SGLang's command line lets it be cut short."""
    listed = ", ".join(f"'{flag}'" for flag in flags)
    return f"self.all(a, !a.matches('^--.') || ![{listed}].exists(f, f.startsWith(a.split('=')[0])))"


Argument = Annotated[str, StringConstraints(min_length=1, max_length=512)]

#: They stand on the list itself: of a stored object that breaks one, the API server lets everything else change.
_ARGUMENTS = [
    rule(
        f"self.all(a, !a.startsWith('--speculative')) && {_none_names(OWNED_FLAGS)}",
        "serve.arguments: this flag is rendered by the operator from the object; set the object's field instead "
        "(--speculative-*: serve.speculative, --model-path: target.model, --tp: target.tensorParallelSize, "
        "--chat-template and what chooses or completes it: data.chatTemplate; the tokenizer is the one in the target's folder)",
    ),
    rule(
        _none_names(UNSUPPORTED_FLAGS),
        "serve.arguments: not in scope: one server over several nodes, prefill/decode disaggregation, "
        "DP attention with speculation, and data parallelism within a server are not supported; for more servers, set serve.replicas",
    ),
    rule(
        _none_names(HIDING_FLAGS),
        "serve.arguments: servers are probed, watched and asked for their health by plain HTTP and without a key: have a gateway or a mesh "
        "before the Service ask for keys and speak TLS",
    ),
    rule(
        _none_names((OVERRIDE_FLAG,)),
        f"serve.arguments: SGLang applies {OVERRIDE_FLAG} to the draft's configuration too, so that its positions and sizes would not be those "
        "that it was trained with: make the change in the config.json of the target instead; features and draft are then made for it",
    ),
    rule(
        "self.all(a, !a.startsWith('--') || !a.split('=')[0].contains(' '))",
        "serve.arguments: one list item per word: '--dtype' and 'bfloat16' are two items",
    ),
]


class Serve(Model):
    """How the model is served: one SGLang Deployment per revision behind one Service."""

    replicas: int = Field(
        1, ge=0, le=1000, description="Servers of the serving revision; kubectl scale and an HPA set it."
    )
    gpus: int | None = Field(None, ge=0, le=64, description="GPUs of one server. Default target.tensorParallelSize.")
    port: int = Field(30000, ge=1024, le=65535, description="Port of the servers and of the Service.")
    context_length: int | None = Field(
        None, ge=16, le=10_485_760, description="Longest served context. Default what the target's config says."
    )
    max_running_requests: int = Field(
        48,
        ge=1,
        le=65536,
        description="Requests that are decoded together. Always passed to SGLang, which otherwise resets it silently.",
    )
    surge: Literal["IfFree", "Never"] = Field(
        "IfFree",
        description="IfFree starts a new revision beside the serving one and, if its pods find no GPU for two minutes, "
        "replaces it instead; Never always replaces.",
    )
    while_training: Literal["Keep", "ScaleToZero"] = Field(
        "Keep",
        description="ScaleToZero takes the servers' pods away while Extract and Train run, for nodes that have no GPUs for "
        "both: the Service has no pod until the new draft is proven, or the Jobs have failed or are suspended.",
    )
    bake_time: Duration = Field("10m", description="How long the former revision stays warm after a promotion.")
    start_retries: int = Field(2, ge=0, le=10, description="How often a revision that failed to start is tried again.")
    start_timeout: Period | None = Field(
        None,
        description="How long a server may take to become ready. Default derived from the bytes of the target's "
        "weights.",
    )
    speculative: Speculative = section(Speculative)
    arguments: list[Argument] | None = Field(
        None,
        max_length=64,
        description="Further SGLang flags, one list item per word (--dtype, bfloat16).",
        json_schema_extra={"x-kubernetes-validations": list[JsonValue](_ARGUMENTS)},
    )
    placement: Placement | None = Field(None, description=STAGE_PLACEMENT)
