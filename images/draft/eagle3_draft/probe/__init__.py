"""Probe: measure one revision's server before it gets traffic.

The stage sends held-out prompts to the revision's own Service and writes down what it saw; whether that is good enough is
the operator's to judge. It needs the standard library and pydantic, nothing else.

    server.py     SGLang's HTTP API, as far as a probe needs it
    prompts.py    the held-out prompts
    arguments.py  what /server_info says, against what was asked for
    measure.py    requests at a concurrency, and what follows from their times and counts
    lossless.py   greedy answers against those of the server without speculation
    stage.py      the order of it all, and the artifact

The plain revision is probed first, by the same stage. Its answers, with how close each of its decisions was, are what the
answers of a speculating revision are compared with; its tokens/s are the baseline.
"""

from eagle3_draft.probe.stage import run

__all__ = ["run"]
