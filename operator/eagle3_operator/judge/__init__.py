"""Judgement of revisions, pure: measurements and a policy go in, a ``Verdict`` comes out (``verdict``).

``probe`` judges before traffic, ``watch`` after, by ``windows`` that come from Prometheus (``promql``) or from the pods' own
``counters``. None of them measures, waits or remembers: measurements are stored with the revision in the object's status,
and judged anew at every reconcile.
"""
