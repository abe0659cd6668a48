"""The requests to the API server: blocking, of plain JSON objects, with errors that are whole sentences.

The paths are written out here and the official client's transport does the rest (kubeconfig, credentials and their
renewal, TLS, connections). Its generated classes for every kind are left alone: importing those of core/v1 alone costs
more memory than all the rest of the operator.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import kubernetes.config
import urllib3
from kubernetes.client import ApiClient, Configuration

from eagle3_api import API_VERSION, KIND, PLURAL
from eagle3_operator.manifests.names import FIELD_MANAGER, JOBSET_API

Json = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """Where objects of a kind are found: ``api/v1`` or ``apis/<group>/<version>``, and their plural."""

    api: str
    plural: str


RESOURCES: Mapping[str, Resource] = {
    KIND: Resource(f"apis/{API_VERSION}", PLURAL),
    "Job": Resource("apis/batch/v1", "jobs"),
    "JobSet": Resource(f"apis/{JOBSET_API}", "jobsets"),
    "Deployment": Resource("apis/apps/v1", "deployments"),
    "Pod": Resource("api/v1", "pods"),
    "Service": Resource("api/v1", "services"),
    "PodDisruptionBudget": Resource("apis/policy/v1", "poddisruptionbudgets"),
    "PersistentVolumeClaim": Resource("api/v1", "persistentvolumeclaims"),
    "Event": Resource("api/v1", "events"),
}

#: Seconds for the connection, and for each answer. A reconcile is tried again; it must not hang.
TIMEOUT = (5.0, 15.0)
LOG_TIMEOUT = (2.0, 5.0)

#: Whose fields are written.
_MANAGED = {"fieldManager": FIELD_MANAGER}

#: Statuses of an answer to a request that was understood and is not obeyed.
_REFUSED = frozenset({400, 403, 413, 422})

#: What the API server writes before the words of a webhook, which answers with whatever status it likes. No name has a quote.
_OF_A_WEBHOOK = ('admission webhook "', 'failed calling webhook "')

_PAGE = 500
_GONE = 410
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA_STREAM = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

#: Seconds after which a watch is ended by the API server, and is begun anew from where it was.
_WATCH_SECONDS = 300
WATCH_TIMEOUT = (5.0, _WATCH_SECONDS + 10.0)


class ApiError(Exception):
    """The API server refused a request, or could not be reached (``status`` 0)."""

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{request}: {message} ({status} {reason})" if status else f"{request}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def refused(self) -> bool:
        """Whether the request itself is refused: by a quota, an admission, a missing right, or as invalid.

        The same request is refused again until somebody changes something, whatever else the API server is asked. What is
        gone or has changed is no refusal: another look tells what to ask for instead.
        """
        if isinstance(self, NotFoundError | ConflictError):
            return False
        return self.status in _REFUSED or _of_a_webhook(self.message)


class NotFoundError(ApiError):
    """There is no such object, or its namespace is going, in which nothing can be made."""


class ConflictError(ApiError):
    """The object is not any more what it was when it was looked at: look again."""


class GoneError(ApiError):
    """A watch cannot go on from where it was: nobody knows what it missed."""


class StoppingError(ApiError):
    """The operator is stopping: nothing more is asked of the API server. What was begun is done anew by the next one."""


class NameConflictError(Exception):
    """A child's name is taken by an object that is not ours: it is left alone."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} {name} exists and does not belong to this object. It is left as it is. "
            f"Rename or delete it, or give this object another name."
        )
        self.kind = kind
        self.name = name


