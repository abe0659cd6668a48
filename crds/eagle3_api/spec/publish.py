"""``publish``: where else a draft goes."""

import json
from typing import Annotated

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.references import PATTERN
from eagle3_api.spec.bucket import Bucket
from eagle3_api.spec.duration import Period
from eagle3_api.spec.placement import EnvironmentVariable
from eagle3_api.spec.schema import BY_NAME, rule, rules
from eagle3_api.spec.strings import Name, Text


class OciArtifact(Model):
    """A place in an OCI registry."""

    reference: Text = Field(
        description="registry/repository or registry/repository:tag. Without a tag one is made from the draft's "
        "digest (draft-9f2c…), which no other draft ever takes over.",
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"self.matches({json.dumps(PATTERN)})",
                    "reference: name the registry too, in lower case and without https://, as in "
                    "registry.example.com/llm/kimi-draft or registry.example.com/llm/kimi-draft:v1",
                )
            ]
        },
    )
    secret: Name | None = Field(
        None,
        description="A Secret of type kubernetes.io/dockerconfigjson in the object's namespace, whose user may push there.",
    )
    plain_http: bool = Field(False, description="Speak HTTP: for a registry inside of the cluster.")


class Hook(Model):
    """A command of yours, in an image of yours, once the draft is where it was to go: it signs, mirrors or tells somebody."""

    image: Text = Field(description="The hook's image. It needs nothing of ours, and no shell.")
    command: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] = Field(
        min_length=1,
        max_length=64,
        description="What to run, one item per word. $(EAGLE3_REFERENCE) is replaced by the artifact's address with "
        "its digest; other environment variables are used in the same way. It may run twice, so it must "
        "be safe to repeat.",
    )
    env: list[EnvironmentVariable] | None = Field(
        None,
        max_length=32,
        description="Its environment variables, such as keys from a Secret of yours. Those of placement.env are not given to it.",
        json_schema_extra=BY_NAME,
    )
    volumes: list[Name] | None = Field(
        None,
        max_length=16,
        description="Names of the volumes in placement.volumes that it sees, read-only. It sees no others.",
    )
    timeout: Period = Field(
        "30m",
        description="How long one of its pods may take, pulling the image included. Then it is ended, which counts as "
        "one of the six failures that are tried again.",
    )


class Publish(Model):
    """Where the converted draft goes, besides the drafts volume: for servers elsewhere, and for those who verify what they run."""

    model_config = rules(
        rule("has(self.oci) || has(self.objectStore)", "publish: set oci, objectStore or both"),
    )

    oci: OciArtifact | None = Field(None, description="To an OCI registry, as an artifact.")
    object_store: Bucket | None = Field(
        None,
        description="To a bucket, into a folder named after the SHA-256 of its manifest.",
    )
    hook: Hook | None = Field(
        None,
        description="Run this after the push, to sign what was pushed. The draft counts as published only once it has "
        "succeeded.",
    )
