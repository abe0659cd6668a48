"""What ``spec.data`` says, as the data plane needs it."""

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.spec.data import Regenerate


class SamplingDefaults(Model):
    """What a target's ``generation_config.json`` says of drawing its tokens, beside temperature and top_p, which the object says. A
    server draws so for requests that do not say it; without a value nothing is done.
    """

    top_k: int | None = Field(None, description="Sample from this many of the likeliest tokens.")
    min_p: float | None = Field(
        None, description="Sample from tokens with at least this share of the likeliest one's probability."
    )
    repetition_penalty: float | None = Field(
        None, description="By how much tokens that were already said are made less likely."
    )


class DataConfig(Model):
    """What ``spec.data`` says, as the data plane needs it."""

    conversations: str | None = Field(None, description="One of these three is there.")
    prompts: str | None = None
    dataset: str | None = Field(None, description="The file that a fetched data set became.")
    regenerate: Regenerate | None = Field(None, description="Always there with prompts.")
    max_samples: int | None = None
    max_length: int
    holdout: float
    chat_template: str | None = None
    expected_tokens: int | None = Field(None, description="As the user counted them.")
