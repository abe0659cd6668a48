"""Train: hidden states to a draft, its vocabulary and its measure.

``launch.run`` checks the features against the object, chooses the draft's vocabulary, starts one process per GPU through
torch's elastic launcher and publishes what they made. ``worker`` is what each of them does, and reads top to bottom:

    plan -> portions -> prefetch -> learning       (one optimizer step: unroll, loss, FSDP2's gradients, AdamW)
            -> checkpoints                         (resumable, atomic)
            -> evaluate -> replay                  (on the held-out conversations, after each epoch)

The mathematics stands twice. ``model.draft`` and ``loss`` are plain, to be read; ``model.fast`` and ``loss_kernel`` are
what trains, and must equal them. Words that both use:

===================  ==============================================================================================
teacher              the target, as what the draft is distilled from
teaching             what the feature store has of the teacher at a position: its last state or its most likely tokens
supervised position  one whose next token is the assistant's: there the teacher is a label
labelled position    a supervised one; where the draft learns, one whose label is a token that the draft knows
labels, soft labels  the teacher's most likely tokens; its distributions over the tokens that the draft knows, besides
unroll               the draft's steps of training-time test, each on the state that the one before left
row                  a position at one step of the unroll; it has a loss where its label is a token that the draft knows
counted rows         these, over all ranks: what each step's loss is a mean of
step                 of the unroll, where the word stands with rows or logits; otherwise the optimizer's
pass, portion        a part of an optimizer step that all ranks compute together; a rank's own part of it
===================  ==============================================================================================
"""

from eagle3_draft.train.launch import run

__all__ = ["run"]
