"""Judgement of revisions, pure: measurements and a policy go in, a ``Verdict`` comes out.

``probe`` judges before traffic, ``watch`` after. Neither measures, waits or remembers: measurements are stored with the
revision in the object's status, and judged anew at every reconcile.
"""
