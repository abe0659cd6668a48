"""Decisions, pure: from the object and its children as they are, at a given time, to what is to be done and said.

    decision = decide(obj, seen, settings, now)

A reader begins with ``whole``, which calls, in this order:

- ``retries``: the retry annotation clears what stands in the way of another try;
- ``obstacles``: what stands in the way before anything is started;
- ``pipeline``: which Jobs there should be before serving (``advancing``, with ``stages``), how each ended (``chain``), what of
  their output can go and what is remembered (``retention``), whether servers go while they run (``room``), and when
  data is looked at again because traffic has moved away from it (``drift``);
- ``serving``: which revision is tried and which one serves, in a table of steps (``rollout``);
- ``telling``: what to say of it all (``conditions``, ``summary``, ``events``);
- ``waking``: when to look again.

What they all look at, and collect what is to be done in, is in ``view``; what is known of a revision is in ``revisions``, a
person's word in ``approval``, and what troubles a pod in ``pods``.

Nothing here knows a client or a clock, and nothing is remembered but the object's own status.
"""

from eagle3_operator.decide.whole import decide

__all__ = ["decide"]
