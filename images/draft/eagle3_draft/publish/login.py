"""Credentials of registries, as docker writes them down and Kubernetes keeps them (``kubernetes.io/dockerconfigjson``)."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError


@dataclass(frozen=True)
class Login:
    """A user of a registry."""

    user: str
    password: str

    @property
    def basic(self) -> str:
        """As the header says it."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def read_login(file: Path, host: str, repository: str) -> Login | None:
    """The credentials for a repository; None where the file names no such registry, which then is asked without.

    The longest of the entries that begin the repository's name counts, as it does for the kubelet.

    Args:
        file: the configuration of docker.
        host: of the registry, with its port.
        repository: there.

    Raises:
        StageError: the file cannot be read, or its entry holds no credentials (InvalidConfiguration).
    """
    try:
        auths = json.loads(file.read_bytes())["auths"]
        entries = {_place(name): entry for name, entry in auths.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _unusable(f"it is not a docker configuration with auths ({type(error).__name__})") from None
    fitting = [name for name in entries if f"{host}/{repository}/".startswith(f"{name}/")]
    return _login(entries[max(fitting, key=len)]) if fitting else None


def _place(name: str) -> str:
    """A registry, or a part of one: docker also writes ``https://index.docker.io/v1/``."""
    place = name.partition("://")[2] or name
    return place.removesuffix("/").removesuffix("/v1").removesuffix("/v2")


def _login(entry: Mapping[str, Any]) -> Login:
    try:
        user, password = entry.get("username"), entry.get("password")
        if isinstance(user, str) and isinstance(password, str):
            return Login(user, password)
        user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (KeyError, TypeError, AttributeError, ValueError):
        raise _unusable("its entry has neither auth nor username and password") from None
    return Login(user, password)


def _unusable(why: str) -> StageError:
    return StageError(
        ExitCode.BAD_CONFIGURATION,
        Reason.INVALID_CONFIGURATION,
        f"publish.oci.secret: {why}. Create it with kubectl create secret docker-registry",
    )
