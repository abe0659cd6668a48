"""A repository of a hub at one commit, through the hub's own client, with whatever fails told by its reason.

The client, huggingface_hub, follows ``HF_ENDPOINT``, ``HF_TOKEN`` and the other variables of its own. It is an option of this
package (``hub``), and no SGLang image is without it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError

Kind = Literal["model", "dataset"]


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository.

    Attributes:
        path: in the repository.
        size: bytes.
        sha256: of the bytes, where the hub knows it: of every large file.
    """

    path: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Repository:
    """A repository at one commit.

    Attributes:
        field: of the object that names it, for messages.
        kind: of the repository.
        name: ``organisation/name``.
        commit: whole.
        files: in order of their paths.
    """

    field: str
    kind: Kind
    name: str
    commit: str
    files: tuple[RemoteFile, ...]

    @classmethod
    def find(cls, field: str, kind: Kind, name: str, revision: str | None) -> "Repository":
        """Ask the hub what a revision holds.

        Args:
            field: of the object that names the repository.
            kind: of the repository.
            name: of the repository.
            revision: a branch, a tag or a commit; the default branch where left out.

        Raises:
            StageError: there is none, or not for us (HubNotFound, HubAccessDenied); the hub cannot be reached
                (HubUnreachable).
        """
        with _told(field, name, revision):
            from huggingface_hub import HfApi
            from huggingface_hub.utils.tqdm import disable_progress_bars

            disable_progress_bars()  # progress is said in lines of our own
            api = HfApi(endpoint=_endpoint())
            ask = api.model_info if kind == "model" else api.dataset_info
            info = ask(name, revision=revision, files_metadata=True)
        files = (_file(sibling) for sibling in info.siblings or ())
        # A name that leads out of the folder is not a file of a repository
        inside = sorted((file for file in files if _stays_inside(file.path)), key=lambda file: file.path)
        return cls(field, kind, name, info.sha or "", tuple(inside))

    def download(self, file: RemoteFile, folder: Path) -> Path:
        """Put one of the files into a folder, under its path; what is there of it already is not fetched again.

        Raises:
            StageError: as of ``find``.
        """
        with _told(self.field, self.name, self.commit):
            from huggingface_hub import hf_hub_download

            return Path(
                hf_hub_download(
                    self.name,
                    file.path,
                    repo_type=self.kind,
                    revision=self.commit,
                    local_dir=folder,
                    endpoint=_endpoint(),
                )
            )


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT")


def _file(sibling: Any) -> RemoteFile:
    return RemoteFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None)


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path)
    return not parts.is_absolute() and ".." not in parts.parts


@contextmanager
def _told(field: str, name: str, revision: str | None) -> Iterator[None]:
    """Whatever the client raises, as what it means for the object."""
    try:
        import httpx
        from huggingface_hub import errors
    except ImportError:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            "this image lacks huggingface_hub, which fetches from a hub: build it with EXTRAS='--extra hub', or put the "
            "files on a volume and name their path",
        ) from None
    where = f"{field}: {name}" + (f" at {revision}" if revision else "")
    try:
        yield
    except errors.GatedRepoError as error:
        raise _denied(where, error) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.HUB_NOT_FOUND,
            f"{where}: the hub has no such repository, revision or file, or it requires a token. Correct the "
            f"name, or set HF_TOKEN in placement.env from a Secret ({_first_line(error)})",
        ) from error
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        response = getattr(error, "response", None)
        if response is not None and response.status_code in (401, 403):
            raise _denied(where, error) from error
        raise _unreachable(where, error) from error
    except (errors.FileMetadataError, httpx.HTTPError, ConnectionError) as error:
        raise _unreachable(where, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unreachable(where, error) from error  # so the client says that a file came short


def _denied(where: str, error: Exception) -> StageError:
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.HUB_ACCESS_DENIED,
        f"{where}: its owners have not granted access: ask them, and set HF_TOKEN in placement.env from a "
        f"Secret ({_first_line(error)})",
    )


def _unreachable(where: str, error: Exception) -> StageError:
    """Resumable: the next pod goes on with the files that are not there yet."""
    return StageError(
        ExitCode.INTERRUPTED,
        Reason.HUB_UNREACHABLE,
        f"{where}: the hub does not answer as it should: {_first_line(error)}. HF_ENDPOINT in placement.env names another hub; "
        "or put the files on a volume and name their path",
    )


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
