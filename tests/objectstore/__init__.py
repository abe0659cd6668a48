"""A real S3-compatible server, for tests of features that lie in an object store."""

from objectstore.server import BUCKET, Server, serving
from objectstore.stuck import Stuck, stuck

__all__ = ["BUCKET", "Server", "Stuck", "serving", "stuck"]
