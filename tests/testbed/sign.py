"""A hook, in cosign's place: it signs a reference with a key (HMAC), and leaves the signature in the registry, as a tag of what is signed.

    python3 sign.py registry/repository@sha256:...

It reads what publish.hook is promised: the statement, docker's configuration, and a key of the user's in SIGNING_KEY.
"""

import hmac
import json
import os
import sys
import urllib.request
from pathlib import Path


def tag(key: str, digest: str) -> str:
    """Of what is signed."""
    return f"signed-{hmac.digest(key.encode(), digest.encode(), 'sha256').hex()}"


def main(reference: str) -> None:
    """Sign it, if the statement is about it."""
    repository, _, digest = reference.partition("@")
    host, _, name = repository.partition("/")
    subject = json.loads(Path(os.environ["EAGLE3_STATEMENT"]).read_bytes())["subject"][0]
    if subject != {"name": repository, "digest": {"sha256": digest.removeprefix("sha256:")}}:
        sys.exit(f"the statement is about {subject}")
    auth = json.loads(Path(os.environ["DOCKER_CONFIG"], "config.json").read_bytes())["auths"][host]["auth"]
    headers = {"Authorization": f"Basic {auth}", "Accept": "*/*"}
    there = f"http://{host}/v2/{name}/manifests/"
    with urllib.request.urlopen(urllib.request.Request(there + digest, headers=headers)) as answer:  # noqa: S310
        manifest, kind = answer.read(), answer.headers["Content-Type"]
    signed = there + tag(os.environ["SIGNING_KEY"], digest)
    request = urllib.request.Request(signed, manifest, {**headers, "Content-Type": kind}, method="PUT")  # noqa: S310
    urllib.request.urlopen(request).close()  # noqa: S310


if __name__ == "__main__":
    main(sys.argv[1])
