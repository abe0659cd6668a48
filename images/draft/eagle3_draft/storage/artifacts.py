"""Reading and publishing artifacts.

``publish`` makes a folder an artifact: it makes every file durable and readable by all, and only then puts the manifest
in place with one rename. A process that dies before that rename leaves a folder without a manifest, which is resumable
or rubbish; one that dies after it leaves a finished artifact. There is no third state.

Files and folders whose name begins with a dot are a stage's working files. They are never part of an artifact, and go
once it is published.
"""

import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, MANIFEST, MODELS_ROOT
from eagle3_api.artifacts import FORMAT as MANIFEST_FORMAT
from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName
from eagle3_api.manifest import File, Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest, set_mode, settle, sync_folder, write_atomic

#: The type of an artifact's numbers.
Numbers = TypeVar("Numbers", bound=Model)

#: A manifest has a few hundred bytes a file, and what has very many has parts; what is larger is none, and is not read into memory.
MANIFEST_LIMIT = 64 * 1024 * 1024

#: Small files of parts that are asked for at a time: they may have to come over the network.
READ_TOGETHER = 8

#: Of what is published, as `files.FILE_MODE`.
_FOLDER_MODE = 0o755


def publish(
    folder: Path,
    *,
    stage: str,
    key: str,
    made_from: Mapping[str, str],
    numbers: Mapping[str, Any],
    provenance: Mapping[str, str],
    digests: Mapping[str, str] | None = None,
    parts: Mapping[str, bytes] | None = None,
) -> Manifest:
    """Make a folder, whose files are all written, a finished artifact.

    Args:
        folder: holds the artifact's files, in subfolders if need be.
        stage: who made it.
        key: the stage's key.
        made_from: keys and digests of the inputs, by name.
        numbers: the numbers that matter to readers.
        provenance: what did not change the output (image, versions, node, times).
        digests: sha256 of files, by path, that the caller wrote with ``write_atomic``, or with that mode and synced:
            terabytes are not read again.
        parts: the manifests, by subfolder, of artifacts that were published there and make up this one: they become its files.
            They, and what they list, may lie elsewhere by now.

    Raises:
        ValueError: the folder holds something that is not a regular file (a link, a socket).
    """
    known, of_parts, files = digests or {}, parts or {}, []
    own = [path for path in _contents(folder) if path.relative_to(folder).parts[0] not in of_parts]
    for path in own:
        name = path.relative_to(folder).as_posix()
        files.append(File(path=name, size=path.stat().st_size, sha256=known.get(name) or settle(path)))
    for part, text in of_parts.items():
        files.append(File(path=f"{part}/{MANIFEST}", size=len(text), sha256=hashlib.sha256(text).hexdigest()))
    manifest = Manifest(
        stage=stage, key=key, files=files, made_from=dict(made_from), provenance=dict(provenance), numbers=dict(numbers)
    )
    for parent in {path.parent for path in own} | {folder}:
        set_mode(parent, _FOLDER_MODE)
        sync_folder(parent)
    write_atomic(folder / MANIFEST, manifest.model_dump_json(by_alias=True, indent=1).encode())
    remove_working_files(folder)
    return manifest


def finished(folder: Path, key: str) -> Manifest | None:
    """The manifest of a finished artifact, or None where there is no manifest: the stage has work to do.

    Sizes are checked, those of its parts' files too. Digests, but of the parts' manifests, wait for a file's first read
    (``verified``).

    Raises:
        StageError: there is a manifest, but it is broken, another key's, or its files are not there (CorruptArtifact);
            the folder cannot be read (StorageUnavailable).
    """
    if not _exists(folder / MANIFEST):
        return None
    manifest = read(folder)
    check_key(folder, manifest, key)
    of_parts = [file.within(part) for part, of_part in parts(folder, manifest).items() for file in of_part.files]
    for file in (*manifest.files, *of_parts):
        located(folder, file)
    return manifest