class Client:
    """The API server as the operator uses it. Safe to share between threads.

    Args:
        configuration: of the official client.
        connections: kept open at most.
        asked: told the method and the resource of each request, such as ``PUT`` and ``eagle3drafts/status``.
    """

    def __init__(
        self, configuration: Configuration, *, connections: int = 16, asked: Callable[[str, str], None] | None = None
    ) -> None:
        configuration.connection_pool_maxsize = connections
        # One more try where nothing can have happened yet, and nobody was waited for; answers are judged here, not there.
        configuration.retries = urllib3.Retry(1, read=0, status=0, redirect=0, respect_retry_after_header=False)
        self._api = ApiClient(configuration)
        self._asked = asked
        self._closed = False

    @classmethod
    def connect(cls, *, connections: int = 16, asked: Callable[[str, str], None] | None = None) -> "Client":
        """From inside a pod its service account; elsewhere the kubeconfig, as kubectl finds it.

        A proxy of the environment is for the world outside, not for the API server; kopf's own requests take none either.
        """
        configuration = Configuration()
        configuration.proxy = None  # not only until the host is known: it is looked for no more
        try:
            kubernetes.config.load_incluster_config(configuration)
        except kubernetes.config.ConfigException:
            kubernetes.config.load_kube_config(client_configuration=configuration)
        return cls(configuration, connections=connections, asked=asked)

    def close(self) -> None:
        """Let what is under way finish and begin nothing new."""
        self._closed = True
        self._api.close()

    # Reading

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        """One object, or None. ``cached`` is as the API server has it in memory: a third of the cost, a moment old."""
        try:
            query = {"resourceVersion": "0"} if cached else {}
            return self._json(_Request("GET", _path(kind, namespace, name), query))
        except NotFoundError:
            return None

    def find(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """The objects of a namespace that carry these labels (``a=b,c=d``). Items say neither kind nor apiVersion."""
        found = self._json(_Request("GET", _path(kind, namespace), {"labelSelector": labels}))
        return list(found.get("items") or [])

    def metadata(self, kind: str, namespace: str | None) -> Iterator[Json]:
        """The metadata of all objects of a kind, in a namespace or in all, page by page."""
        query = {"limit": str(_PAGE)}
        while True:
            page = self._json(_Request("GET", _path(kind, namespace), query, accept=_METADATA_LIST))
            yield from (item["metadata"] for item in page.get("items") or [])
            following = page["metadata"].get("continue")
            if not following:
                return
            query = {**query, "continue": following}

    def version(self, kind: str, namespace: str | None) -> str:
        """The version of a kind as of now, for ``changes`` to begin at."""
        page = self._json(_Request("GET", _path(kind, namespace), {"limit": "1"}, accept=_METADATA_LIST))
        version: str = page["metadata"]["resourceVersion"]
        return version

    def changes(self, kind: str, namespace: str | None, labels: str, version: str) -> Iterator[Json]:
        """The metadata of objects with these labels, whenever one came, changed or went after this version.

        What is yielded may also be a bookmark: metadata of no object, with a ``resourceVersion`` to go on from. It ends
        after some minutes, when the API server wants it to.

        Raises:
            GoneError: the API server remembers no such version any more.
        """
        query = {
            "watch": "true",
            "labelSelector": labels,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        path = _path(kind, namespace)
        request = _Request("GET", path, query, accept=_METADATA_STREAM, timeout=WATCH_TIMEOUT)
        with self._opened(request) as stream:
            for line in stream:
                change = json.loads(line)
                if change["type"] == "ERROR":
                    said = change["object"]
                    gone = GoneError if said.get("code") == _GONE else ApiError
                    raise gone(f"watch {path}", said.get("code", 0), said.get("reason", ""), said.get("message", ""))
                yield change["object"]["metadata"]

    def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log; ``previous`` is the one before its restart."""
        query = {"container": container, "tailLines": str(lines), "previous": str(previous).lower()}
        path = f"{_path('Pod', namespace, pod)}/log"
        return self._read(_Request("GET", path, query, accept="*/*", timeout=LOG_TIMEOUT)).decode(errors="replace")

    # Writing

    def apply(self, manifest: Json) -> Json:
        """Server-side apply, as the one owner of the fields in the manifest."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        query = {**_MANAGED, "force": "true"}
        return self._json(_Request("PATCH", path, query, manifest, content="application/apply-patch+yaml"))

    def create(self, manifest: Json) -> Json:
        """Create; ConflictError if the name is taken."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return self._json(_Request("POST", path, _MANAGED, manifest))

    def delete(self, kind: str, namespace: str, metadata: Json, *, unchanged: bool = True) -> None:
        """Delete exactly this object, its pods first; an object that is gone is deleted.

        Args:
            kind: of the object.
            namespace: of the object.
            metadata: as it was seen.
            unchanged: ConflictError if it has changed since.
        """
        seen = {"uid": metadata["uid"]} | ({"resourceVersion": metadata["resourceVersion"]} if unchanged else {})
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": seen,
        }
        with contextlib.suppress(NotFoundError):
            self._json(_Request("DELETE", _path(kind, namespace, metadata["name"]), body=options))

    def scale(self, namespace: str, deployment: str, replicas: int) -> None:
        """Set a Deployment's replicas through its scale subresource."""
        self.merge("Deployment", namespace, deployment, {"spec": {"replicas": replicas}}, subresource="scale")

    def mend(self, manifest: Json) -> None:
        """Make the pod template of a Deployment what the manifest says and nothing else, as the owner of all its fields."""
        metadata = manifest["metadata"]
        path = _path("Deployment", metadata["namespace"], metadata["name"])
        replaced = [{"op": "replace", "path": "/spec/template", "value": manifest["spec"]["template"]}]
        self._json(_Request("PATCH", path, _MANAGED, replaced, content="application/json-patch+json"))
        self.apply(manifest)  # also of what somebody else had changed and changed back

    def suspend(self, kind: str, namespace: str, name: str, suspend: bool) -> None:
        """Suspend or resume a Job or a JobSet."""
        self.merge(kind, namespace, name, {"spec": {"suspend": suspend}})

    def merge(self, kind: str, namespace: str, name: str, patch: Json, *, subresource: str | None = None) -> Json:
        """A merge patch of an object or of one of its subresources."""
        path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return self._json(_Request("PATCH", path, _MANAGED, patch, content="application/merge-patch+json"))

    def replace_status(self, kind: str, obj: Json, status: Json) -> Json:
        """Write a whole status if the object is still as it was seen; else ConflictError."""
        metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
        path = f"{_path(kind, metadata['namespace'], metadata['name'])}/status"
        # Not a patch, which the API server would first have to apply: this takes a sixth less of its time.
        body = {**obj, "metadata": metadata, "status": status}
        return self._json(_Request("PUT", path, _MANAGED, body))

    # The transport

    def _json(self, request: "_Request") -> Json:
        answer: Json = json.loads(self._read(request))
        return answer

    def _read(self, request: "_Request") -> bytes:
        with self._opened(request) as answer:
            return answer.read()

    @contextlib.contextmanager
    def _opened(self, request: "_Request") -> Iterator[urllib3.HTTPResponse]:
        """The answer to a request, before its body was read; a refusal is raised."""
        if self._closed:
            raise StoppingError(str(request), 0, "Closed", "the operator is stopping")
        if self._asked is not None:
            self._asked(request.method, _resource(request.path))
        prepared = self._api.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params={"Accept": request.accept}
            | ({"Content-Type": request.content} if request.body is not None else {}),
            body=request.body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*prepared, _request_timeout=request.timeout).response
            if not 200 <= answer.status < 300:
                raise _refusal(str(request), answer.status, answer.read())
            with contextlib.closing(answer):
                yield answer
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(str(request), 0, "Unreachable", f"the API server cannot be reached: {error}") from error


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json | list[Json] | None = None
    content: str = "application/json"
    accept: str = "application/json"
    timeout: tuple[float, float] = TIMEOUT

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    resource = RESOURCES[kind]
    parts = [
        resource.api,
        *(("namespaces", namespace) if namespace else ()),
        resource.plural,
        *((name,) if name else ()),
    ]
    return "/" + "/".join(parts)


def _resource(path: str) -> str:
    """``pods/log`` of ``/api/v1/namespaces/llm/pods/p/log``."""
    _, group, *rest = path.split("/")
    rest = rest[1:] if group == "api" else rest[2:]
    resource, *named = rest[2:] if rest[0] == "namespaces" else rest
    return "/".join((resource, *named[1:]))


def _refusal(request: str, status: int, data: bytes) -> ApiError:
    """The error in an answer. Its body is a ``Status``, or whatever a proxy says."""
    try:
        said = dict(json.loads(data))
    except (ValueError, TypeError):
        said = {"message": data[:200].decode(errors="replace")}
    kind: type[ApiError] = ApiError
    message, details = str(said.get("message", "")), said.get("details") or {}
    if _of_a_webhook(message):
        pass  # its 404 is no missing object, its 409 no change
    elif status == 404 or any(cause.get("reason") == "NamespaceTerminating" for cause in details.get("causes") or ()):
        kind = NotFoundError
    elif status == 409:
        kind = ConflictError
    elif status == _GONE:
        kind = GoneError
    return kind(request, status, str(said.get("reason", "")), message)


def _of_a_webhook(message: str) -> bool:
    """Whether an admission webhook refused, or could not be asked."""
    return any(words in message for words in _OF_A_WEBHOOK)
