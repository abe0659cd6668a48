"""Clean: remove features and checkpoints that nobody needs once a draft is trained.

A folder's manifest goes first: what is left of an interrupted removal is no artifact. It runs in the small image.
"""

from eagle3_draft.clean.stage import run

__all__ = ["run"]
