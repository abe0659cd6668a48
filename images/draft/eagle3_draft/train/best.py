"""The weights of the best draft so far, until the artifact takes them.

Each is a working file of the artifact's folder, named by its step. A checkpoint may be older than the last evaluation and
then speaks of the best draft before it, so a few of them are kept: as many as there are checkpoints, and one. A checkpoint
that speaks of weights is written after they are, and they are on the disk before it: it outlives a node that loses power.
"""

import os
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from eagle3_api.artifacts import WEIGHTS
from eagle3_draft.artifacts import sync_folder
from eagle3_draft.train.checkpoints import KEPT


class BestWeights:
    """The kept weights in a folder.

    Args:
        folder: of the artifact.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, model: nn.Module, step: int) -> None:
        """Keep the weights of this step, float32. All ranks call it together, with no checkpoint under way."""
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            path = self._of(step)
            partial = path.with_suffix(".partial")
            save_file({name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}, partial)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            partial.replace(path)
            sync_folder(self._folder)
            for old in self._kept()[: -(KEPT + 1)]:
                self._of(old).unlink()
        dist.barrier()

    def take(self, step: int) -> None:
        """Make the weights of this step the artifact's, unless they are already: publishing may begin a second time."""
        if (path := self._of(step)).exists():
            path.replace(self._folder / WEIGHTS)

    def _of(self, step: int) -> Path:
        return self._folder / f".best-{step}.safetensors"

    def _kept(self) -> list[int]:
        """Steps of the kept weights, ascending."""
        return sorted(int(path.stem.removeprefix(".best-")) for path in self._folder.glob(".best-*.safetensors"))
