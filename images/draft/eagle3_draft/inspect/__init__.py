"""Inspect: look at target, data, adopted checkpoint and volume before any GPU is spent, and say what was found.

It runs in a small image without torch: everything it needs stands in configurations, in the headers of safetensors files
and in the conversations, of which it renders some. It writes nothing.
"""

from eagle3_draft.inspect.stage import run

__all__ = ["run"]
