"""A bucket of an S3-compatible object store, and what its answers mean for a stage.

It is spoken to through fsspec's interface, by obstore (the extra ``s3``), one wheel for every Python.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.jobs import BucketConfig, ExitCode
from eagle3_draft.stage import StageError

#: Files that are uploaded at a time, each in one request and from memory.
UPLOADS = 4

#: A larger file is uploaded in pieces. Of one that is given up these stay in the bucket, unseen, until its own rules remove them.
ONE_REQUEST_BYTES = 256 * 1024 * 1024

#: Between two looks at whether an upload is to go on.
LOOK_SECONDS = 1.0


class Bucket:
    """What lies under a prefix of a bucket.

    Args:
        config: where it is; credentials are in the environment.
        field: of the object that says so, as messages name it.
        credentials: where a user named them; the Secret in that field where left out.

    Attributes:
        url: ``s3://BUCKET/PREFIX``, without a slash at its end.
        files: fsspec's file system; its names begin with the bucket's (``name``).

    Raises:
        StageError: nothing here speaks to an object store (InvalidConfiguration).
    """

    def __init__(self, config: BucketConfig, field: str, credentials: str | None = None) -> None:
        self.url = config.url.rstrip("/")
        self.files, self._store = _opened(config, field)
        self._field = field
        self._credentials = credentials or f"the Secret in {field}"

    def name(self, path: str) -> str:
        """Of an object, as fsspec wants it."""
        return f"{self.url.removeprefix('s3://')}/{path}"

    def upload(self, files: Mapping[str, Path], attend: Callable[[int], None]) -> None:
        """Put files, each of which appears whole or not at all.

        Args:
            files: by the objects' names below the prefix.
            attend: called at least every ``LOOK_SECONDS`` with the bytes that are there. What it raises ends the requests that are
                under way.

        Raises:
            StageError: as of ``asking``.
        """
        waiting, done = deque(files.items()), 0
        under_way: dict[Future[None], tuple[str, int]] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < UPLOADS:
                    name, path = waiting.popleft()
                    size = path.stat().st_size
                    under_way[self._begun(name, path, size)] = name, size
                for one in wait(under_way, LOOK_SECONDS, FIRST_COMPLETED).done:
                    name, size = under_way.pop(one)
                    with self.asking(name):
                        one.result()
                    done += size
                attend(done)
        finally:
            for one in under_way:
                one.cancel()

    def _begun(self, name: str, path: Path, size: int) -> Future[None]:
        from obstore import put_async

        async def put() -> None:
            whole = size <= ONE_REQUEST_BYTES
            await put_async(self._store, self.name(name).partition("/")[2], path, use_multipart=not whole)

        return asyncio.run_coroutine_threadsafe(put(), self.files.loop)

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Within this, what the store answers badly is told as the stage's error.

        Args:
            what: is asked about, for the message.

        Raises:
            StageError: it lets us not in (StorageUnavailable), which trying again does not change; or it cannot be reached
                or is out of order, after many tries (StorageUnavailable), which it may.
            FileNotFoundError: there is no such object.
        """
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (FileNotFoundError, BaseError) as error:
            if "NoSuchBucket" in str(error):
                raise self._unavailable(ExitCode.BAD_INPUT, "there is no such bucket", error) from error
            if isinstance(error, FileNotFoundError):
                raise
            # A listing that is denied is a generic error
            if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or "403 Forbidden" in str(error):
                denied = f"it does not let us at {what}; see {self._credentials}"
                raise self._unavailable(ExitCode.BAD_INPUT, denied, error) from error
            raise self._unavailable(ExitCode.INTERRUPTED, "it does not answer as it should", error) from error

    def _unavailable(self, code: ExitCode, what: str, error: Exception) -> StageError:
        said = str(error).splitlines()[0][:300]
        return StageError(code, Reason.STORAGE_UNAVAILABLE, f"{self._field} {self.url}: {what} ({said})")


def _opened(config: BucketConfig, field: str) -> tuple[Any, Any]:
    """fsspec's file system, and the store beneath it."""
    try:
        from obstore.fsspec import FsspecStore
        from obstore.store import S3Store
    except ImportError:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"{field}: this image cannot speak to an object store. Build the operator's draft image with "
            'EXTRAS="--extra s3"; it brings what is needed into the other images',
        ) from None
    settings: Any = {"region": config.region, "virtual_hosted_style_request": False}
    if config.endpoint is not None:
        settings["endpoint"] = config.endpoint
    options: Any = {"allow_http": True, "timeout": "600s"}
    # fsspec would remember an instance, and with it the credentials of the time
    fresh: Any = {"skip_instance_cache": True}
    files = FsspecStore("s3", config=settings, client_options=options, **fresh)
    name = config.url.removeprefix("s3://").partition("/")[0]
    return files, S3Store(name, config=settings, client_options=options)
