"""Logs: one JSON object a line, and in each line the object that it is about."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime

_about: ContextVar[tuple[str, str] | None] = ContextVar("about", default=None)


@contextlib.contextmanager
def about(namespace: str, name: str) -> Iterator[None]:
    """Within this context, and in whatever is run in a copy of it, every line carries the object."""
    token = _about.set((namespace, name))
    try:
        yield
    finally:
        _about.reset(token)


class Formatter(logging.Formatter):
    """A record as a line of JSON: time, level, logger, namespace, name, message, error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        reference = getattr(record, "k8s_ref", None) or {}  # the framework's own lines about an object
        namespace, name = _about.get() or (reference.get("namespace"), reference.get("name"))
        if name:
            line |= {"namespace": namespace or "", "name": name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    """Send the logs of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # At INFO these tell of every request and of every event that was put into the queue.
    for chatty in ("httpx", "urllib3", "kopf.objects", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
