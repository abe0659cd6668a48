"""What each of several ranks does in ``test_object_store``: reads its share of every step, in a process of its own.

    python -m stages.reading_rank FOLDER STEPS ROOT CONFIG [ROOT CONFIG ...]

FOLDER is the features', below each root; STEPS are its conversations of each step, as JSON. Prints, as JSON, of each root: of each conversation that it read the digest, in order; the shards that it downloaded; and the most that the
shards on the disk took whenever it looked.
"""

import json
import sys
from pathlib import Path
from typing import Any

from eagle3_api.jobs import ObjectStoreConfig
from eagle3_api.manifest import File
from eagle3_draft.features import Features
from eagle3_draft.features.format import Digests
from eagle3_draft.features.format import tensors as columns_of
from eagle3_draft.features.pieces import raw
from eagle3_draft.storage.object_store import SHARDS, ObjectStore


class Counting(ObjectStore):
    """Writes down what is downloaded."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.downloaded: list[str] = []

    def _downloaded(self, folder: Path, entry: File) -> bytes:
        if "train-" in entry.path:
            self.downloaded.append(entry.path)
        return super()._downloaded(folder, entry)


def main(root: Path, folder: Path, config: ObjectStoreConfig, own: list[list[int]]) -> dict[str, Any]:
    """Read, as the trainer does: the next step is expected while one is read."""
    at = Counting(config, root)
    features = Features.open(folder, at)
    digests: dict[int, list[str]] = {}
    most = 0
    for number, step in enumerate(own, start=1):
        for following in own[number : number + 1]:
            features.train.expect(following)
        for index, sample in zip(step, features.train.read(step), strict=True):
            stored = {name: raw([tensor])[0] for name, tensor in columns_of(sample).items()}
            read = Digests.of(stored, features.header)
            digests.setdefault(index, []).append((read.text + read.computed).hex())
        with at._shards._alone():
            most = max(most, sum(path.stat().st_size for path in (root / SHARDS).iterdir()))
    return {"digests": digests, "downloaded": at.downloaded, "most": most}


if __name__ == "__main__":
    below, steps, *caches = sys.argv[1:]
    told = [
        main(Path(root), Path(root, below), ObjectStoreConfig.model_validate_json(config), json.loads(steps))
        for root, config in zip(caches[::2], caches[1::2], strict=True)
    ]
    print(json.dumps(told))
