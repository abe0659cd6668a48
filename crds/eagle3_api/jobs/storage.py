"""What ``spec.storage`` says, as the data plane needs it."""

from pydantic import Field

from eagle3_api.base import Model


class ObjectStoreConfig(Model):
    """Where features lie, if not on a volume. Credentials are in the environment, as ``AWS_*``."""

    url: str = Field(description="s3://BUCKET/PREFIX, under which the folders of the features root lie.")
    endpoint: str | None = Field(None, description="Of the service, if it is not Amazon's.")
    region: str = "us-east-1"
    cache_bytes: int = Field(description="Room on the pod's disk for what is in use.")
