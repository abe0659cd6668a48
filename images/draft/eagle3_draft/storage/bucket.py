"""A bucket of an S3-compatible object store.

It is spoken to through fsspec's interface, by obstore (the extra ``s3``), one wheel for every Python. How long it is waited for
stands in ``Patience``; what its answers mean for a stage, in ``bucket_answers``.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from eagle3_api.conditions import Reason
from eagle3_api.jobs import BUCKET_AUTHORITY, BucketConfig, ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.storage.bucket_answers import is_absent, is_wordless, meaning, said

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.fsspec import FsspecStore
    from obstore.store import ObjectStore

_T = TypeVar("_T")

#: Files that are uploaded at a time, each in one request and from memory.
UPLOADS = 4

#: A larger file is uploaded in pieces. Of one that is given up these stay in the bucket, unseen, until its own rules remove them.
ONE_REQUEST_BYTES = 256 * 1024 * 1024

#: Of a piece, at least; and pieces of a file that are on their way at a time, from memory.
PIECE_BYTES = 16 * 1024 * 1024
PIECES = 4

#: Amazon's limit, and everybody's.
MOST_PIECES = 10_000

#: Of a file that is read block by block, each in a request of its own.
BLOCK_BYTES = 8 * 1024 * 1024

#: Between two looks at whether an upload, or a wait for an answer, is to go on.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Patience:
    """How long a bucket is waited for. What it has not answered is told after ``trying`` and one ``silence``: two minutes.

    Attributes:
        connecting: seconds in which somebody must take up the connection.
        silence: seconds after which a request is given up to which nothing has come, or nothing more. Of an upload nothing comes
            before all of it has gone.
        trying: seconds after which what was given up, or refused for the moment, is not tried again.
        transfer: seconds in which a file, or a piece of it, must have got there.
        pause: seconds before the second try, and the longer the more there were before; ``longest_pause`` at most.
    """

    connecting: float = 10
    silence: float = 30
    trying: float = 90
    transfer: float = 600
    pause: float = 0.2
    longest_pause: float = 15


@dataclass(frozen=True)
class Object:
    """An object that was listed.

    Attributes:
        path: below the prefix.
        size: in bytes.
    """

    path: str
    size: int


@dataclass(frozen=True)
class SettingNames:
    """By which messages say where a user sets what a store wants.

    Attributes:
        keys: that let a pod in.
        authority: the certificate of the one that signed the store's.
        region: of the bucket.
        addressing: the bucket in the host's name.
    """

    keys: str
    authority: str
    region: str
    addressing: str

    @classmethod
    def beside(cls, field: str) -> "SettingNames":
        """Those of a field of the object that has a bucket's URL."""
        secret = f"the Secret in {field}.secret"
        return cls(secret, f"ca.crt in {secret}", f"{field}.region", f"{field}.addressing to VirtualHost")


