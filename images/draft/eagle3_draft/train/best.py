"""The weights of the best draft so far, until the artifact takes them, and what it proposed when it was measured.

Each is a working file of the artifact's folder, named by its step. A checkpoint may be older than the last evaluation and
then speaks of the best draft before it, so a few of them are kept: as many as there are checkpoints, and one. A checkpoint
that speaks of weights is written after they are, and they are on the disk before it: it outlives a node that loses power.
"""

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from eagle3_api.artifacts import WEIGHTS
from eagle3_draft.files import noticing_a_full_volume, sync, sync_folder
from eagle3_draft.train.checkpoints import KEPT


class BestWeights:
    """The kept weights in a folder.

    Args:
        folder: of the artifact.
        untrained: tensors of the draft, by name, that are none of the model's and the artifact has as they are. Rank 0 alone, which writes,
            holds them.
    """

    def __init__(self, folder: Path, untrained: Mapping[str, Tensor] | None = None) -> None:
        self._folder = folder
        self._untrained = dict(untrained or {}) if dist.get_rank() == 0 else {}

    def keep(self, model: nn.Module, step: int, proposals: Tensor) -> None:
        """Keep the weights of this step, float32, and its proposals on the held-out sample.

        All ranks call it together, with no checkpoint under way.
        """
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            _write(self._proposals_of(step), {"proposals": proposals})
            learnt = {name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}
            _write(self._of(step), learnt | self._untrained)
            sync_folder(self._folder)
            for old in self._kept()[: -(KEPT + 1)]:
                self._of(old).unlink()
                self._proposals_of(old).unlink(missing_ok=True)
        dist.barrier()

    def has(self, step: int) -> bool:
        """Whether the weights of this step are there, whole, or the artifact has them already. All ranks call it together.

        They lie on another volume than the checkpoint that speaks of them, which may have been emptied, or restored, meanwhile.
        """
        found: list[bool | None] = [None]
        if dist.get_rank() == 0:
            kept = self._of(step)
            found = [_is_whole(kept if kept.exists() else self._folder / WEIGHTS)]
        dist.broadcast_object_list(found)
        return bool(found[0])

    def take(self, step: int) -> None:
        """Make the weights of this step the artifact's, unless they are already: publishing may begin a second time."""
        if (path := self._of(step)).exists():
            path.replace(self._folder / WEIGHTS)

    def proposals(self, step: int) -> Tensor | None:
        """What the draft proposed at this step; None where an older version kept its weights."""
        path = self._proposals_of(step)
        return load_file(path)["proposals"] if path.exists() else None

    def _proposals_of(self, step: int) -> Path:
        return self._folder / f".proposals-{step}.safetensors"

    def _of(self, step: int) -> Path:
        return self._folder / f".best-{step}.safetensors"

    def _kept(self) -> list[int]:
        """Steps of the kept weights, ascending."""
        return sorted(int(path.stem.removeprefix(".best-")) for path in self._folder.glob(".best-*.safetensors"))


def _is_whole(path: Path) -> bool:
    """Whether a file is as long as its header says."""
    try:
        with safe_open(path, "pt"):
            return True
    except (OSError, SafetensorError):
        return False


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    partial = path.with_suffix(".partial")
    try:
        with noticing_a_full_volume(path.parent):
            save_file(dict(tensors), partial)
            sync(partial)
    except BaseException:
        partial.unlink(missing_ok=True)  # it must not keep the volume full
        raise
    partial.replace(path)
