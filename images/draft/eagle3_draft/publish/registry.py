"""A client of OCI registries: as much of the distribution API as pushing an artifact takes.

Written on the standard library, because this runs in an image that has nothing else, and because a draft of gigabytes must go from
its file to the socket: HEAD, POST and PUT of blobs, PUT and GET of manifests, and the two ways of logging in.
Source: OCI distribution-spec 1.1; distribution's token authentication.
"""

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from io import BytesIO
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.publish.bundle import Document
from eagle3_draft.publish.login import Login

#: Seconds without a byte.
TIMEOUT = 300.0

#: A manifest is a few kilobytes; registries take four megabytes.
_LIMIT = 4 * 1024 * 1024

_OCTETS = "application/octet-stream"
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


#: Opens what is sent, anew each time that it is sent: something with ``read``.
Body = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Answer:
    """What a registry said; the headers' names in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Registry:
    """One repository of a registry.

    Args:
        host: with its port.
        repository: there.
        login: where it wants one.
        plain_http: speak HTTP, for a registry in the cluster or a test.
    """

    def __init__(self, host: str, repository: str, login: Login | None = None, *, plain_http: bool = False) -> None:
        self.repository = repository
        self._base = f"{'http' if plain_http else 'https'}://{host}/v2/{repository}/"
        self._host = host
        self._login = login
        self._authorization: str | None = None

    def has_blob(self, digest: str) -> bool:
        """Whether a blob is there already."""
        return self._send("HEAD", f"blobs/{digest}", missing=True).status == 200

    def push_blob(self, digest: str, size: int, body: Body) -> None:
        """Push a blob; the registry checks its digest."""
        started = self._send("POST", "blobs/uploads/")
        place = urllib.parse.urljoin(self._base, started.headers.get("location", ""))
        joint = "&" if urllib.parse.urlsplit(place).query else "?"
        headers = {"Content-Type": _OCTETS, "Content-Length": str(size)}
        self._send("PUT", f"{place}{joint}digest={urllib.parse.quote(digest)}", headers, body)

    def push_document(self, document: Document) -> None:
        """Push a small blob, unless it is there."""
        if not self.has_blob(document.digest):
            self.push_blob(document.digest, len(document.data), lambda: BytesIO(document.data))

    def push_manifest(self, manifest: Document, reference: str) -> Mapping[str, str]:
        """Push a manifest under a tag, or under its own digest; returns the answer's headers, by names in lower case."""
        headers = {"Content-Type": manifest.media_type, "Content-Length": str(len(manifest.data))}
        return self._send("PUT", f"manifests/{reference}", headers, lambda: BytesIO(manifest.data)).headers

    def manifest(self, reference: str, media_type: str) -> dict[str, Any] | None:
        """A manifest; None where there is none."""
        answer = self._send("GET", f"manifests/{reference}", {"Accept": media_type}, missing=True)
        if answer.status != 200:
            return None
        found: dict[str, Any] = json.loads(answer.data)
        return found

    def _send(
        self,
        method: str,
        place: str,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        *,
        missing: bool = False,
    ) -> Answer:
        """One request, logged in anew where the registry asks for that.

        Args:
            method, place, headers, body: of the request; the place below the repository, or a whole URL.
            missing: 404 is an answer.

        Raises:
            StageError: it refuses (RegistryDenied), or cannot be reached now (RegistryUnavailable).
        """
        url = urllib.parse.urljoin(self._base, place)
        answer = self._once(method, url, headers or {}, body)
        if answer.status == 401:
            self._log_in(answer.headers.get("www-authenticate", ""))
            answer = self._once(method, url, headers or {}, body)
        if answer.status < 400 or (missing and answer.status == 404):
            return answer
        raise self._refusal(method, answer)

    def _once(self, method: str, url: str, headers: Mapping[str, str], body: Body | None) -> Answer:
        whole = dict(headers)
        # A registry may send an upload elsewhere, where its token is nobody's business
        if self._authorization is not None and url.startswith(self._base):
            whole["Authorization"] = self._authorization
        if body is None:
            return self._exchange(urllib.request.Request(url, None, whole, method=method))  # noqa: S310
        with body() as data:
            return self._exchange(urllib.request.Request(url, data, whole, method=method))  # noqa: S310

    def _exchange(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                return Answer(answer.status, _lower(answer.headers), answer.read(_LIMIT))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers), error.read(_LIMIT))
        except (urllib.error.URLError, HTTPException, OSError) as error:
            raise self._unreachable(error) from error

    def _log_in(self, challenge: str) -> None:
        """Answer a challenge: by the credentials themselves, or by a token that they are good for."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._login is not None:
            self._authorization = self._login.basic
            return
        asked = dict(_PARAMETER.findall(rest))
        if kind.lower() != "bearer" or "realm" not in asked:
            raise self._denied("it wants a login" if self._login is None else f"it wants {kind or 'no known'} login")
        query = {"service": asked.get("service", ""), "scope": f"repository:{self.repository}:pull,push"}
        url = f"{asked['realm']}?{urllib.parse.urlencode(query)}"
        headers = {"Authorization": self._login.basic} if self._login is not None else {}
        answer = self._exchange(urllib.request.Request(url, None, headers))  # noqa: S310
        if answer.status >= 400:
            raise self._refusal("the login", answer)
        said = json.loads(answer.data)
        self._authorization = f"Bearer {said.get('token') or said['access_token']}"

    def _refusal(self, what: str, answer: Answer) -> StageError:
        said = _said(answer.data)
        if answer.status == 429 or answer.status >= 500:
            return _unavailable(f"{self._host} answers {what} with {answer.status} {said}".rstrip())
        if answer.status == 404:
            return self._denied(
                f"there is no repository {self.repository}, and it makes none by itself {said}".rstrip()
            )
        return self._denied(f"it answers {what} with {answer.status} {said}".rstrip())

    def _denied(self, why: str) -> StageError:
        return StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.REGISTRY_DENIED,
            f"publish.oci: {self._host} does not accept {self.repository}: {why}. Check publish.oci.secret and what its user "
            "may push",
        )

    def _unreachable(self, error: Exception) -> StageError:
        why = getattr(error, "reason", error)
        if isinstance(why, ssl.SSLError):
            return self._denied(
                f"its certificate is not trusted here ({why}); name a bundle that has its issuer in SSL_CERT_FILE "
                "(placement.env), or set plainHttp"
            )
        return _unavailable(f"{self._host} cannot be reached: {why}")


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _said(data: bytes) -> str:
    """The first error in a registry's own words."""
    try:
        error = json.loads(data)["errors"][0]
        return f"({error.get('code', '')}: {str(error.get('message', ''))[:200]})"
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def _unavailable(message: str) -> StageError:
    return StageError(
        ExitCode.INTERRUPTED,
        Reason.REGISTRY_UNAVAILABLE,
        f"publish.oci: {message}. The next try pushes what is missing",
    )
