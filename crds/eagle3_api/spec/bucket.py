"""A bucket, wherever the object names one."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.schema import Says
from eagle3_api.spec.strings import Name, Text

_BUCKET = "s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]"
#: Between two slashes of a prefix: neither empty nor a step to a folder above.
_SEGMENT = r"\.{0,2}[-A-Za-z0-9_][-A-Za-z0-9._]*"

#: Where requests name a bucket: in their path, or before the endpoint's host.
Addressing = Literal["Path", "VirtualHost"]


class Bucket(Model):
    """A bucket of an S3-compatible object store."""

    url: Annotated[
        str,
        StringConstraints(pattern=rf"^{_BUCKET}(/[-A-Za-z0-9._/]*)?$", max_length=512),
        Says(
            "s3://BUCKET/PREFIX, with names between the slashes; a service that is not Amazon's is named in endpoint",
            pattern=rf"^{_BUCKET}(/{_SEGMENT})*/?$",
        ),
    ] = Field(description="s3://BUCKET/PREFIX; the object's folders lie under it.")
    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[-A-Za-z0-9.:_/]+$", max_length=512)] | None = Field(
        None, description="The service's address. Default Amazon's."
    )
    region: Text = Field("us-east-1", description="The bucket's region.")
    addressing: Addressing | None = Field(
        None,
        description="Where requests name the bucket: in their path (the default), which nearly all stores accept, or "
        "before the endpoint's host (BUCKET.s3.example.com), which some require.",
    )
    secret: Name | None = Field(
        None,
        description="A Secret of the object's namespace with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
        "and, if needed, AWS_SESSION_TOKEN and ca.crt (PEM, the authority that signed the store's "
        "certificate). The kubelet reads it, the operator never does. Without one the pods use what "
        "placement.env and their service account give them.",
    )
