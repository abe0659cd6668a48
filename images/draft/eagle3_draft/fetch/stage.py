"""The stage Fetch: each source into a folder of its own, which is finished for ever once it has its manifest."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from eagle3_api import times
from eagle3_api.artifacts import DATA
from eagle3_api.conditions import Reason
from eagle3_api.estimate import readable_bytes
from eagle3_api.jobs import ExitCode, FetchConfig, Fetched, FetchResult, HubDataset, HubSource
from eagle3_draft.data import forms
from eagle3_draft.errors import StageError
from eagle3_draft.fetch import choice, stored
from eagle3_draft.fetch.hub import Kind, RemoteFile, Repository
from eagle3_draft.fetch.space import check_space
from eagle3_draft.files import settle, write_atomic
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.runtime.termination import interrupting
from eagle3_draft.storage import artifacts

#: Files that come at a time: one connection seldom fills a line.
CONNECTIONS = 4

PROGRESS_SECONDS = 2.0

#: Within a source's folder: the commit that its revision was when it was first asked, so that a resumed fetch mixes no two.
_COMMIT = ".commit"
#: A data set's files as they came.
_FILES = ".files"


def run(config: FetchConfig) -> FetchResult:
    """Fetch what is not there yet.

    Raises:
        StageError: the hub has it not, or not for us, or is away (HubNotFound, HubAccessDenied, HubUnreachable); it does
            not fit (StorageTooSmall); it is nothing that can be used (TargetUnreadable, DataUnreadable, CheckpointUnreadable).
    """
    with interrupting():
        return FetchResult(
            target=_model(config.target, "target.model", choice.of_target) if config.target else None,
            dataset=_dataset(config.dataset) if config.dataset else None,
            draft=_draft(config),
        )


def _draft(config: FetchConfig) -> Fetched | None:
    if config.stored is not None:
        return stored.fetch(config.stored)
    return _model(config.draft, "draft.checkpoint", choice.of_draft) if config.draft else None


def _model(source: HubSource, field: str, choose: Callable[[Repository], list[RemoteFile]]) -> Fetched:
    """A target or a draft."""
    folder = Path(source.folder)
    if (manifest := artifacts.finished(folder, source.key)) is not None:
        return artifacts.numbers(folder, manifest, Fetched)
    repository = _repository(field, "model", source)
    files = choose(repository)
    _download(repository, files, folder)
    return _publish(repository, source, source.folder, _settled(repository, files, folder))


def _dataset(source: HubDataset) -> Fetched:
    folder = Path(source.folder)
    if (manifest := artifacts.finished(folder, source.key)) is not None:
        return artifacts.numbers(folder, manifest, Fetched)
    repository = _repository("data.dataset", "dataset", source)
    files = choice.of_dataset(repository, source.split, source.files)
    came = folder / _FILES
    _download(repository, files, came)
    _settled(repository, files, came)
    _join([came / file.path for file in files], folder / DATA)
    return _publish(repository, source, str(folder / DATA), {DATA: settle(folder / DATA)})


def _repository(field: str, kind: Kind, source: HubSource) -> Repository:
    """The repository, at the commit at which an interrupted fetch found it."""
    pinned = Path(source.folder) / _COMMIT
    revision = pinned.read_text() if pinned.is_file() else source.revision
    try:
        found = Repository.find(field, kind, source.repository, revision)
    except StageError as error:
        if error.reason is Reason.HUB_NOT_FOUND:  # perhaps a commit that was taken back: another try asks anew
            pinned.unlink(missing_ok=True)
        raise
    pinned.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(pinned, found.commit.encode())
    return found


def _download(repository: Repository, files: Sequence[RemoteFile], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left in _under_way(folder):
        left.unlink()  # of a process that was killed: the client begins such a file anew
    size = sum(file.size for file in files)
    progress = ProgressReporter(size, "bytes")
    check_space(repository.name, size - _held(folder, files), folder)
    pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="hub")
    try:
        waiting = {pool.submit(repository.download, file, folder) for file in files}
        while waiting:
            held = _held(folder, files)
            text = f"{readable_bytes(held)} of {readable_bytes(size)} of {repository.name}"
            progress.update(held, text)
            done, waiting = wait(waiting, timeout=PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
            for one in done:
                one.result()
    finally:
        # What a thread is at goes with the process
        pool.shutdown(wait=False, cancel_futures=True)
    progress.update(size)


def _held(folder: Path, files: Sequence[RemoteFile]) -> int:
    """Bytes that are there already, of whole files and of those under way."""
    total = 0
    for path in (*(folder / file.path for file in files), *_under_way(folder)):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # not there yet, or whole since
            continue
    return total


def _under_way(folder: Path) -> list[Path]:
    """Where the client keeps what it has of a file until that is whole."""
    return list((folder / ".cache" / "huggingface" / "download").rglob("*.incomplete"))


def _settled(repository: Repository, files: Sequence[RemoteFile], folder: Path) -> dict[str, str]:
    """Make the files durable, and their digests; what is not what the hub says it is goes again."""
    digests = {}
    progress = ProgressReporter(len(files), "files checked")
    for number, file in enumerate(files):
        progress.update(number)
        digest = settle(folder / file.path)
        if file.sha256 not in (None, digest):
            (folder / file.path).unlink()
            raise StageError(
                ExitCode.INTERRUPTED,
                Reason.HUB_UNREACHABLE,
                f"{file.path} of {repository.name} came with the digest {digest[:12]}…, the hub says {(file.sha256 or '')[:12]}…; "
                "the next try fetches it again",
            )
        digests[file.path] = digest
    return digests


def _join(files: Sequence[Path], out: Path) -> None:
    """All conversations of a data set as JSON Lines, in the order of its files."""
    partial = out.with_name(f".{out.name}.partial")
    progress = ProgressReporter(len(files), "files joined")
    with partial.open("wb") as made:
        for number, path in enumerate(files):
            progress.update(number)
            try:
                made.writelines(forms.lines(path))
            except forms.FormError as error:
                raise StageError(
                    ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, f"data.dataset: {path.name}: {error}"
                ) from error
    partial.replace(out)


def _publish(repository: Repository, source: HubSource, path: str, digests: dict[str, str]) -> Fetched:
    folder = Path(source.folder)
    _remove_strays(folder, digests)
    fetched = Fetched(
        repository=repository.name,
        commit=repository.commit,
        path=path,
        files=len(digests),
        bytes=sum((folder / name).stat().st_size for name in digests),
    )
    artifacts.publish(
        folder,
        stage="fetch",
        key=source.key,
        made_from={"repository": f"{repository.kind}/{repository.name}", "commit": repository.commit},
        numbers=fetched.to_json(),
        provenance={"finished": times.now()},
        digests=digests,
    )
    return fetched


def _remove_strays(folder: Path, kept: dict[str, str]) -> None:
    """Files that an earlier, interrupted run left and that are not of the artifact."""
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(".") and path.is_file() and name not in kept:
            path.unlink()
