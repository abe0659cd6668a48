"""The draft while it learns: the model on this rank's device, its gradients and its optimizer. The loop is ``worker``'s."""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from eagle3_api.spec import Loss
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.fast import GPU_MULTIPLE, FastDraft
from eagle3_draft.train.batches import Batch
from eagle3_draft.train.loss import CROSS_ENTROPY, Teacher, step_weights, total_loss
from eagle3_draft.train.loss_kernel import UnrollLoss, unroll_loss
from eagle3_draft.train.mesh import mesh_of
from eagle3_draft.train.portions import Portion

#: The global norm that gradients are cut to, and AdamW's settings: those of the published trainings.
CLIP = 0.5
BETAS = (0.9, 0.95)


class Learning:
    """One rank's draft. All ranks call every method together.

    On a GPU it computes in bfloat16 with float32 masters, and nothing in a step waits for the GPU: what a step measured is
    a tensor there, which the caller reads when it likes.

    Args:
        config: sizes of the draft.
        device: of this rank.
        embedding: that the draft reads, (target vocabulary, hidden).
        head: the target's, (target vocabulary, target hidden).
        ids: the target's ids of the tokens that the draft knows.
        seed: of the fresh weights.
        weights: to begin with instead, by name.
        factor: how the matrices of the unroll multiply while it learns.
        loss: what is made small.
        shards: ranks that one copy of the draft is cut up among, a divisor of all; all of them where left out.
    """

    def __init__(
        self,
        config: DraftConfig,
        device: torch.device,
        *,
        embedding: Tensor,
        head: Tensor,
        ids: Tensor,
        seed: int,
        weights: Mapping[str, Tensor] | None = None,
        factor: type[Factor] = Factor,
        loss: Loss = CROSS_ENTROPY,
        shards: int | None = None,
    ) -> None:
        on_gpu = device.type == "cuda"
        self.device = device
        self.factor = factor
        self.loss = loss
        self.dtype = torch.bfloat16 if on_gpu else torch.float32
        self.multiple = GPU_MULTIPLE if on_gpu else 1
        self.ranks = dist.get_world_size()
        self.embedding = embedding.to(device, self.dtype)
        self.teacher = Teacher(head, ids).to(device, self.dtype)
        self.model = FastDraft(config)
        if weights is None:
            self.model.initialise(seed)
        else:
            self.model.load_state_dict(weights)
        self.model.to(device)
        # Two units. The layers run in every unroll step and would otherwise be gathered for each; the head's gradient is
        # complete when the backward begins, and is added up over the ranks beside it
        shard = partial(
            fully_shard,
            mesh=mesh_of(device, shards or self.ranks),
            mp_policy=precision_policy(on_gpu, self.ranks),
            reshard_after_forward=False,
        )
        shard(self.model.lm_head)
        self.sharded = shard(self.model)
        register_fsdp_forward_method(self.model.lm_head, "loss")
        register_fsdp_forward_method(self.model, "loss")
        learnt = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(learnt, lr=0.0, betas=BETAS, weight_decay=0.0, fused=on_gpu)

    def step(self, portions: Iterable[Portion], passes: int, rate: float, notes: Tensor) -> Tensor:
        """One optimizer step.

        Args:
            portions: of this rank, on the device. Each is asked for when the one before is launched.
            passes: their number, the same on every rank.
            rate: the learning rate.
            notes: (n,) float32 on the device, of this rank; every rank gets their sums.

        Returns:
            (3 + n,) float32 on the device: the loss, the gradient's norm before it was cut, the first step's accuracy, and
            the notes.
        """
        coming = iter(portions)
        portion = next(coming)
        steps = len(portion.counts) - 1
        shared = torch.cat([portion.counts, notes])
        dist.all_reduce(shared)
        counted, labelled, notes = shared[:steps], shared[steps : steps + 1], shared[steps + 1 :]
        # FSDP averages gradients over the ranks; the loss is a mean over the rows of all
        weights = self.ranks * step_weights(counted, self.loss)
        sums = torch.zeros(2, steps, device=self.device)
        for number in range(1, passes + 1):
            if number > 1:
                portion = next(coming)
            # Between copies of the draft the gradients of all passes are added up once
            self.sharded.set_requires_all_reduce(number == passes)
            result = self.unroll_loss(portion.batch, weights)
            result.loss.backward()  # type: ignore[no-untyped-call]
            sums += torch.stack([result.sums.losses, result.sums.right])
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(sums)
        losses, right = sums
        accuracy = right[:1] / labelled.clamp(min=1)
        return torch.cat([total_loss(losses, counted, self.loss)[None], _whole(norm)[None], accuracy, notes])

    def unroll_loss(self, batch: Batch, weights: Tensor) -> UnrollLoss:
        """The loss of an unroll over a batch; a counted row of each step has these weights, (steps,)."""
        embeds = F.embedding(batch.input_ids, self.embedding)
        result: UnrollLoss = self.model.loss(
            batch.states(self.dtype),
            embeds,
            batch.rows,
            partial(
                unroll_loss,
                batch=batch,
                labels=self.teacher.labels(batch.teaching),
                teacher=self.teacher,
                weights=weights,
                loss=self.loss,
            ),
            # What is measured is what will be served, and that multiplies exactly
            self.factor if self.model.training else Factor,
        )
        return result


def precision_policy(on_gpu: bool, ranks: int) -> MixedPrecisionPolicy:
    """In what a draft with float32 masters computes, and in what its gradients are added up over the ranks.

    A GPU computes in bfloat16 and adds up in float32. One rank has nothing to add up, and float32 would only be copied.
    """
    if not on_gpu:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32 if ranks > 1 else torch.bfloat16)


def _whole(norm: Tensor) -> Tensor:
    """A norm over sharded gradients, on every rank."""
    full = getattr(norm, "full_tensor", None)
    whole: Tensor = norm if full is None else full()
    return whole
