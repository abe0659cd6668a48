"""``kubectl eagle3``: what a person wants to know of an ``Eagle3Draft``, before it runs and while it does.

The console script is ``kubectl-eagle3``; on PATH, kubectl finds it under ``kubectl eagle3``.
"""
