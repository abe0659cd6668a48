"""A real S3-compatible server, for tests of features that lie in an object store."""

from objectstore.server import BUCKET, Server, serving
from objectstore.stuck import Stuck, dripping, stuck

__all__ = ["BUCKET", "Server", "Stuck", "dripping", "serving", "stuck"]
