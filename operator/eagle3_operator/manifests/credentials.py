"""What a pod is let into registries and buckets by: Secrets of the user's, which the kubelet reads and the operator does not."""

from collections.abc import Iterator

from eagle3_api.jobs import REGISTRY_LOGIN
from eagle3_api.spec import Bucket, Publish, SecretKey
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


def bucket_keys(bucket: Bucket | None) -> dict[str, SecretKey]:
    """The keys of an object store, under the names that its clients know."""
    if bucket is None or bucket.secret is None:
        return {}
    return {name: SecretKey(name=bucket.secret, key=name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
