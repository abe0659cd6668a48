"""A Job's configuration, of whichever stage, as it stands in the annotation."""

from typing import Annotated

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.clean import CleanConfig
from eagle3_api.jobs.convert import ConvertConfig
from eagle3_api.jobs.extract import ExtractConfig
from eagle3_api.jobs.fetch import FetchConfig
from eagle3_api.jobs.hook import HookConfig
from eagle3_api.jobs.inspect import InspectConfig
from eagle3_api.jobs.probe import ProbeConfig
from eagle3_api.jobs.publish import PublishConfig
from eagle3_api.jobs.train import TrainConfig

JobConfig = Annotated[
    FetchConfig
    | InspectConfig
    | ExtractConfig
    | TrainConfig
    | CleanConfig
    | ConvertConfig
    | PublishConfig
    | HookConfig
    | ProbeConfig,
    Field(discriminator="stage"),
]


class JobEnvelope(Model):
    """The configuration as it stands in the annotation; the discriminator is ``stage``."""

    config: JobConfig
