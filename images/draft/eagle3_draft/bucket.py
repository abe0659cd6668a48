"""A bucket of an S3-compatible object store, and what its answers mean for a stage.

It is spoken to through fsspec's interface, by obstore (the extra ``s3``), one wheel for every Python.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.jobs import BucketConfig, ExitCode
from eagle3_draft.stage import StageError


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
        self.files = _file_system(config, field)
        self._field = field
        self._credentials = credentials or f"the Secret in {field}"

    def name(self, path: str) -> str:
        """Of an object, as fsspec wants it."""
        return f"{self.url.removeprefix('s3://')}/{path}"

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


def _file_system(config: BucketConfig, field: str) -> Any:
    try:
        from obstore.fsspec import FsspecStore
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
    # fsspec would remember an instance, and with it the credentials of the time
    options: Any = {"client_options": {"allow_http": True, "timeout": "600s"}, "skip_instance_cache": True}
    return FsspecStore("s3", config=settings, **options)
