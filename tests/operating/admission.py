"""An admission webhook of somebody else's, in this process: it changes what is made, or refuses it in words of its own."""

import base64
import http.server
import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from operating.controller import WEBHOOKS, certify
from operating.counting import serving_http
from testcluster import AnyCluster

Json = dict[str, Any]

#: What is made of an object: operations of a JSON patch, or the words with which it is refused.
Answer = Callable[[Json], Sequence[Json] | str]


@contextmanager
def admitting(
    cluster: AnyCluster, folder: Path, namespace: str, answers: Mapping[str, Answer], *operations: str
) -> Iterator[None]:
    """A webhook in force for one namespace of a cluster whose API server reaches this machine.

    Args:
        cluster: an embedded one.
        folder: for its certificate.
        namespace: whose objects it is asked about.
        answers: what it makes of an object, by its resource (``deployments``).
        operations: at which it is asked; ``CREATE`` and ``UPDATE`` without.
    """
    certify(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    class Webhook(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
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
    with serving_http(Webhook, tls=tls) as port:
        rule = {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "resources": sorted(answers),
            "operations": list(operations or ("CREATE", "UPDATE")),
        }
        webhook = {
            "name": "others.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "clientConfig": {
                "url": f"https://127.0.0.1:{port}/",
                "caBundle": base64.b64encode((folder / "tls.crt").read_bytes()).decode(),
            },
        }
        made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
        cluster.apply(made | {"webhooks": [webhook]})
        try:
            yield
        finally:
            cluster.request("DELETE", f"{WEBHOOKS[kind]}/{name}")


def _response(request: Json, answers: Mapping[str, Answer]) -> Json:
    said = answers[request["resource"]["resource"]](request["object"])
    if isinstance(said, str):
        return {"uid": request["uid"], "allowed": False, "status": {"message": said, "code": 403}}
    patch = base64.b64encode(json.dumps(list(said)).encode()).decode()
    return {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
