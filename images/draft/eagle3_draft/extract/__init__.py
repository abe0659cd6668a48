"""Extract: the target's hidden states over the conversations, as the draft will read them when it serves.

``stage`` renders the conversations, plans the shards and drives an ``Engine``; ``transformers_engine`` is the engine that
runs the target. An interrupted extraction goes on with the first shard that is missing.
"""

from eagle3_draft.extract.stage import run

__all__ = ["run"]
