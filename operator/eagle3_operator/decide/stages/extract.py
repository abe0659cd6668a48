"""Extract: conversations to hidden states."""

from typing import Any

from eagle3_api.jobs import ExtractConfig, StageName
from eagle3_operator.decide.keys import changed
from eagle3_operator.decide.stages.configuration import (
    data_config,
    engine_arguments,
    engine_numerics,
    given,
    object_store,
    owner,
    unusual,
)
from eagle3_operator.decide.stages.stage import Context, Stage, features_folder


def _inputs(context: Context) -> dict[str, Any]:
    facts, data = context.facts, given(context.spec.data)
    return {
        "target": facts.target_digest,
        "data": facts.data_digest,
        "maxSamples": data.max_samples,
        "maxLength": data.max_length,
        "holdout": data.holdout,
        "chatTemplate": facts.chat_template_digest,
        "layers": facts.auxiliary_layers,
        "dtype": context.spec.extract.dtype,
        # An empty object where the target answers itself with nothing but defaults
        "regenerate": changed(data.regeneration),
        "endTokens": facts.end_tokens,
        "samplingDefaults": facts.sampling_defaults and facts.sampling_defaults.to_json(),
        "teacher": unusual(context.spec.extract.teacher),
        "engine": engine_numerics(context.spec),
    }


def _folder(context: Context, key: str) -> str:
    return features_folder(context.obj, StageName.EXTRACT, key)


def _config(context: Context, key: str) -> ExtractConfig:
    spec, facts = context.spec, context.facts
    return ExtractConfig(
        owner=owner(context.obj),
        key=key,
        folder=_folder(context, key),
        target=context.target,
        target_digest=facts.target_digest,
        target_revision=facts.fetched.target.commit if facts.fetched and facts.fetched.target else None,
        trust_remote_code=spec.target.trust_remote_code,
        data=data_config(given(spec.data), facts.fetched),
        data_digest=facts.data_digest or "",
        object_store=object_store(spec),
        layers=facts.auxiliary_layers,
        dtype=spec.extract.dtype,
        teacher=spec.extract.teacher,
        sglang_version=facts.sglang_version,
        arguments=engine_arguments(spec),
        tensor_parallel_size=spec.target.tensor_parallel_size,
        shards=spec.extract.shards,
        features_capacity=context.features_capacity,
        end_tokens=facts.end_tokens,
        sampling_defaults=facts.sampling_defaults,
    )


EXTRACT = Stage(StageName.EXTRACT, 2, _inputs, _config, _folder)
