"""Versity's gateway on a folder: S3's protocol, signatures and errors, one file an object."""

import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testcluster.build import binary
from testcluster.wait import wait_for

BUCKET = "features"
START_SECONDS = 20


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: of its endpoint.
        folder: in which it keeps the bucket's objects, as files.
        environment: what a client needs to be let in.
    """

    url: str
    folder: Path
    environment: dict[str, str]

    def objects(self) -> set[str]:
        """The names of all objects."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}


@contextmanager
def serving(folder: Path, *arguments: str | Path, scheme: str = "http") -> Iterator[Server]:
    """A server with one empty bucket, until the block ends.

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
            yield Server(f"{scheme}://{address}", bucket, keys)
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
