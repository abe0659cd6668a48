"""Train: hidden states to a draft, its vocabulary and its measure.

``launch.run`` checks the features against the object, chooses the draft's vocabulary, starts one process per GPU through
torch's elastic launcher and publishes what they made. ``worker`` is what each of them does, and reads top to bottom:

    prefetch -> batches -> learning                (one optimizer step: unroll, loss, FSDP2's gradients, AdamW)
            -> checkpoints                         (resumable, atomic)
            -> evaluate -> replay                  (on the held-out conversations, after each epoch)

The mathematics stands twice. ``model.draft`` and ``loss`` are plain, to be read; ``model.fast`` and ``loss_kernel`` are
what trains, and must equal them.
"""

from eagle3_draft.train.launch import run

__all__ = ["run"]
