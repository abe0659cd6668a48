"""A bucket, wherever the object names one."""

from typing import Annotated

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.strings import Name, Text


class Bucket(Model):
    """A bucket of an S3-compatible object store."""

    url: Annotated[
        str, StringConstraints(pattern=r"^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[-A-Za-z0-9._/]*)?$", max_length=512)
    ] = Field(description="s3://BUCKET/PREFIX; the object's folders lie under it.")
    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[-A-Za-z0-9.:_/]+$", max_length=512)] | None = Field(
        None, description="The service's address. Default Amazon's."
    )
    region: Text = Field("us-east-1", description="Of the bucket.")
    secret: Name | None = Field(
        None,
        description="A Secret of the object's namespace with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the "
        "kubelet reads it, the operator never does. Without one the pods have what placement.env gives them.",
    )
