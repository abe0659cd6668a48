"""Decisions, pure: from the object and its children as they are, at a given time, to what is to be done and said.

    decision = decide(obj, seen, settings, now)

A reader begins with ``whole``, which calls, in this order:

- ``retries``: the retry annotation clears what stands in the way of another try;
- ``obstacles``: what stands in the way before anything is started;
- ``advancing``, with ``stages`` and ``chain``: which Jobs there should be before serving, and how each ended (or why it is
  not started: ``waiting``); ``retention``: what of their output can go, and what is remembered; ``room``: whether the servers
  are to go first;
- ``rollout``: which revision is tried and which one serves, in a table of steps. The questions it asks of ``revisions`` stand
  in ``fleet`` (with ``preference``: which is the best). ``watching`` and ``starts`` take stock (what was heard of traffic, how
  often a start failed and why: ``diagnosis``), ``trying`` and ``probing`` are the candidate, ``asking`` is what waits for a
  person, whose word is in ``approval``, ``place`` whose GPUs a revision takes, ``capacity`` how many pods each has,
  ``promotion`` what a move of the Service changes, ``retirement`` which can go;
- ``conditions``, ``summary``, ``events``: what to say of it all; ``waking``: when to look again.

What they all look at, and collect what is to be done in, is in ``view``.

Nothing here knows a client or a clock, and nothing is remembered but the object's own status.
"""

from eagle3_operator.decide.whole import decide

__all__ = ["decide"]
