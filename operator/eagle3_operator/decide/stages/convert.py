"""Convert: a trained or adopted draft to what SGLang loads."""

from typing import Any

from eagle3_api.estimate import conversion_memory
from eagle3_api.jobs import ConvertConfig, StageName
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_operator.decide.stages.configuration import (
    checkpoint,
    data_config,
    engine_arguments,
    engine_numerics,
    owner,
)
from eagle3_operator.decide.stages.stage import Context, Stage, drafts_folder


def _inputs(context: Context) -> dict[str, Any]:
    facts, adopted = context.facts, context.spec.draft.checkpoint is not None
    return {
        "trained": None if adopted else context.upstream(StageName.TRAIN).key,
        "checkpoint": facts.checkpoint_digest if adopted else None,
        "prompts": facts.data_digest if adopted else None,
        "target": facts.target_digest,
        "layers": facts.auxiliary_layers,
        "convention": facts.layer_convention,
        "contextLength": facts.context_length,
        "dtype": _told_dtype(context.spec) if adopted else None,  # of one that is trained it stands in Extract's key
    }


def _told_dtype(spec: Eagle3DraftSpec) -> str | None:
    """What ``serve.arguments`` say of the type that is served in."""
    return next((said for said in engine_numerics(spec) or () if said.startswith("--dtype ")), None)


def _folder(context: Context, key: str) -> str:
    return drafts_folder(context.obj, StageName.CONVERT, key)


def _config(context: Context, key: str) -> ConvertConfig:
    spec, facts = context.spec, context.facts
    trained = None if spec.draft.checkpoint else context.upstream(StageName.TRAIN)
    return ConvertConfig(
        owner=owner(context.obj),
        key=key,
        folder=_folder(context, key),
        trained=trained.artifact if trained else None,
        trained_key=trained.key if trained else None,
        checkpoint=checkpoint(spec, facts.fetched),
        checkpoint_digest=facts.checkpoint_digest,
        data=data_config(spec.data, facts.fetched) if spec.data else None,
        target=context.target,
        target_digest=facts.target_digest,
        trust_remote_code=spec.target.trust_remote_code,
        layers=facts.auxiliary_layers,
        sglang_version=facts.sglang_version,
        context_length=facts.context_length,
        arguments=engine_arguments(spec),
        tensor_parallel_size=spec.target.tensor_parallel_size,
        memory_bytes=conversion_memory(facts.hidden_size, facts.target_dtype),
    )


CONVERT = Stage(StageName.CONVERT, 2, _inputs, _config, _folder)
