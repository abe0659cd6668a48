"""Releases of SGLang."""

import re
from dataclasses import dataclass

_VERSION = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)\.(?P<patch>\d+)(?:\.?post(?P<post>\d+))?")


@dataclass(frozen=True, order=True)
class Version:
    """An SGLang release."""

    major: int
    minor: int
    patch: int
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> "Version":
        """The version in a text such as ``0.5.23`` or ``lmsysorg/sglang:v0.5.23-cu130``; ValueError if there is none.

        An image may be pinned by its digest besides: ``lmsysorg/sglang:v0.5.23@sha256:...``.
        """
        found = _VERSION.search(text.partition("@")[0].rpartition(":")[2])
        if found is None:
            raise ValueError(f"no SGLang version in {text!r}; set sglangVersion")
        return cls(*(int(found[part] or 0) for part in ("major", "minor", "patch", "post")))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")


#: The oldest release whose counters, loader and flags the operator relies on (sglang:spec_verify_calls_total).
OLDEST = Version(0, 5, 17)

#: The newest release whose loader was read for these facts.
NEWEST = Version(0, 5, 23)
