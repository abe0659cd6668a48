"""Real S3-compatible servers, for tests of features that lie in an object store."""

from objectstore.server import Server, gateway, of_its_own, serving
from objectstore.stuck import Stuck, dripping, stuck

__all__ = ["Server", "Stuck", "dripping", "gateway", "of_its_own", "serving", "stuck"]
