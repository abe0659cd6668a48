"""Inspect: everything is looked at before anything is spent."""

from dataclasses import dataclass
from typing import Any, Literal

from eagle3_api.jobs import FetchResult, InspectConfig, StageName
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec
from eagle3_api.status import Handled
from eagle3_operator.decide.keys import changed
from eagle3_operator.decide.stages.configuration import (
    checkpoint,
    data_config,
    engine_numerics,
    object_store,
    owner,
    sglang_version,
    unusual,
)
from eagle3_operator.decide.stages.stage import Stage


@dataclass(frozen=True)
class Look:
    """What Inspect is made from. It has no artifact and is never finished: it runs again when what it reads changes, or on request.

    Attributes:
        obj: the object.
        handled: what was asked for last, of the user or of drift.
        features_capacity: bytes of the features claim. Not in the key: a claim that is bound when its first pod comes
            has another size then, which is no news.
        fetched: what came from a hub.
        features_gone: their claim went with them. Not in the key: what is looked at is the same.
    """

    obj: Eagle3Draft
    handled: Handled
    features_capacity: int | None = None
    fetched: FetchResult | None = None
    features_gone: bool = False


def _inputs(look: Look) -> dict[str, Any]:
    spec = look.obj.spec
    return {
        "target": changed(spec.target),
        "data": changed(spec.data),
        "draft": changed(spec.draft),
        "dtype": spec.extract.dtype,
        "teacher": unusual(spec.extract.teacher),
        "version": sglang_version(spec),
        "engine": engine_numerics(spec),
        "contextLength": spec.serve.context_length if spec.serve else None,
        "longerContext": _longer_context(spec),
        "storage": changed(spec.storage),
        "volumes": [v.to_json() for v in spec.placement.volumes or []],
        "token": look.handled.retry,
        "drift": look.handled.drift,
        "fetched": look.fetched and look.fetched.to_json(),
    }


def _config(look: Look, key: str) -> InspectConfig:
    spec, fetched = look.obj.spec, look.fetched
    target = fetched.target.path if fetched and fetched.target else spec.target.model
    return InspectConfig(
        owner=owner(look.obj),
        key=key,
        target=target,
        trust_remote_code=spec.target.trust_remote_code,
        data=data_config(spec.data, fetched) if spec.data else None,
        checkpoint=checkpoint(spec, fetched),
        init_from=spec.draft.init_from,
        auxiliary_layers=spec.draft.auxiliary_layers,
        vocabulary_size=spec.draft.vocabulary_size,
        attention=spec.draft.attention,
        feature_dtype=spec.extract.dtype,
        feature_teacher=spec.extract.teacher,
        sglang_version=sglang_version(spec),
        engine=engine_numerics(spec),
        context_length=spec.serve.context_length if spec.serve else None,
        longer_context=_longer_context(spec),
        object_store=object_store(spec),
        features_capacity=look.features_capacity,
        features_gone=look.features_gone,
        fetched=fetched,
    )


def _longer_context(spec: Eagle3DraftSpec) -> Literal[True] | None:
    """Whether SGLang is told to take a context that its own reckoning of the target's positions does not allow."""
    variables = {variable.name for variable in spec.placement.env or ()}
    return True if "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" in variables else None


INSPECT = Stage(StageName.INSPECT, 2, _inputs, _config)
