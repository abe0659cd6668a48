"""What an extraction is made of: the conversations and the target, as Inspect saw them, and how the one is rendered for the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, ExtractConfig
from eagle3_api.sglang import numeric_arguments
from eagle3_draft.data import prompts
from eagle3_draft.data.conversations import Conversation, Conversations, UnusableError
from eagle3_draft.data.inputs import extraction_inputs
from eagle3_draft.data.rendering import Renderer
from eagle3_draft.data.tokenizer_files import chat_template, template_digest, tokenizer_digest
from eagle3_draft.errors import StageError
from eagle3_draft.features import Split
from eagle3_draft.inspect.target import context_length, target_digest


@dataclass(frozen=True)
class Inputs:
    """What an extraction is made of.

    Attributes:
        config: of the stage.
        conversations: all of them, in the order that their content decides.
        held_out: which of them are kept out of training.
        renderer: of the target. Its longest length is what a server of this target takes, which makes one token more of it.
        template: the chat template, Jinja.
        tokenizer_digest: of the target's.
    """

    config: ExtractConfig
    conversations: Conversations
    held_out: Sequence[bool]
    renderer: Renderer
    template: str
    tokenizer_digest: str

    @classmethod
    def open(cls, config: ExtractConfig) -> "Inputs":
        """The inputs of a stage.

        Raises:
            StageError: the data or the target was changed since Inspect saw it, and the key stands for what Inspect saw
                (DataUnreadable, TargetUnreadable); or cannot be read.
        """
        conversations = _unchanged(config)
        target = Path(config.target)
        override = Path(config.data.chat_template) if config.data.chat_template else None
        template = chat_template(target, override)
        context = context_length(target)
        longest = config.data.max_length if context is None else min(config.data.max_length, context - 1)
        return cls(
            config,
            conversations,
            conversations.held_out(config.data.holdout),
            Renderer.load(target, template, longest, trust_remote_code=config.trust_remote_code),
            template,
            tokenizer_digest(target),
        )

    @property
    def template_digest(self) -> str:
        """Of the chat template."""
        return template_digest(self.template)

    @property
    def field(self) -> str:
        """Where the object names the data."""
        return self.conversations.reading.field

    def split(self, index: int) -> Split:
        """Of one conversation."""
        return Split.HELD_OUT if self.held_out[index] else Split.TRAIN

    def prompts(self) -> list[prompts.Prompt]:
        """The probe's prompts, of the first usable conversations that are held out.

        Raises:
            StageError: there are none (NoUsableData).
        """
        found = prompts.collect(self._asked(), self.renderer, self.renderer.max_length)
        if not found:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.NO_USABLE_DATA,
                f"{self.field}: no held-out conversation has a user turn that fits data.maxLength, so no server could be "
                "probed. Give more conversations, or raise data.holdout or data.maxLength",
            )
        return found

    def made_from(self) -> dict[str, str]:
        """What the features are made from, for their manifests."""
        config = self.config
        return extraction_inputs(
            config.data,
            target_digest=config.target_digest,
            data_digest=config.data_digest,
            chat_template_digest=self.template_digest,
            template_day=self.renderer.day,
            layers=config.layers,
            dtype=config.dtype,
            end_tokens=config.end_tokens or (),
            sampling_defaults=config.sampling_defaults,
            teacher=config.teacher,
            engine=numeric_arguments(config.arguments),
        )

    def _asked(self) -> Iterator[Conversation]:
        """Held-out conversations that can be used.

        Of those that the target answers itself it is the first question: the next ones have its answers before them, which
        another pod may still have to get.
        """
        for index, out in enumerate(self.held_out):
            if not out:
                continue
            conversation = self.conversations[index]
            if not self.conversations.reading.answers:
                yield conversation.opening
                continue
            try:
                self.renderer.conversation(conversation.messages, conversation.tools)
            except UnusableError:
                continue
            yield conversation


def _unchanged(config: ExtractConfig) -> Conversations:
    again = "it must be inspected again"
    if target_digest(Path(config.target)) != config.target_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {config.target} has changed since it was inspected; {again}",
        )
    conversations = Conversations.of(config.data)
    if conversations.sha256 != config.data_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.DATA_UNREADABLE,
            f"{conversations.reading.field}: {conversations.path} has changed since it was inspected; {again}",
        )
    return conversations
