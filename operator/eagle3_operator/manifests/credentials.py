"""What a pod is let into registries and buckets by: Secrets of the user's, which the kubelet reads and the operator does not."""

from collections.abc import Iterator, Mapping

from eagle3_api.jobs import BUCKET_AUTHORITY, REGISTRY_LOGIN
from eagle3_api.spec import Bucket, Publish
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests.pods import Mount

#: The folder in which docker's configuration lies.
LOGIN_FOLDER, _, _LOGIN_FILE = REGISTRY_LOGIN.rpartition("/")


def registry_login(publish: Publish | None) -> Iterator[Mount]:
    """Docker's configuration, where a draft goes to a registry that wants one."""
    oci = publish.oci if publish is not None else None
    if oci is not None and oci.secret is not None:
        items = [{"key": ".dockerconfigjson", "path": _LOGIN_FILE}]
        yield Mount(
            "eagle3-registry", LOGIN_FOLDER, {"secret": {"secretName": oci.secret, "items": items}}, read_only=True
        )


#: Of a bucket's Secret: the environment variable for each key, and whether a pod starts without it.
_BUCKET_KEYS = (
    ("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID", False),
    ("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", False),
    ("AWS_SESSION_TOKEN", "AWS_SESSION_TOKEN", True),
    (BUCKET_AUTHORITY, "ca.crt", True),
)


def bucket_keys(bucket: Bucket | None) -> Mapping[str, Manifest]:
    """What a pod needs for an object store, by the environment variables that its clients know, as ``secretKeyRef``."""
    if bucket is None or bucket.secret is None:
        return {}
    return {
        variable: {"name": bucket.secret, "key": key} | ({"optional": True} if optional else {})
        for variable, key, optional in _BUCKET_KEYS
    }
