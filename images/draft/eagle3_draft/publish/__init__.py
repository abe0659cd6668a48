"""Publish: a converted draft to where others get it by its digest, with where it comes from beside it.

    draft     what leaves of it (one type for all places)
    oci       to an OCI registry
      bundle    what is pushed: the manifest, its configuration, the provenance (pure)
      registry  the client of a registry
      login     the credentials, as docker writes them down
    store     to an S3-compatible object store
    stage     to which places

What is pushed is what SGLang loads, config.json and the weights: prompts are held-out data and stay. The same draft gives the
same manifest, so pushing again changes nothing.
"""

from eagle3_draft.publish.stage import run

__all__ = ["run"]
