"""Where the draft that is converted comes from: Train, or somebody else. All that differs between the two is here."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.checkpoints import Finding, Form, Served, check
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ExitCode, TrainResult
from eagle3_api.sglang import log_ids
from eagle3_draft.convert.answers import Load
from eagle3_draft.convert.proof import Proof, prove_adopted, prove_trained
from eagle3_draft.convert.provenance import Training
from eagle3_draft.convert.trained import trained_form
from eagle3_draft.errors import StageError
from eagle3_draft.inspect.checkpoint import check_checkpoint, checkpoint_digest, read_checkpoint, refuse
from eagle3_draft.inspect.target import TargetFacts
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.storage import artifacts


class Source(ABC):
    """A draft before its conversion.

    Attributes:
        form: the draft in the one form.
        made_from: what the converted draft's manifest says that it was made from, besides the target.
    """

    form: Form
    made_from: Mapping[str, str]

    @abstractmethod
    def check(self, served: Served) -> list[Finding]:
        """Apply the rules. Raises StageError where one refuses it."""

    @abstractmethod
    def check_unchanged(self) -> None:
        """Read the weights once more, for their digest alone: gigabytes, for which nobody waits.

        Raises:
            StageError: they are not those that the trainer published (CorruptArtifact), or that were inspected
                (CheckpointUnreadable).
        """

    @abstractmethod
    def prove(self, facts: TargetFacts, load: Load | None) -> Proof:
        """What is found of the converted draft. Errors as of ``prove_trained`` and ``prove_adopted``."""

    @abstractmethod
    def expected_accept_lengths(self, proof: Proof) -> list[float] | None:
        """By unroll step, as far as anybody measured it."""

    @abstractmethod
    def training(self) -> Training | None:
        """That the draft comes from, if it is known. Errors as of ``artifacts.verified``."""


def source_of(config: ConvertConfig, ids: Sequence[int]) -> Source:
    """The draft that a conversion is about.

    Args:
        config: of the stage.
        ids: the layers as the serving SGLang calls them.

    Raises:
        StageError: it is another one (FeatureMismatch), or cannot be read.
    """
    if config.trained is not None:
        return Trained(config, Path(config.trained), ids)
    if config.checkpoint is not None:
        return Adopted(config, Path(config.checkpoint))
    raise StageError(
        ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, "there is neither a trained nor an adopted draft"
    )


class Trained(Source):
    """A draft of ours."""

    def __init__(self, config: ConvertConfig, folder: Path, ids: Sequence[int]) -> None:
        manifest = artifacts.read(folder)
        draft = DraftConfig.model_validate_json(artifacts.verified(folder, CONFIG).read_bytes())
        if draft.layers != config.layers:
            raise _another(
                f"the draft was trained on the outputs of layers {draft.layers}; its eagle_config would make SGLang "
                f"{config.sglang_version} capture {list(ids)} ({', '.join(map(str, log_ids(config.layers)))} in its log). Such a "
                "draft serves at accept length 1.0. Retrain, or set draft.auxiliaryLayers to what it was trained on"
            )
        for what, found, expected in (
            ("key", manifest.key, config.trained_key),
            ("target digest", manifest.made_from.get("target"), config.target_digest),
        ):
            if found != expected:
                raise _another(
                    f"the draft in {folder} is another one's: its {what} is {found}, expected {expected}. Retrain it"
                )
        self._config, self._folder, self._manifest = config, folder, manifest
        self.form = trained_form(folder, draft)
        self.made_from = {"trained": manifest.key}

    @cached_property
    def _said(self) -> TrainResult:
        return artifacts.numbers(self._folder, self._manifest, TrainResult)

    def check(self, served: Served) -> list[Finding]:
        findings = check(self.form, served)
        refuse(findings, f"the draft in {self.form.path} is refused")
        return findings

    def check_unchanged(self) -> None:
        artifacts.verified(self._folder, WEIGHTS)

    def prove(self, facts: TargetFacts, load: Load | None) -> Proof:
        return prove_trained(self._config, self._folder, self._said)

    def expected_accept_lengths(self, proof: Proof) -> list[float] | None:
        return self._said.expected_accept_lengths

    def training(self) -> Training:
        return Training.read(self._folder)


class Adopted(Source):
    """A draft from elsewhere."""

    def __init__(self, config: ConvertConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self.form = read_checkpoint(folder)
        self.made_from = {"checkpoint": config.checkpoint_digest} if config.checkpoint_digest else {}

    def check(self, served: Served) -> list[Finding]:
        return check_checkpoint(self.form, served)

    def check_unchanged(self) -> None:
        expected = self._config.checkpoint_digest
        if expected is not None and (digest := checkpoint_digest(self._folder)) != expected:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.CHECKPOINT_UNREADABLE,
                f"draft.checkpoint: {self._folder} has changed since it was inspected (digest {digest[:12]}…) and "
                "must be inspected again",
            )

    def prove(self, facts: TargetFacts, load: Load | None) -> Proof:
        return prove_adopted(self._config, self.form, facts, load) if load is not None else Proof()

    def expected_accept_lengths(self, proof: Proof) -> list[float] | None:
        asked = proof.agreement
        return asked.expected_accept_lengths if asked is not None and asked.positions else None

    def training(self) -> None:
        return None


def _another(message: str) -> StageError:
    return StageError(ExitCode.REFUSED, Reason.FEATURE_MISMATCH, message)
