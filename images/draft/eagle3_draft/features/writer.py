"""Writing a feature store, shard by shard, so that an interrupted run goes on where it stopped.

One pod writes a part. A second one comes where the first was given up on a node that was lost, and runs on all the same: its states may
differ in their last bits, and a store of both would be nobody's. So who finds the part finished stops, and who finds
that the record of a shard is no longer the one that it wrote does not publish.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from eagle3_api.artifacts import MANIFEST
from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName
from eagle3_api.manifest import Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.features.format import (
    DIGEST_BYTES,
    LENGTHS,
    Header,
    Sample,
    Split,
    all_finite,
    digests_name,
    shard_name,
)
from eagle3_draft.features.shard import write_shard
from eagle3_draft.files import file_digest, sync, write_atomic, write_whole
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.places import Place, Volume

#: Large enough to be read in one piece, small enough that losing one costs seconds.
SHARD_BYTES = 64 * 1024 * 1024


class ShardRecord(Model):
    """What a finished shard holds: kept beside it while the store is written.

    Attributes:
        plan: hash of the store's header and of the conversations that the shard was made from.
        sha256: of the shard's file.
        lengths: tokens of each conversation in it.
        supervised_tokens: tokens of the assistant.
        digests: of each conversation, ``Digests`` one after the other, in hexadecimal.
        skipped: conversations left out because their states were not finite.
    """

    plan: str
    sha256: str
    lengths: list[int]
    digests: list[str]
    supervised_tokens: int
    skipped: int = 0


class FeatureWriter:
    """Writes the feature store in a folder.

    Args:
        folder: of the artifact; made if need be.
        header: what the states are.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.folder = folder
        self.header = header
        self._records: dict[Split, dict[int, ShardRecord]] = {split: {} for split in Split}
        self._durable: set[tuple[Split, int]] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def resume(self, split: Split, number: int, token_ids: Sequence[Sequence[int]]) -> ShardRecord | None:
        """The record of a shard that an earlier run finished from the same conversations, or None: it is to be written.

        Args:
            token_ids: of the conversations that belong into the shard.
        """
        try:
            record = self._recorded(split, number)
            if record is None or record.plan != self._plan(token_ids):
                return None
            if record.sha256 != file_digest(self.folder / shard_name(split, number)):
                return None
        except OSError:
            return None
        self._records[split][number] = record
        return record

    def write(
        self, split: Split, number: int, token_ids: Sequence[Sequence[int]], samples: Sequence[Sample]
    ) -> ShardRecord:
        """Write one shard. Several may be written at a time, each by a thread of its own.

        The system takes it to the disk when it likes, or is told to (``sync``). A shard that a lost node left half there is not
        that of its record, and is written again.

        A conversation whose numbers are not all finite is left out. It counts as skipped, and so does one of ``token_ids``
        without a sample.

        Raises:
            StageError: a sample's parts do not have one row a token (FeaturesMisaligned); another pod has finished the store
                meanwhile (Interrupted).
        """
        finite = samples if all_finite(samples) else [sample for sample in samples if sample.is_finite()]
        shard = self.folder / shard_name(split, number)
        written = write_shard(shard, finite, self.header, before=lambda: self._make_way(split, number))
        record = ShardRecord(
            plan=self._plan(token_ids),
            sha256=written.sha256,
            lengths=[len(sample) for sample in finite],
            digests=[(digests.text + digests.computed).hex() for digests in written.digests],
            supervised_tokens=sum(bytes(sample.loss_mask.numpy()).count(1) for sample in finite),
            skipped=len(token_ids) - len(finite),
        )
        write_whole(self._record(split, number), json.dumps(record.to_json()).encode())
        self._records[split][number] = record
        return record

    def sync(self, split: Split, number: int) -> None:
        """Have a shard that was written or resumed on the disk, and wait for that."""
        sync(self.folder / shard_name(split, number))
        self._durable.add((split, number))

    def records(self, split: Split) -> list[ShardRecord]:
        """Of the shards that were written or resumed, in order."""
        records = self._records[split]
        return [records[number] for number in sorted(records)]

    def publish(
        self, *, key: str, made_from: Mapping[str, str], numbers: Mapping[str, Any], provenance: Mapping[str, str]
    ) -> Manifest:
        """Publish the store of all shards that were written or resumed, those first synced that are not.

        Args:
            key: Extract's key.
            made_from, provenance: as of ``artifacts.publish``.
            numbers: further ones, beside the header's.

        Raises:
            StageError: another pod writes the store too, or has finished it (Interrupted).
        """
        lengths, shards = {}, {}
        for split, records in self._records.items():
            every = [n for record in self.records(split) for n in record.lengths]
            lengths[str(split)] = torch.tensor(every, dtype=torch.int32)
            digests = bytes.fromhex("".join(digest for record in self.records(split) for digest in record.digests))
            lengths[digests_name(split)] = torch.tensor(list(digests), dtype=torch.uint8).reshape(-1, 2, DIGEST_BYTES)
            for number in records:
                if (split, number) not in self._durable:
                    self.sync(split, number)
            shards[str(split)] = [
                {"file": shard_name(split, number), "conversations": len(records[number].lengths)}
                for number in sorted(records)
            ]
        self._require_own()
        write_atomic(self.folder / LENGTHS, save(lengths))
        self._remove_strays()
        return artifacts.publish(
            self.folder,
            stage="extract",
            key=key,
            made_from=made_from,
            numbers=self.header.model_dump() | {"shards": shards} | dict(numbers),
            provenance=provenance,
            digests={
                shard_name(split, number): record.sha256
                for split, records in self._records.items()
                for number, record in records.items()
            },
        )

    def _make_way(self, split: Split, number: int) -> None:
        """Before a shard takes its place: one of a finished store stays, and a record never lies beside another's shard."""
        self._require_unfinished()
        self._record(split, number).unlink(missing_ok=True)

    def _require_own(self) -> None:
        self._require_unfinished()
        own = all(
            self._recorded(split, number) == record
            for split, records in self._records.items()
            for number, record in records.items()
        )
        if not own:
            raise self._of_another("writes")

    def _require_unfinished(self) -> None:
        if (self.folder / MANIFEST).exists():
            raise self._of_another("has finished")

    def _of_another(self, does: str) -> StageError:
        return StageError(
            ExitCode.INTERRUPTED,
            Reason.INTERRUPTED,
            f"another pod {does} {self.folder}: this pod was given up, or should have been. The next try continues from what is there",
        )

    def _plan(self, token_ids: Sequence[Sequence[int]]) -> str:
        plan = hashlib.sha256(json.dumps([self.header.to_json(), [len(ids) for ids in token_ids]]).encode())
        plan.update(b"".join(array("i", ids).tobytes() for ids in token_ids))
        return plan.hexdigest()

    def _recorded(self, split: Split, number: int) -> ShardRecord | None:
        """The record that lies beside a shard, whosever it is."""
        try:
            return ShardRecord.model_validate_json(self._record(split, number).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def _record(self, split: Split, number: int) -> Path:
        return self.folder / f".{shard_name(split, number)}.json"

    def _remove_strays(self) -> None:
        """Shards of an earlier run that was planned otherwise are not part of the store."""
        wanted = {shard_name(split, number) for split, records in self._records.items() for number in records}
        for split in Split:
            for path in self.folder.glob(f"{split}-*.safetensors"):
                if path.name not in wanted:
                    path.unlink()


def publish_store(
    folder: Path,
    parts: Sequence[str],
    at: Place,
    *,
    key: str,
    made_from: Mapping[str, str],
    numbers: Mapping[str, Any],
    provenance: Mapping[str, str],
    attend: Callable[[int], None] = lambda done: None,
) -> Manifest:
    """Publish the stores in subfolders as one. No file of theirs is moved or read again.

    Args:
        folder: holds them.
        parts: their names, in order; other parts in the folder are of another cut, and go.
        at: where they lie.
        key: Extract's key, theirs too.
        made_from, provenance: as of ``artifacts.publish``.
        numbers: further ones, beside the header's.
        attend: as of ``Place.published``.

    Raises:
        StageError: a part is not finished, or its states are others than the first one's (CorruptArtifact).
    """
    texts = {part: at.manifest_text(folder / part) for part in parts}
    manifests = {part: artifacts.parsed(folder / part, text) for part, text in texts.items()}
    headers = [Header.model_validate(manifest.numbers) for manifest in manifests.values()]
    if any(header != headers[0] for header in headers):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CORRUPT_ARTIFACT,
            f"the parts in {folder} hold states of different kinds. Delete the folder to have them made again",
            retry=StageName.EXTRACT,
        )
    with ThreadPoolExecutor(artifacts.READ_TOGETHER, "lengths") as threads:
        lengths = [manifest.file(LENGTHS).within(part) for part, manifest in manifests.items()]
        tables = list(map(load, threads.map(lambda file: at.content(folder, file), lengths)))
    joined = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    write_atomic(folder / LENGTHS, save(joined))
    for path in folder.glob("part-*"):
        if path.name not in manifests:
            Volume().remove(path)
    manifest = artifacts.publish(
        folder,
        stage="extract",
        key=key,
        made_from=made_from,
        numbers=headers[0].model_dump() | dict(numbers),
        provenance=provenance,
        parts=texts,
    )
    at.published(folder, manifest, attend)
    return manifest


def plan_shards(lengths: Sequence[int], bytes_per_token: int, shard_bytes: int = SHARD_BYTES) -> list[range]:
    """Which conversations go into which shard: in order, a shard closes with the one that fills it.

    Args:
        lengths: tokens of each conversation.
        bytes_per_token: of the stored features.
        shard_bytes: of a shard, about.
    """
    shards, start, size = [], 0, 0
    for index, length in enumerate(lengths):
        size += length * bytes_per_token
        if size >= shard_bytes:
            shards.append(range(start, index + 1))
            start, size = index + 1, 0
    if start < len(lengths):
        shards.append(range(start, len(lengths)))
    return shards
