"""Where an OCI artifact lies: ``registry.example.com:5000/team/name:tag``."""

import re
from dataclasses import dataclass, replace

#: As a schema's pattern too. A host has a dot or a port, or is localhost: ``team/name`` alone would be somebody's guess.
PATTERN = (
    r"^([a-z0-9-]+([.][a-z0-9-]+)+(:[0-9]{1,5})?|[a-z0-9-]+:[0-9]{1,5}|localhost)"
    r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"
)

#: Docker Hub is called otherwise than it is reached, and otherwise again in docker's configuration.
_HUB, _HUB_API, _HUB_LOGIN = "docker.io", "registry-1.docker.io", "index.docker.io"


@dataclass(frozen=True)
class Reference:
    """A repository, and a tag in it if one is named."""

    host: str
    repository: str
    tag: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """The parts of a reference; ValueError where it is none."""
        if re.fullmatch(PATTERN, text) is None:
            raise ValueError(f"{text!r} is not a place in a registry, as registry.example.com/team/name:tag is")
        host, _, rest = text.partition("/")
        repository, _, tag = rest.partition(":")
        return cls(host, repository, tag or None)

    @property
    def api_host(self) -> str:
        """Whom to talk to."""
        return _HUB_API if self.host == _HUB else self.host

    @property
    def login_host(self) -> str:
        """Under whose name the credentials stand."""
        return _HUB_LOGIN if self.host == _HUB else self.host

    @property
    def untagged(self) -> "Reference":
        """The repository alone."""
        return replace(self, tag=None)

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}" + (f":{self.tag}" if self.tag else "")
