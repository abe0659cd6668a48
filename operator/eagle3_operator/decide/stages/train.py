"""Train: hidden states to a draft."""

from typing import Any

from eagle3_api.jobs import METRICS_PORT, StageName, TrainConfig
from eagle3_api.spec import Logging, seconds
from eagle3_operator.decide.keys import changed
from eagle3_operator.decide.stages.configuration import object_store, owner
from eagle3_operator.decide.stages.stage import Context, Stage, drafts_folder, features_folder
from eagle3_operator.manifests.sizing import stage_grace


def _inputs(context: Context) -> dict[str, Any]:
    draft, train = context.spec.draft, context.spec.train
    return {
        "features": context.upstream(StageName.EXTRACT).key,
        "vocabularySize": context.facts.draft_vocabulary_size,
        "depth": draft.depth if draft.depth != 1 else None,
        "variant": draft.variant if draft.variant != "EAGLE-3" else None,
        "attention": draft.attention if draft.attention != "Heads" else None,
        "initFrom": context.facts.init_digest,
        "epochs": train.epochs,
        "tokensPerStep": train.tokens_per_step,
        "learningRate": train.learning_rate,
        "unrollSteps": train.unroll_steps,
        "loss": changed(train.loss) or None,
        "precision": None if train.precision == "bf16" else train.precision,
        "seed": train.seed,
        "evaluationsPerEpoch": train.evaluations_per_epoch if train.evaluations_per_epoch > 1 else None,
        "earlyStop": changed(train.early_stop),
        "trainer": changed(train.trainer),
    }


def _folder(context: Context, key: str) -> str:
    return drafts_folder(context.obj, StageName.TRAIN, key)


def _config(context: Context, key: str) -> TrainConfig:
    spec, facts, features = context.spec, context.facts, context.upstream(StageName.EXTRACT)
    logging = spec.train.logging or Logging()
    return TrainConfig(
        owner=owner(context.obj),
        key=key,
        folder=_folder(context, key),
        scratch=_scratch(context, key),
        features=features.artifact or "",
        features_key=features.key,
        object_store=object_store(spec),
        target=context.target,
        target_digest=facts.target_digest,
        layers=facts.auxiliary_layers,
        vocabulary_size=facts.draft_vocabulary_size or facts.vocabulary_size,
        depth=spec.draft.depth,
        variant=spec.draft.variant,
        attention=spec.draft.attention,
        context_length=facts.context_length,
        init_from=spec.draft.init_from,
        init_digest=facts.init_digest,
        epochs=spec.train.epochs,
        tokens_per_step=spec.train.tokens_per_step,
        tokens_per_pass=spec.train.tokens_per_pass,
        learning_rate=spec.train.learning_rate,
        unroll_steps=spec.train.unroll_steps,
        loss=spec.train.loss,
        precision=spec.train.precision,
        deterministic=spec.train.deterministic,
        seed=spec.train.seed,
        evaluations_per_epoch=spec.train.evaluations_per_epoch,
        early_stop=spec.train.early_stop,
        trainer=[*trainer.command, *(trainer.arguments or [])] if (trainer := spec.train.trainer) else None,
        tensor_board=logging.tensor_board,
        weights_and_biases=logging.weights_and_biases,
        metrics_port=METRICS_PORT,
        checkpoint_interval=seconds(spec.train.checkpoint_interval),
        stall_timeout=seconds(spec.train.stall_timeout),
        processes=max(1, spec.train.gpus),
        sharding=spec.train.sharding,
        grace_seconds=stage_grace(spec, StageName.TRAIN),
    )


def _scratch(context: Context, key: str) -> str:
    """Where Train's checkpoints lie: with the features, or, where these lie in an object store, with the drafts."""
    if context.spec.storage.features.object_store is not None:
        return f"{_folder(context, key)}/.scratch"
    return features_folder(context.obj, StageName.TRAIN, key)


TRAIN = Stage(StageName.TRAIN, 1, _inputs, _config, _folder)
