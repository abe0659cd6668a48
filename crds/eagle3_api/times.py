"""Times as the API and all artifacts write them: RFC 3339 in UTC, to the second."""

from datetime import UTC, datetime


def text(time: datetime) -> str:
    """``2026-11-29T19:20:00Z``."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """This moment."""
    return text(datetime.now(UTC))


def parse(stamp: str) -> datetime:
    """An aware datetime from what ``text`` wrote or the API server says."""
    return datetime.fromisoformat(stamp)


def age(stamp: str | None, now: datetime) -> float:
    """Seconds since then; 0 for a time that is not known."""
    return 0.0 if stamp is None else (now - parse(stamp)).total_seconds()


def duration(seconds: float) -> str:
    """``3.4h``, ``12m`` or ``30s``, for people."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f}h"
    return f"{seconds / 60:.0f}m" if seconds >= 90 else f"{seconds:.0f}s"
