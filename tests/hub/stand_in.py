"""A stand-in for a hub: the few routes that the real client asks for, over repositories in memory, with faults on demand.

No hub can be reached from where tests run. What answers here follows the client's own reading of the protocol: the headers
and error codes that it looks at.

As a program it holds folders and files of the machine that it runs on:

    python3 stand_in.py 8000 models/acme/tiny=/models/tiny datasets/acme/talk=/data/train.jsonl
"""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: As on the hub: only of these does it know the SHA-256.
LARGE = (".safetensors", ".parquet")

_INFO = re.compile(r"^/api/(model|dataset)s/([^/]+/[^/]+)(?:/revision/([^/]+))?$")
_FILE = re.compile(r"^/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


@dataclass
class Hub:
    """What the stand-in holds, and what tests may change.

    Attributes:
        repositories: files by path, by ``models/<name>`` or ``datasets/<name>`` and commit.
        branches: what ``main`` is, by the same names.
        gated: names that are shown only with a token.
        token: that opens them.
        fault: another answer to one request (method, path): a status, or the bytes after which the connection breaks.
        asked: requests so far, with the range that was asked for.
    """

    repositories: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"
    fault: Callable[[str, str], "Fault | None"] = lambda method, path: None
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def put(self, name: str, files: Mapping[str, bytes], *, kind: str = "models") -> str:
        """A new commit of a repository, which ``main`` is from now on; returns its name."""
        content = b"".join(path.encode() + files[path] for path in sorted(files))
        commit = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.repositories.setdefault(f"{kind}/{name}", {})[commit] = dict(files)
        self.branches[f"{kind}/{name}"] = commit
        return commit


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer."""

    status: int | None = None
    break_after: int | None = None
    body: bytes | None = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range")))
        fault = self.hub.fault(self.command, path)
        if fault is not None and fault.status is not None:
            return self._send(fault.status, b"", {}, body=body)
        if found := _INFO.match(path):
            return self._info(f"{found[1]}s/{found[2]}", found[3] or "main", body=body)
        if found := _FILE.match(path):
            return self._file(
                "datasets/" + found[2] if found[1] else "models/" + found[2], found[3], found[4], fault, body
            )
        return self._send(404, b"", {}, body=body)

    def _commit(self, name: str, revision: str) -> str | None:
        """The commit, or None after an answer that says why not."""
        if name not in self.hub.repositories:
            self._refused(401, "RepoNotFound")  # as for what is private
            return None
        if name in self.hub.gated and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refused(401, "GatedRepo")
            return None
        commit = self.hub.branches[name] if revision == "main" else revision
        if commit not in self.hub.repositories[name]:
            self._refused(404, "RevisionNotFound")
            return None
        return commit

    def _refused(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code}, body=self.command == "GET")

    def _info(self, name: str, revision: str, *, body: bool) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            return
        siblings = []
        for path, content in self.hub.repositories[name][commit].items():
            entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": "b"}
            if path.endswith(LARGE):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        info = {"id": name.partition("/")[2], "sha": commit, "siblings": siblings, "private": False, "tags": []}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body=body)

    def _file(self, name: str, revision: str, path: str, fault: Fault | None, body: bool) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            return None
        content = self.hub.repositories[name][commit].get(path)
        if content is None:
            return self._refused(404, "EntryNotFound")
        if fault is not None and fault.body is not None:
            content = fault.body
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        status, sent = 200, content
        if asked := re.match(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(asked[1])
            status, sent = 206, content[start:]
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        broken = fault.break_after if fault is not None else None
        return self._send(status, sent, headers, body=body, break_after=broken)

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], *, body: bool, break_after: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content if break_after is None else content[:break_after])
        if break_after is not None and body:
            self.wfile.flush()
            self.close_connection = True


def _server(made: Hub, address: tuple[str, int]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(address, type("Handler", (_Handler,), {"hub": made}))
    server.daemon_threads = True
    return server


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub at an address of this machine, for the length of the block."""
    made = Hub()
    server = _server(made, ("127.0.0.1", 0))
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def files(path: Path) -> dict[str, bytes]:
    """A file, or all that is in a folder, by their paths in a repository."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def main(port: str, *repositories: str) -> None:
    """Answer at this port until the process ends."""
    made = Hub()
    for repository in repositories:
        name, _, path = repository.partition("=")
        kind, _, rest = name.partition("/")
        made.put(rest, files(Path(path)), kind=kind)
    _server(made, ("0.0.0.0", int(port))).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
