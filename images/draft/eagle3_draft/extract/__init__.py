"""Extract: the target's hidden states over the conversations, as the draft will read them when it serves.

    inputs -> parts (the cut) -> texts (as they stand, or answered) -> space -> making (a part) -> whole

``stage`` goes through these in this order; an ``engine`` runs the target, by SGLang or by transformers. An interrupted
extraction goes on with the first shard that is missing.
"""

from eagle3_draft.extract.stage import run

__all__ = ["run"]
