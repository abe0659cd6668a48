"""What must agree before a GPU is spent: the GPUs, the features, the object and the target."""

import torch

from eagle3_api.checkpoints.target import language_config
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig
from eagle3_draft.data.tokenizer_files import tokenizer_digest
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model import fp8
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target


def check_devices(config: TrainConfig) -> None:
    """Refuse what the pod's GPUs cannot do. On a CPU everything can be computed.

    Raises:
        StageError: InvalidConfiguration.
    """
    if not torch.cuda.is_available():
        return
    if torch.cuda.device_count() < config.processes:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"train.gpus is {config.processes}, but the pod sees {torch.cuda.device_count()} GPUs",
        )
    if config.precision == "fp8":
        nvidia = torch.version.hip is None
        if why := fp8.refusal(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), nvidia=nvidia):
            raise StageError(
                ExitCode.BAD_CONFIGURATION,
                Reason.INVALID_CONFIGURATION,
                f"train.precision is fp8, but {why}; set it to bf16, or train.placement to other nodes",
            )


def check_sizes(config: TrainConfig, draft: DraftConfig) -> None:
    """Refuse FP8 for a draft with a matrix that tensor cores do not take.

    Raises:
        StageError: InvalidConfiguration.
    """
    if config.precision != "fp8":
        return
    with torch.device("meta"):
        matrices = {name: tuple(p.shape) for name, p in Draft(draft).named_parameters() if p.dim() == 2}
    if odd := [f"{name} {sizes}" for name, sizes in matrices.items() if any(size % fp8.MULTIPLE for size in sizes)]:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"train.precision is fp8, which multiplies matrices whose sizes are multiples of {fp8.MULTIPLE}, and the draft "
            f"has {', '.join(odd[:3])}; set it to bf16",
        )


def check_features(features: Features, target: Target, config: TrainConfig) -> None:
    """Refuse features that are not those of this object and target.

    A draft that is trained on other states than it is served looks perfect in training and is accepted nowhere.

    Raises:
        StageError: FeatureMismatch, naming every difference; NoUsableData where nothing can be learned or measured;
            TargetUnreadable if the target, whose head teaches, is not the one that was inspected.
    """
    if target_digest(target.folder) != config.target_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {config.target} has changed since it was inspected and must be inspected again",
        )
    header, text = features.header, language_config(target.config)
    expectations = {
        "key": (features.manifest.key, config.features_key),
        "layers": (header.layers, config.layers),
        "target digest": (features.manifest.made_from.get("target"), config.target_digest),
        "hidden size": (header.hidden_size, text.get("hidden_size")),
        "tokenizer": (header.tokenizer_digest, tokenizer_digest(target.folder)),
        "vocabulary size": (header.vocabulary_size, text.get("vocab_size")),
        "norm of the last state": (header.last_norm, "final"),
    }
    different = [
        f"{what} is {found}, expected {expected}"
        for what, (found, expected) in expectations.items()
        if found != expected
    ]
    if different:
        raise StageError(
            ExitCode.REFUSED,
            Reason.FEATURE_MISMATCH,
            f"the features in {config.features} are not those of this object: {'; '.join(different)}. A draft trained on "
            "them would serve at accept length 1.0; the features must be extracted again",
            retry=StageName.EXTRACT,
        )
    for split, samples in (("train", features.train), ("held-out", features.held_out)):
        if not len(samples):
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.NO_USABLE_DATA,
                f"there is no {split} conversation in {config.features}; give more data, or another data.holdout",
            )
