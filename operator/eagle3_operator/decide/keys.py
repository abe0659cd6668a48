"""Keys: what determines an output, hashed. The same inputs give the same key for ever.

A key is over canonical JSON, with fields at their default left out, so that an upgrade that adds a field changes no key
(golden keys are tested). What does not change the output never enters: GPUs, images of Jobs, placement of Jobs.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from eagle3_api.base import Model
from eagle3_api.jobs import Facts
from eagle3_api.spec import Eagle3DraftSpec, Placement

#: Hexadecimal digits of a key; the first eight stand in names.
LENGTH = 16


def key_of(kind: str, inputs: Mapping[str, Any]) -> str:
    """The key of something of this kind that these inputs determine.

    Args:
        kind: a stage and its semantic version (``extract/1``), or ``revision/1``.
        inputs: plain JSON values; those that are None are left out.
    """
    present = {name: value for name, value in inputs.items() if value is not None}
    text = json.dumps([kind, present], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def changed(model: Model | None) -> dict[str, Any] | None:
    """The fields of a section that are not at their default, as JSON; None for an absent section."""
    return None if model is None else model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def plain_key(spec: Eagle3DraftSpec, facts: Facts) -> str:
    """Key of the revision without a draft: how the target itself is served."""
    return key_of("revision/1", _way_of_serving(spec, facts))


def draft_key(spec: Eagle3DraftSpec, facts: Facts, digest: str) -> str:
    """Key of the revision with this draft, served as the object says."""
    if spec.serve is None:
        raise ValueError("an object without serve has no revisions")
    drafting = {"draft": digest, "speculative": changed(spec.serve.speculative)}
    return key_of("revision/1", _way_of_serving(spec, facts) | drafting)


def revision_key(spec: Eagle3DraftSpec, facts: Facts, draft: str | None) -> str:
    """Key of the revision that the object, as it is now, makes of a draft (its digest), or without one."""
    return plain_key(spec, facts) if draft is None else draft_key(spec, facts, draft)


def _way_of_serving(spec: Eagle3DraftSpec, facts: Facts) -> dict[str, Any]:
    serve = spec.serve
    if serve is None:
        raise ValueError("an object without serve has no revisions")
    placement = (serve.placement or Placement()).over(spec.placement)
    return {
        "target": facts.target_digest,
        "model": spec.target.model,
        "image": spec.image,
        "trustRemoteCode": spec.target.trust_remote_code or None,
        "tensorParallelSize": spec.target.tensor_parallel_size,
        "gpus": serve.gpus,
        "port": serve.port,
        "contextLength": serve.context_length,
        "chatTemplate": facts.chat_template_digest if spec.data and spec.data.chat_template else None,
        "maxRunningRequests": serve.max_running_requests,
        "arguments": serve.arguments,
        "placement": changed(placement) or None,
    }
