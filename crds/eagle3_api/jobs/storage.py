"""Buckets, as the data plane needs them."""

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.spec.bucket import Addressing

#: An environment variable: certificates (PEM) of the authorities that the store's may be of, beside those that everybody trusts.
BUCKET_AUTHORITY = "EAGLE3_BUCKET_AUTHORITY"

#: Likewise, for Fetch, which knows of a bucket only what its address says: ``BucketConfig.addressing``.
BUCKET_ADDRESSING = "EAGLE3_BUCKET_ADDRESSING"


class BucketConfig(Model):
    """A bucket of an object store. Credentials are in the environment, as ``AWS_*``."""

    url: str = Field(description="s3://BUCKET/PREFIX, under which everything lies.")
    endpoint: str | None = Field(None, description="Of the service, if it is not Amazon's.")
    region: str = "us-east-1"
    addressing: Addressing | None = Field(
        None, description="Where requests name the bucket; in their path where left out."
    )


class ObjectStoreConfig(BucketConfig):
    """Where features lie, if not on a volume: under the prefix lie the folders of the features root."""

    cache_bytes: int = Field(description="Room on the pod's disk for what is in use.")
