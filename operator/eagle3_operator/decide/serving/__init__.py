"""Serving: which revision is tried, which one serves and with how many pods, and what waits for a person.

``rollout`` is the table of steps. Before any, it takes stock: ``watching`` of traffic, ``starts`` of starts that failed, ``edits``
of servers that somebody changed. The questions it asks of all revisions stand in ``fleet``, with ``preference``: which is the
best. ``trying`` and ``probing`` are the candidate, ``asking`` what waits for a person, ``place`` whose
GPUs a revision takes, ``capacity`` how many pods each has, ``promotion`` what a move of the Service changes, ``retirement``
which can go.
"""
