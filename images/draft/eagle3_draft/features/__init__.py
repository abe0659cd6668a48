"""The feature store: what the target computed over the conversations, as training reads it.

An artifact of Extract holds shards, each a safetensors file of some tens of megabytes with many conversations laid end
to end, and ``lengths.safetensors`` with the tokens of each conversation:

    train-00000.safetensors     input_ids  int32  (tokens,)
    held_out-00000.safetensors  loss_mask  uint8  (tokens,)                    1 where the token is the assistant's
    ...                         hidden     dtype  (tokens, layers x hidden)    outputs of the layers, in their order
                                last       dtype  (tokens, hidden)             after the final norm: what lm_head reads
                                offsets    int64  (conversations + 1,)         conversation i is offsets[i]:offsets[i+1]

``loss_mask`` is not shifted: it marks the token itself, as one to be predicted. The manifest's numbers say what the
states are (``Header``). ``FeatureWriter`` writes a store so that an interrupted run loses one shard at most;
``Features.open`` reads it, memory-mapped.
"""

from eagle3_draft.features.format import TORCH_DTYPES, Header, Sample, Split
from eagle3_draft.features.reader import Features, Samples, read_shard
from eagle3_draft.features.writer import (
    SHARD_BYTES,
    FeatureWriter,
    ShardRecord,
    plan_shards,
    publish_store,
    write_shard,
)

__all__ = [
    "SHARD_BYTES",
    "TORCH_DTYPES",
    "FeatureWriter",
    "Features",
    "Header",
    "Sample",
    "Samples",
    "ShardRecord",
    "Split",
    "plan_shards",
    "publish_store",
    "read_shard",
    "write_shard",
]
