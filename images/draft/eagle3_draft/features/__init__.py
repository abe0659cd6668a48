"""The feature store: what the target computed over the conversations, as training reads it.

Extract's artifact is parts, and ``lengths.safetensors`` over all of them. A part holds shards, each a safetensors file of some tens
of megabytes with many conversations laid end to end, and ``lengths.safetensors`` with the tokens of each and its digests:

    train-00000.safetensors     input_ids  int32  (tokens,)
    held_out-00000.safetensors  loss_mask  uint8  (tokens,)                    1 where the token is the assistant's
    ...                         hidden     dtype  (tokens, layers x hidden)    outputs of the layers, in their order
                                offsets    int64  (conversations + 1,)         conversation i is offsets[i]:offsets[i+1]
                                and the tensors of ``LastState`` or ``TopK``   what the target says after each token

``loss_mask`` is not shifted: it marks the token itself, as one to be predicted. The manifest's numbers say what the
states are (``Header``). ``FeatureWriter`` writes a store so that an interrupted run loses one shard at most;
``Features.open`` reads it, on a volume memory-mapped; a conversation is verified when it is first read.
"""

from eagle3_draft.features.format import TORCH_DTYPES, Header, Sample, Split, Text, as_stored, sample_of, tensors
from eagle3_draft.features.reader import Features, Samples
from eagle3_draft.features.scaled import restored
from eagle3_draft.features.shard import write_shard
from eagle3_draft.features.teaching import LastState, Teaching, TopK, joined, mapped, teach, teaching_of
from eagle3_draft.features.writer import SHARD_BYTES, FeatureWriter, ShardRecord, plan_shards, publish_store

__all__ = [
    "SHARD_BYTES",
    "TORCH_DTYPES",
    "FeatureWriter",
    "Features",
    "Header",
    "LastState",
    "Sample",
    "Samples",
    "ShardRecord",
    "Split",
    "Teaching",
    "Text",
    "TopK",
    "as_stored",
    "joined",
    "mapped",
    "plan_shards",
    "publish_store",
    "restored",
    "sample_of",
    "teach",
    "teaching_of",
    "tensors",
    "write_shard",
]