def parts(
    folder: Path, manifest: Manifest, content_of: Callable[[Path, File], bytes] | None = None
) -> dict[str, Manifest]:
    """The manifests of the artifacts in subfolders that make up this one, in their order, by the subfolder.

    Args:
        folder: of the artifact.
        manifest: its own.
        content_of: reads a listed file and verifies it; ``content`` where left out.

    Raises:
        StageError: one is missing, broken, or not the one that was published (CorruptArtifact).
    """
    listed = [file for file in manifest.files if file.is_part]
    with ThreadPoolExecutor(READ_TOGETHER, "manifest") as threads:
        texts = threads.map(partial(content_of or content, folder), listed)
        found = zip((file.path.removesuffix(f"/{MANIFEST}") for file in listed), texts, strict=True)
        return {part: parsed(folder / part, text) for part, text in found}


def check_key(folder: Path, manifest: Manifest, key: str) -> None:
    """Raises StageError where a folder's manifest is another key's (CorruptArtifact)."""
    if manifest.key != key:
        raise corrupt(folder, f"its manifest is that of key {manifest.key}, not {key}")


def is_of(folder: Path, stage: StageName) -> bool:
    """Whether a stage of ours wrote a folder's manifest: other tools leave a file of that name, too, which says nothing to us."""
    try:
        said = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and (said.get("format"), said.get("stage")) == (MANIFEST_FORMAT, stage)


def read(folder: Path) -> Manifest:
    """The manifest of an artifact that must be finished.

    Raises:
        StageError: it is missing or broken (CorruptArtifact), or cannot be read (StorageUnavailable).
    """
    return parsed(folder, manifest_text(folder))


def manifest_text(folder: Path) -> bytes:
    """The bytes of the manifest of an artifact that must be finished; of one that is no manifest, only its first.

    Raises:
        StageError: it is missing (CorruptArtifact), or cannot be read (StorageUnavailable).
    """
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            return file.read(MANIFEST_LIMIT + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise never_finished(folder) from None
    except OSError as error:
        raise _unavailable(path, error) from error


def parsed(folder: Path, text: bytes) -> Manifest:
    """A folder's manifest.

    Raises:
        StageError: it is broken (CorruptArtifact).
    """
    if len(text) > MANIFEST_LIMIT:
        raise corrupt(folder, f"{MANIFEST} is larger than {MANIFEST_LIMIT} bytes")
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise corrupt(folder, f"{MANIFEST} is broken: {_first(error)}") from None
    if manifest.format != MANIFEST_FORMAT:
        raise corrupt(folder, f"{MANIFEST} has the format {manifest.format!r}, this version reads {MANIFEST_FORMAT}")
    if len({file.path for file in manifest.files}) != len(manifest.files):
        raise corrupt(folder, f"{MANIFEST} lists a file twice")
    return manifest


def numbers(folder: Path, manifest: Manifest, kind: type[Numbers]) -> Numbers:
    """What the numbers of a finished artifact say.

    Raises:
        StageError: another version of this product wrote them otherwise (CorruptArtifact).
    """
    try:
        return kind.model_validate(manifest.numbers)
    except ValidationError as error:
        raise outdated(folder, manifest.stage, f"its numbers are others ({_first(error)})") from None


_verified: set[tuple[str, int, int, str]] = set()


def verified(folder: Path, file: str) -> Path:
    """The path of an artifact's file, whose digest is checked the first time this process asks for it.

    Raises:
        StageError: the artifact does not list the file, or its bytes are not those that were published
            (CorruptArtifact); it cannot be read (StorageUnavailable).
    """
    try:
        entry = read(folder).file(file)
    except KeyError:
        raise corrupt(folder, f"its {MANIFEST} lists no {file}") from None
    return verified_entry(folder, entry)


def located(folder: Path, file: File) -> Path:
    """The path of a listed file: a regular file of the listed size that really lies in the artifact's folder.

    Raises:
        StageError: it is not there (CorruptArtifact), or cannot be read (StorageUnavailable).
    """
    path = folder / file.path
    try:
        real, status = path.resolve(strict=True), path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError, RuntimeError):
        raise corrupt(folder, f"{file.path!r} is missing") from None
    except OSError as error:
        raise _unavailable(path, error) from error
    if not real.is_relative_to(folder.resolve()):
        raise corrupt(folder, f"{file.path!r} leads out of the folder")
    if not stat.S_ISREG(status.st_mode):
        raise corrupt(folder, f"{file.path!r} is not a regular file")
    if status.st_size != file.size:
        raise corrupt(folder, f"{file.path!r} has {status.st_size} bytes, {file.size} were published")
    return path


