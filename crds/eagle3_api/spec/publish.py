"""``publish``: where else a draft goes."""

import json

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.references import PATTERN
from eagle3_api.spec.bucket import Bucket
from eagle3_api.spec.schema import rule, rules
from eagle3_api.spec.strings import Name, Text


class OciArtifact(Model):
    """A place in an OCI registry."""

    reference: Text = Field(
        description="registry/repository or registry/repository:tag. Without a tag the draft's digest makes one (draft-9f2c…), which "
        "another draft never takes over.",
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


class Publish(Model):
    """Where the converted draft goes, besides the drafts volume: for servers elsewhere, and for those who verify what they run."""

    model_config = rules(
        rule("has(self.oci) || has(self.objectStore)", "publish: say where to, in oci, in objectStore or in both"),
    )

    oci: OciArtifact | None = Field(None, description="To an OCI registry, as an artifact.")
    object_store: Bucket | None = Field(
        None,
        description="To a bucket, into a folder that is named after the SHA-256 of the manifest in it.",
    )
