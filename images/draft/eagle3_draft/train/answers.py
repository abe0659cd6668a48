"""What the target says to every taught position, taken down once: no step then multiplies with its whole vocabulary."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from eagle3_draft.features import Sample
from eagle3_draft.train.loss import Teacher

#: Tokens of conversations that are asked about together. Not the ranks' number: rounding must not depend on that.
GROUP_TOKENS = 8192


class GreedyTokens:
    """A file with the target's most likely token after each taught position of the conversations to learn from.

    Args:
        path: of the file, on storage that all ranks see.
        lengths: tokens of each conversation.
    """

    def __init__(self, path: Path, lengths: Sequence[int]) -> None:
        self._path = path
        self._starts = [0, *accumulate(lengths)]
        self._tokens = torch.empty(0, dtype=torch.int32)

    def of(self, sample: int) -> Tensor:
        """(tokens,) int32; where nothing is taught it means nothing."""
        return self._tokens[self._starts[sample] : self._starts[sample + 1]]

    def settle(
        self, samples: Sequence[Sample], teacher: Teacher, device: torch.device, progress: Callable[[float], None]
    ) -> None:
        """Take them down, each rank its share, unless that was done before. All ranks call it together.

        Args:
            samples: the conversations.
            teacher: the target's head.
            device: of this rank.
            progress: is told the share that is done; what it raises ends the training.
        """
        partial = self._path.with_name(self._path.name + ".partial")
        if not self._path.exists():
            tokens = torch.from_file(str(partial), shared=True, size=self._starts[-1], dtype=torch.int32)
            groups = self._groups()
            for number in range(dist.get_rank(), len(groups), dist.get_world_size()):
                for sample, answers in zip(
                    groups[number], self._ask(groups[number], samples, teacher, device), strict=True
                ):
                    tokens[self._starts[sample] : self._starts[sample + 1]] = answers
                progress((number + 1) / len(groups))
            del tokens
            dist.barrier()
            if dist.get_rank() == 0:
                partial.replace(self._path)
        dist.barrier()
        self._tokens = torch.from_file(str(self._path), shared=False, size=self._starts[-1], dtype=torch.int32)

    def _groups(self) -> list[list[int]]:
        """Conversations, one after the other, in groups of about as many tokens."""
        groups: list[list[int]] = []
        end = -1
        for sample, start in enumerate(self._starts[:-1]):
            if start >= end:
                groups.append([])
                end = start + GROUP_TOKENS
            groups[-1].append(sample)
        return groups

    @staticmethod
    def _ask(group: Sequence[int], samples: Sequence[Sample], teacher: Teacher, device: torch.device) -> list[Tensor]:
        """Of each conversation of a group, (tokens,) int32."""
        read = [samples[sample] for sample in group]
        taught = torch.cat([sample.loss_mask.roll(-1).bool() for sample in read])
        greedy = torch.zeros(len(taught), dtype=torch.int32)
        last = torch.cat([sample.last for sample in read])[taught].to(device)
        greedy[taught] = teacher.answer(last).greedy.to("cpu", torch.int32)
        return list(torch.split(greedy, [len(sample) for sample in read]))
