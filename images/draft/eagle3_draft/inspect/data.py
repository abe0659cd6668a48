"""The data that a draft learns from: counted and hashed, and some of it rendered."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode, SamplingDefaults
from eagle3_api.sglang import IGNORES_DEFAULTS
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.data.texts import TextRenderer
from eagle3_draft.data.tokenizer_files import chat_template, template_digest
from eagle3_draft.errors import StageError
from eagle3_draft.inspect.rendering import TokenizerByFiles, try_template
from eagle3_draft.inspect.target import end_tokens, sampling_defaults


@dataclass(frozen=True)
class DataFacts:
    """What is known of the data.

    Attributes:
        config: what was looked at.
        conversations: distinct ones.
        held_out: how many of them measure the draft.
        digest: of the file.
        template_digest: of the chat template that it is rendered by.
        template_day: what day it is by that, or by the tokenizer's own for tools, if it asks.
        expected_tokens: of all conversations, as said or as estimated.
        end_tokens: by which the target ends an answer, where it answers itself.
        sampling_defaults: by which its answers are drawn, too.
        warnings: what of them is not as one expects.
    """

    config: DataConfig
    conversations: int
    held_out: int
    digest: str
    template_digest: str
    template_day: str | None
    expected_tokens: int
    end_tokens: list[int] | None
    sampling_defaults: SamplingDefaults | None
    warnings: list[str]


def read_data(config: DataConfig, target: Path, engine: Sequence[str] = (), *, learned: bool) -> DataFacts:
    """Read all conversations.

    Args:
        config: what the object says of them.
        target: its folder, whose chat template renders them if nothing else does.
        engine: what of the server's flags changes what it computes (``numeric_arguments``).
        learned: a draft is to learn from them; else they are only what servers are asked.

    Raises:
        StageError: they cannot be read, nothing is left to learn from (NoUsableData), or their template does not render them
            (TemplateMissing).
    """
    override = Path(config.chat_template) if config.chat_template else None
    template = chat_template(target, override)
    found = Conversations.of(config)
    held_out = sum(found.held_out(config.holdout))
    if held_out == len(found):
        left_out = ", ".join(f"{count} {why}" for why, count in Counter(found.dropped).most_common(3))
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.NO_USABLE_DATA,
            f"{found.reading.field}: {found.path} has {len(found)} distinct conversations, of which {held_out} are held out, so "
            f"nothing is left to learn from. Left out: {left_out or 'none'}{_one_question(found)}",
        )
    answering = config.regenerate
    field = "data.chatTemplate" if override else "target.model"
    answers = learned and found.reading.answers
    renderer = TextRenderer(TokenizerByFiles(target), template)
    return DataFacts(
        config,
        len(found),
        held_out,
        found.sha256,
        template_digest(template),
        renderer.day,
        config.expected_tokens or found.expected_tokens(config.max_length, answering.max_tokens if answering else 0),
        end_tokens(target) if answering else None,
        sampling_defaults(target, answering.temperature) if answering and IGNORES_DEFAULTS not in engine else None,
        [*try_template(renderer, target, found, field=field, answers=answers), *found.openings.notes(config.holdout)],
    )


def _one_question(found: Conversations) -> str:
    """Where that is why nothing is left."""
    if not len(found) == found.openings.most > 1:
        return ""
    return (
        ". All open with the same question, which is either learned or measured with: bring some that open with another"
    )
