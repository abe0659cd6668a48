"""``data``: what the draft learns from."""

from typing import Annotated

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.schema import rule, rules
from eagle3_api.spec.strings import HubRevision, Path, Repository


class Regenerate(Model):
    """How the target answers the data's questions itself: a draft learns best from what the target really says."""

    enabled: bool = Field(
        True,
        description="Whether the target answers the questions itself. Without this section it does so only for data.prompts.",
    )
    temperature: float = Field(
        0.0,
        ge=0,
        le=2,
        description="Sampling temperature of the generated answers; 0 takes the likeliest token. Use the value that your clients use. "
        "top_k, min_p and repetition_penalty come from the target's generation_config.json, as they do when it serves.",
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Each token is drawn from the likeliest ones that together have this probability."
    )
    max_tokens: int = Field(
        1024,
        ge=1,
        le=1_048_576,
        description="Longest answer in tokens, reasoning included; a target that reasons needs thousands. The draft "
        "learns from a longer answer up to the cut.",
    )
    seed: int = Field(
        0,
        ge=0,
        le=2147483647,
        description="Random seed of the answers at a temperature above 0. SGLang follows it only if serve.arguments "
        "contain --enable-deterministic-inference.",
    )


class Dataset(Model):
    """A data set of a hub: its JSON Lines and Parquet files, in the forms that conversations may have."""

    repository: Repository = Field(description="organisation/name.")
    revision: HubRevision | None = Field(
        None,
        description="Branch, tag or commit; if not set, the default branch. It is resolved once; to resolve it again, "
        "retry fetch.",
    )
    split: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$", max_length=64)] = Field(
        "train",
        description="Use the files with this word in their path; where no path names a split, all files are train.",
    )
    files: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        None, description="A pattern of paths (data/*.parquet), used instead of split."
    )


class Data(Model):
    """The conversations that the draft learns from."""

    model_config = rules(
        rule(
            "[has(self.conversations), has(self.prompts), has(self.dataset)].exists_one(given, given)",
            "give exactly one of data.conversations, data.prompts and data.dataset",
        ),
        rule(
            "!has(self.prompts) || !has(self.regenerate) || self.regenerate.enabled",
            "data.prompts have no answers: the target must give them, so regenerate.enabled cannot be false",
        ),
    )

    conversations: Path | None = Field(
        None,
        description='JSON Lines on a volume, one conversation a line: {"messages": [{"role": ..., "content": ...}, ...]}, with '
        '"tools" and "tool_calls" as OpenAI has them, or ShareGPT\'s {"conversations": [{"from": ..., "value": ...}, ...]}; or '
        "Parquet with such a column.",
    )
    prompts: Path | None = Field(
        None,
        description='Questions that the target answers itself: JSON Lines of {"prompt": text}, or conversations that end with '
        "a user's turn; or Parquet with such a column.",
    )
    dataset: Dataset | None = Field(None, description="A data set of a hub, fetched once into storage.models.")
    regenerate: Regenerate | None = Field(
        None,
        description="The target answers every user turn itself, in order, and the answers in the data are ignored. "
        "Implied by prompts.",
    )
    max_samples: int | None = Field(None, ge=1, le=100_000_000, description="Use at most this many conversations.")
    max_length: int = Field(
        2048, ge=16, le=1_048_576, description="Longest conversation in tokens; longer ones are cut."
    )
    expected_tokens: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Number of tokens in all conversations, if you have counted them. The space is then estimated "
        "from it; otherwise from the data's bytes, which tends to be too high.",
    )
    holdout: float = Field(
        0.02,
        gt=0,
        le=0.5,
        description="Share of the conversations that is kept out of training, to measure the draft and to probe "
        "servers. A hash of the first question decides, so that no question is on both sides.",
    )
    chat_template: Path | None = Field(
        None,
        description="A Jinja chat template that replaces the tokenizer's own, also where it is served. What it takes when a request does not "
        "say so (enable_thinking), it says itself.",
    )

    @property
    def regeneration(self) -> Regenerate | None:
        """How the target answers itself; None where the data's own answers are taken."""
        if self.prompts is not None:
            return self.regenerate or Regenerate()
        return self.regenerate if self.regenerate is not None and self.regenerate.enabled else None
