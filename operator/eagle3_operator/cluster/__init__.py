"""The thin shell around the pure core: the only code that talks to the API server and to Prometheus.

One object's way through it is one reconcile::

    handlers ── enqueue ──> queue ──> reconcile:  get ─> observe ─> decide ─> act ─> status ─> events

- ``queue``      one keyed queue: one flight per object, coalescing, requeue-after, backoff, resync;
- ``client``     the requests to the API server, as plain JSON objects;
- ``observe``    an object's children as an ``Observation``;  ``parse``: each of them, by pure functions;
- ``prometheus`` instant queries, with a problem text for whatever is not one plain number;
- ``act``        a ``Decision`` carried out in a fixed order, never over what is somebody else's;
- ``status``     one status write, if anything changed;  ``events``: what is told after it;
- ``reconcile``  the sequence of these;
- ``watches``    how kopf watches, for ``handlers``.

A reconcile is blocking code in one thread; nothing is remembered between two of them. Killed at any line and run again, it
reaches the same end.
"""