def verified_entry(folder: Path, entry: File) -> Path:
    """As ``verified``, of a file that the caller found in the manifest."""
    path = located(folder, entry)
    mark = (str(path), entry.size, path.stat().st_mtime_ns, entry.sha256)
    if mark not in _verified:
        try:
            digest = file_digest(path)
        except OSError as error:
            raise _unavailable(path, error) from error
        if digest != entry.sha256:
            raise changed(folder, entry, digest)
        _verified.add(mark)
    return path


def content(folder: Path, entry: File) -> bytes:
    """The bytes of a listed file; as ``verified``."""
    return verified_entry(folder, entry).read_bytes()


def remove_working_files(folder: Path) -> None:
    """Remove a stage's working files, which begin with a dot. One that will not go does no harm and stays."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


def _contents(folder: Path) -> Iterator[Path]:
    """The files that belong to the artifact, in order of their names."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path == folder / MANIFEST:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _contents(path)
        elif stat.S_ISREG(mode):
            yield path
        else:
            raise ValueError(f"{path} is not a regular file and cannot be part of an artifact")


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unavailable(path, error) from error
    return True


def corrupt(folder: Path, what: str) -> StageError:
    """An artifact that cannot be what was published.

    What lies on a volume of the user's is not ours to have deleted, and nobody would make it again.
    """
    made = _made_by(folder)
    advice = "Restore it, or delete the folder to have it made again" if made else "Copy it again from where it came"
    message = f"the artifact in {folder} is corrupt: {what}. {advice}"
    return StageError(ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT, message, retry=made)


def _made_by(folder: Path) -> StageName | None:
    """The stage whose output lies there, in ``<root>/<namespace>/<name>/<stage>``; None outside of our roots."""
    root = next((root for root in (DRAFTS_ROOT, FEATURES_ROOT, MODELS_ROOT) if folder.is_relative_to(root)), None)
    return _stage(folder.relative_to(root).parts[2:3]) if root is not None else None


def _stage(named: Sequence[str]) -> StageName | None:
    return next((stage for stage in StageName if stage in named), None)


def changed(folder: Path, entry: File, digest: str) -> StageError:
    """An artifact of which a file has another digest than was published."""
    said = f"{entry.path} has the digest {digest[:12]}…, {entry.sha256[:12]}… was published: it was changed since"
    return corrupt(folder, said)


def never_finished(folder: Path) -> StageError:
    """An artifact that must be finished, and has no manifest."""
    return corrupt(folder, f"it has no {MANIFEST}, so it was never finished or was deleted in part")


def outdated(folder: Path, stage: str, what: str) -> StageError:
    """An artifact that is whole, and that another version of this product made otherwise than this one reads."""
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.CORRUPT_ARTIFACT,
        f"the artifact in {folder} was made by another version of this product, and this version cannot continue from it: {what}. It "
        "must be made again",
        retry=_stage((stage,)),
    )


def _first(error: ValidationError) -> str:
    """What is wrong first, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _unavailable(path: Path, error: OSError) -> StageError:
    return StageError(
        ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, f"{path} cannot be read: {error.strerror or error}"
    )
