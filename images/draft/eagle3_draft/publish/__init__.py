"""Publish: a converted draft to an OCI registry, as an artifact that others pull by its digest, with where it comes from beside it.

    bundle    what is pushed: the manifest, its configuration, the provenance (pure)
    registry  the client of a registry
    login     the credentials, as docker writes them down
    stage     what is pushed, and in which order

What is pushed is what SGLang loads, config.json and the weights: prompts are held-out data and stay. The same draft gives the
same manifest, so pushing again changes nothing.
"""

from eagle3_draft.publish.stage import run

__all__ = ["run"]