class Bucket:
    """What lies under a prefix of a bucket. Paths are those of objects below it.

    Where methods raise ``StageError`` the store lets us not in, or is full, or something in the object is wrong; or it cannot
    be reached or is out of order, after many tries, which another pod may find otherwise (StorageUnavailable, StorageTooSmall).

    Args:
        config: where it is; credentials are in the environment.
        field: of the object that says so, as messages name it.
        settings: where a user sets the rest; beside that field where left out.
        patience: how long it is waited for.

    Attributes:
        url: ``s3://BUCKET/PREFIX``, without a slash at its end.

    Raises:
        StageError: nothing here speaks to an object store, or the authority's certificate is none, or the environment sets
            what makes no sense (InvalidConfiguration).
    """

    def __init__(
        self,
        config: BucketConfig,
        field: str,
        settings: SettingNames | None = None,
        patience: Patience = Patience(),
    ) -> None:
        self.url = config.url.rstrip("/")
        self._bucket, _, self._prefix = self.url.removeprefix("s3://").partition("/")
        self._config = config
        self._field = field
        self._settings = settings or SettingNames.beside(field)
        self._files, self._store, self._sending = self._opened(patience)

    def read(self, path: str) -> bytes:
        """An object's bytes, all in memory.

        Raises:
            FileNotFoundError: there is none.
        """
        return self._answer(path, self._files._cat_file(self._name(path)))

    def read_at_most(self, path: str, most: int) -> bytes | None:
        """The same of an object of which nobody knows how long it is; None if it has more bytes than that."""

        # Not by fsspec's cat_file, which tells no size before all is there
        async def short(key: str) -> bytes | None:
            found = await self._store.get_async(key)
            return bytes(await found.bytes_async()) if found.meta["size"] <= most else None

        return self._answer(path, short(self._key(path)))

    def size(self, path: str) -> int:
        """Bytes of an object.

        Raises:
            FileNotFoundError: there is none.
        """
        from obstore.exceptions import BaseError

        async def known(key: str) -> int:
            try:
                # Not by fsspec's info, which asks for a listing too where there is no object
                found = await self._store.head_async(key)
            except BaseError as error:
                if not is_wordless(str(error)):
                    raise
                found = (await self._store.get_async(key)).meta
            return found["size"]

        return self._answer(path, known(self._key(path)))

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """An object's bytes, block by block, of which each is waited for anew: the whole may take as long as it likes.

        One that is replaced meanwhile comes mixed: the caller verifies what came.

        Args:
            path: of the object.
            size: of it, in bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        for start in range(0, size, BLOCK_BYTES):
            end = min(start + BLOCK_BYTES, size)
            yield self._answer(path, self._files._cat_file(self._name(path), start, end))

    def folders(self, path: str) -> list[str]:
        """Of a folder the names of those in it."""
        try:
            found = self._answer(path, self._files._ls(self._name(path), detail=True))
        except FileNotFoundError:  # fsspec knows no empty folder
            return []
        return [one["name"].rpartition("/")[2] for one in found if one["type"] == "directory"]

    def objects(self, path: str) -> list[Object]:
        """All objects below a folder."""

        # Not by fsspec's find, which lists folder by folder, and passes over those that it cannot list
        async def listed(key: str) -> "Sequence[ObjectMeta]":
            return await self._store.list(key).collect_async()

        prefix = self._key("")
        found = self._answer(path, listed(self._key(path)))
        return [Object(one["path"].removeprefix(prefix), one["size"]) for one in found]

    def write(self, path: str, data: bytes) -> None:
        """Put a small object."""
        self._answer(path, self._files._pipe_file(self._name(path), data))

    def remove(self, path: str) -> None:
        """Remove an object. One that is not there is no fault."""
        self._answer(path, self._files._rm_file(self._name(path)))

    def upload(self, files: Mapping[str, Path], attend: Callable[[int], None]) -> None:
        """Put files, each of which appears whole or not at all.

        Args:
            files: by the objects' paths.
            attend: called at least every ``LOOK_SECONDS`` with the bytes that are there. What it raises ends the requests that are
                under way.
        """
        waiting, done = deque(files.items()), 0
        under_way: dict[Future[None], tuple[str, int]] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < UPLOADS:
                    path, file = waiting.popleft()
                    size = file.stat().st_size
                    begun = asyncio.run_coroutine_threadsafe(self._put(path, file, size), self._files.loop)
                    under_way[begun] = path, size
                for one in wait(under_way, LOOK_SECONDS, FIRST_COMPLETED).done:
                    path, size = under_way.pop(one)
                    with self._asking(path):
                        one.result()
                    done += size
                attend(done)
        finally:
            for one in under_way:
                one.cancel()

    async def _put(self, path: str, file: Path, size: int) -> None:
        # Not by fsspec's put_file, which knows neither how many pieces there may be nor of what size
        await self._sending.put_async(
            self._key(path),
            file,
            use_multipart=size > ONE_REQUEST_BYTES,
            chunk_size=piece_bytes(size),
            max_concurrency=PIECES,
        )

    def _answer(self, path: str, asked: Coroutine[Any, Any, _T]) -> _T:
        """What is answered to a question about a path. What a signal raises meanwhile ends it too, which fsspec's own ``sync`` leaves."""
        answered = asyncio.run_coroutine_threadsafe(asked, self._files.loop)
        try:
            # By looks: a signal that comes just before the wait has begun is seen after it
            while not wait([answered], LOOK_SECONDS).done:
                pass
            with self._asking(path):
                return answered.result()
        finally:
            answered.cancel()

    def _name(self, path: str) -> str:
        """Of an object, as fsspec wants it: the bucket's is in it."""
        return f"{self._bucket}/{self._key(path)}"

    def _key(self, path: str) -> str:
        """Of an object, in the bucket."""
        return f"{self._prefix}/{path}".removeprefix("/")

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Within this, what the store answers badly is told as the stage's error."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (FileNotFoundError, BaseError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and is_absent(text):
                raise
            means = meaning(text)
            told = means.text.format(
                what=what or "the folder",
                # Ceph's gateway says no more of it than that access is denied
                expired=", or the session token has expired" if os.environ.get("AWS_SESSION_TOKEN") else "",
                region=self._config.region,
                endpoint=self._config.endpoint or "Amazon's endpoint",
                set=self._settings,
            )
            where = f" at {self._config.endpoint}" if self._config.endpoint else ""
            raise StageError(
                means.code, means.reason, f"{self._field} {self.url}{where}: {told} ({said(text)})"
            ) from error

    def _opened(self, patience: Patience) -> "tuple[FsspecStore, ObjectStore, ObjectStore]":
        """fsspec's file system, the store beneath it, and one for what takes long to send."""
        try:
            from obstore.exceptions import BaseError
            from obstore.fsspec import FsspecStore
            from obstore.store import S3Store
        except ImportError:
            raise StageError(
                ExitCode.BAD_CONFIGURATION,
                Reason.INVALID_CONFIGURATION,
                f"{self._field}: this image cannot speak to an object store. Build the operator's draft image with "
                'EXTRAS="--extra s3"; it brings what is needed into the other images',
            ) from None
        store: Any = _addressed(self._config, self._bucket) | {
            "region": self._config.region,
            # Several at once are a request of Amazon's that not everybody knows, and none that is tried again
            "disable_bulk_delete": True,
        }
        client: Any = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=patience.connecting),
            "timeout": timedelta(seconds=patience.transfer),
        }
        if authority := os.environ.get(BUCKET_AUTHORITY):
            client["root_certificate"] = authority
        retries: Any = {
            "max_retries": 100,  # it is the time that ends them
            "retry_timeout": timedelta(seconds=patience.trying),
            "backoff": {
                "init_backoff": timedelta(seconds=patience.pause),
                "max_backoff": timedelta(seconds=patience.longest_pause),
                "base": 2,
            },
        }
        sending = {"config": store, "client_options": client, "retry_config": retries}
        asking = sending | {"client_options": client | {"read_timeout": timedelta(seconds=patience.silence)}}
        # Else fsspec would remember it, and with it the credentials of the time. It lists nothing from memory: obstore puts nothing there
        fresh: Any = {"skip_instance_cache": True}
        try:
            files = FsspecStore("s3", **asking, **fresh)
            return files, files._construct_store(self._bucket), S3Store(self._bucket, **sending)
        except (ValueError, BaseError) as error:
            wrong = (
                f"{self._settings.authority} is not a certificate: "
                if authority and isinstance(error, ValueError)
                else ""
            )
            raise StageError(
                ExitCode.BAD_CONFIGURATION,
                Reason.INVALID_CONFIGURATION,
                f"{self._field}: {wrong}{said(str(error))}",
            ) from None


def piece_bytes(size: int) -> int:
    """Of each piece of a file, so that they are not too many."""
    return max(PIECE_BYTES, -(-size // MOST_PIECES))


def _addressed(config: BucketConfig, name: str) -> dict[str, Any]:
    """How requests name the bucket: in their path, or in their host's name."""
    in_host = config.addressing == "VirtualHost"
    if config.endpoint is None:
        return {"virtual_hosted_style_request": in_host}
    endpoint = config.endpoint.rstrip("/")
    if in_host:
        parts = urlsplit(endpoint)
        endpoint = parts._replace(netloc=f"{name}.{parts.netloc}").geturl()
    return {"virtual_hosted_style_request": in_host, "endpoint": endpoint}
