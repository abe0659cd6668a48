"""Where tests put objects: under a prefix of a bucket of Versity's gateway, which keeps them in a folder, or of any store that is named.

A store is named as the product's users name one: ``EAGLE3_TEST_BUCKET=s3://BUCKET/PREFIX``, and its service and keys as Amazon's own
clients want them, ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``. One that wants the bucket
in the host's name: ``EAGLE3_BUCKET_ADDRESSING=VirtualHost``; the authority of its certificate: ``EAGLE3_BUCKET_AUTHORITY``.
"""

import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store

from eagle3_api.jobs import BUCKET_ADDRESSING, BUCKET_AUTHORITY, BucketConfig
from testcluster.build import binary
from testcluster.wait import wait_for

NAMED = "EAGLE3_TEST_BUCKET"
BUCKET = "features"
START_SECONDS = 20

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", BUCKET_AUTHORITY)

#: A test that needs a server as it alone starts it, whatever is named.
of_its_own = pytest.mark.skipif(NAMED in os.environ, reason="it does not concern the store that is named")


@dataclass(frozen=True)
class Server:
    """A store that answers. Names of objects are those below its URL.

    Attributes:
        at: where what the tests put is to lie, and nothing else does.
        environment: what a client needs to be let in.
        is_own: the tests started it.
    """

    at: BucketConfig
    environment: dict[str, str] = field(repr=False)
    is_own: bool = False

    @property
    def url(self) -> str:
        """Of its endpoint."""
        return self.at.endpoint or f"https://s3.{self.at.region}.amazonaws.com"

    @property
    def bucket(self) -> str:
        return self.at.url.removeprefix("s3://").partition("/")[0]

    @property
    def can_be_stood_before(self) -> bool:
        """Whether what is asked can be looked into on its way, and led another way."""
        return self.url.startswith("http:") and self.at.addressing != "VirtualHost"

    def path(self, name: str) -> str:
        """Of an object, in a request."""
        return f"/{self.at.url.removeprefix('s3://')}/{name}"

    def objects(self) -> set[str]:
        """The names of all objects."""
        return {one["path"] for batch in self._store.list() for one in batch}

    def read(self, name: str) -> bytes:
        return bytes(self._store.get(name).bytes())

    def write(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def remove(self, name: str) -> None:
        self._store.delete(name)

    def empty(self) -> None:
        self._store.delete(sorted(self.objects()))

    def written(self, name: str) -> object:
        """When an object was last written, to the second."""
        return self._store.head(name)["last_modified"]

    @cached_property
    def _store(self) -> S3Store:
        settings: dict[str, Any] = {
            name.removeprefix("AWS_").lower(): value for name, value in self.environment.items() if "AWS" in name
        }
        host = self.at.addressing == "VirtualHost"
        endpoint = self.url.replace("://", f"://{self.bucket}.") if host else self.url
        client: Any = {"allow_http": True}
        if BUCKET_AUTHORITY in self.environment:
            client["root_certificate"] = self.environment[BUCKET_AUTHORITY]
        return S3Store(
            self.bucket,
            prefix=self.at.url.removeprefix(f"s3://{self.bucket}/"),
            endpoint=endpoint,
            region=self.at.region,
            virtual_hosted_style_request=host,
            disable_bulk_delete=True,
            client_options=client,
            **settings,
        )


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """The store that is named, or else a gateway of the tests' own, until the block ends; empty at its beginning.

    Args:
        folder: in which a gateway keeps everything.
    """
    if named := os.environ.get(NAMED):
        at = BucketConfig.model_validate(
            {
                "url": f"{named.rstrip('/')}/{uuid.uuid4().hex[:8]}",
                "endpoint": os.environ.get("AWS_ENDPOINT_URL"),
                "region": os.environ.get("AWS_REGION", "us-east-1"),
                "addressing": os.environ.get(BUCKET_ADDRESSING),
            }
        )
        server = Server(at, {name: os.environ[name] for name in KEYS if name in os.environ})
        try:
            yield server
        finally:
            server.empty()
    else:
        with gateway(folder) as server:
            yield server


@contextmanager
def gateway(folder: Path, *arguments: str | Path, scheme: str = "http") -> Iterator[Server]:
    """Versity's gateway with one empty bucket, until the block ends.

    Args:
        folder: in which it keeps everything.
        arguments: of the server, besides where it listens.
        scheme: that it speaks by these.
    """
    bucket = folder / "objects" / BUCKET
    bucket.mkdir(parents=True)
    keys = {"AWS_ACCESS_KEY_ID": "eagle3", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
    own = {"ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"]}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [binary("versitygw"), "--port", address, *arguments, "posix", bucket.parent],
            env=os.environ | own,
            stdout=log,
            stderr=log,
        )
        try:
            wait_for("the object store", START_SECONDS, lambda: _answers(f"{scheme}://{address}"))
            yield Server(BucketConfig(url=f"s3://{BUCKET}/team", endpoint=f"{scheme}://{address}"), keys, is_own=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_SECONDS)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()  # noqa: S310  its address is ours
    except urllib.error.HTTPError:
        return True  # it wants a signature
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # somebody must trust it
    except OSError:
        return False
    return True
