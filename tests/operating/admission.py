"""An admission webhook of somebody else's, in this process: it changes what is made, or refuses it in words of its own."""

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from operating.controller import WEBHOOKS
from operating.web import certify, serving_http
from testcluster import AnyCluster, wait_for

Json = dict[str, Any]

#: What is made of an object: operations of a JSON patch, or the words with which it is refused.
Answer = Callable[[Json], Sequence[Json] | str]


@contextmanager
def admitting(cluster: AnyCluster, folder: Path, namespace: str, answers: Mapping[str, Answer]) -> Iterator[None]:
    """A webhook in force for one namespace of a cluster whose API server reaches this machine.

    It is asked about what is made and changed.

    Args:
        cluster: an embedded one.
        folder: for its certificate.
        namespace: whose objects it is asked about.
        answers: what it makes of an object, by its resource (``deployments``).
    """
    certificate = certify(folder)
    asked = threading.Event()

    class Webhook(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.set()
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(review | {"response": _response(review["request"], answers)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    kind, name = "MutatingWebhookConfiguration", f"{namespace}-others"
    with serving_http(Webhook, certificate=certificate) as port:
        rule = {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "resources": sorted({*answers, "configmaps"}),  # of these one is made to see whether it is asked
            "operations": ["CREATE", "UPDATE"],
        }
        webhook = {
            "name": "others.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "clientConfig": {
                "url": f"https://127.0.0.1:{port}/",
                "caBundle": base64.b64encode(certificate.file.read_bytes()).decode(),
            },
        }
        made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
        cluster.apply(made | {"webhooks": [webhook]})
        probe = f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All"

        def in_force() -> bool:
            cluster.request("POST", probe, {"metadata": {"name": "probe"}})
            return asked.is_set()

        try:
            wait_for("the webhook to be in force", 30, in_force)
            yield
        finally:
            cluster.request("DELETE", f"{WEBHOOKS[kind]}/{name}")


def _response(request: Json, answers: Mapping[str, Answer]) -> Json:
    answer = answers.get(request["resource"]["resource"])
    if answer is None:
        return {"uid": request["uid"], "allowed": True}
    said = answer(request["object"])
    if isinstance(said, str):
        return {"uid": request["uid"], "allowed": False, "status": {"message": said, "code": 403}}
    patch = base64.b64encode(json.dumps(list(said)).encode()).decode()
    return {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
