"""What ``spec.data`` says, as the data plane needs it."""

from pydantic import Field

from eagle3_api.base import Model


class RegenerateConfig(Model):
    """How the target answers the data's questions itself."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = Field(1024, description="Of one answer.")
    seed: int = 0


class DataConfig(Model):
    """What ``spec.data`` says, as the data plane needs it."""

    conversations: str | None = Field(None, description="One of these three is there.")
    prompts: str | None = None
    dataset: str | None = Field(None, description="The file that a fetched data set became.")
    regenerate: RegenerateConfig | None = Field(None, description="Always there with prompts.")
    max_samples: int | None = None
    max_length: int
    holdout: float
    chat_template: str | None = None
    expected_tokens: int | None = Field(None, description="As the user counted them.")
