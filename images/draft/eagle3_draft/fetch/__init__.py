"""Fetch: a target and a data set from a hub, once, pinned to a commit, as artifacts.

It runs in the small image. What it fetched is checked against what the hub says of it, and from then on lies there like a
folder of the user's: nobody else talks to the hub.
"""

from eagle3_draft.fetch.stage import run

__all__ = ["run"]
