"""The client's credentials and errors. What an API server answers is tested in tests/cluster, but for what it seldom does."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from eagle3_api import KIND
from eagle3_operator.cluster.client import ApiError, Client, ConflictError, NotFoundError
from operating.web import serving_http


def in_cluster(folder: Path) -> tuple[Configuration, Path]:
    token, certificate = folder / "token", folder / "ca.crt"
    token.write_text("first")
    certificate.write_text("a certificate")
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    configuration = Configuration()
    loader = InClusterConfigLoader(str(token), str(certificate), environ=environment)
    loader.load_and_set(configuration)
    configuration.ssl_ca_cert = None
    return configuration, token


def test_requests_from_inside_a_pod_carry_the_service_accounts_token(tmp_path: Path) -> None:
    """A release of the client (36.0.0) sent none: everything was 401."""
    configuration, _ = in_cluster(tmp_path)
    assert configuration.auth_settings()
    _, _, headers, *_ = ApiClient(configuration).param_serialize("GET", "/version", auth_settings=["BearerToken"])
    assert headers["authorization"].lower() == "bearer first"


def test_the_api_server_is_asked_past_the_proxy_that_leads_to_a_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"items": []}')

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with serving_http(Nothing) as port:
        kubeconfig = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        assert Client.connect().find("Job", "llm", "a=b") == []


def test_an_api_server_that_is_away_is_an_error_that_names_the_request() -> None:
    configuration = Configuration(host="http://127.0.0.1:1")
    with pytest.raises(
        ApiError, match=r"GET /api/v1/namespaces/llm/pods/p: the API server cannot be reached"
    ) as caught:
        Client(configuration).get("Pod", "llm", "p")
    assert caught.value.status == 0


def test_a_client_that_is_closed_begins_nothing_new() -> None:
    client = Client(Configuration(host="http://127.0.0.1:1"))
    client.close()
    with pytest.raises(ApiError, match="the operator is stopping"):
        client.get("Pod", "llm", "p")


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda client: client.get("Pod", "llm", "p"), ("GET", "pods")),
        (lambda client: client.find("Job", "llm", "a=b"), ("GET", "jobs")),
        (lambda client: client.version("Deployment", None), ("GET", "deployments")),
        (lambda client: client.log("llm", "p", "main", lines=1), ("GET", "pods/log")),
        (lambda client: client.scale("llm", "d", 1), ("PATCH", "deployments/scale")),
    ],
)
def test_each_request_is_told_by_its_method_and_resource(
    ask: Callable[[Client], object], told: tuple[str, str]
) -> None:
    asked: list[tuple[str, str]] = []
    with pytest.raises(ApiError):
        ask(Client(Configuration(host="http://127.0.0.1:1"), asked=lambda *request: asked.append(request)))
    assert asked == [told]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.log("llm", "p", "main", lines=1),
        lambda client: client.delete("Job", "llm", {"name": "a", "uid": "1", "resourceVersion": "7"}),
        lambda client: client.replace_status(KIND, {"metadata": {"namespace": "llm", "name": "kimi"}}, {}),
    ],
    ids=["GET", "DELETE", "PUT"],
)
def test_a_request_that_was_sent_is_not_sent_again_by_itself(ask: Callable[[Client], object]) -> None:
    """It may have been obeyed, and whoever waited for its answer has waited long enough: the reconcile is tried again."""
    sent: list[str] = []

    class Silent(BaseHTTPRequestHandler):
        def parse_request(self) -> bool:
            super().parse_request()
            sent.append(self.command)
            return False

    with serving_http(Silent) as port, pytest.raises(ApiError, match="cannot be reached"):
        ask(Client(Configuration(host=f"http://127.0.0.1:{port}")))
    assert len(sent) == 1


@contextmanager
def answering(status: int, message: str, *causes: str) -> Iterator[Client]:
    """The client of a server that answers each request with this ``Status``."""
    said = {"kind": "Status", "message": message, "details": {"causes": [{"reason": cause} for cause in causes]}}

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        yield Client(Configuration(host=f"http://127.0.0.1:{server.server_port}"))


@pytest.mark.parametrize(
    ("status", "message", "causes", "kind", "refused"),
    [
        (403, 'jobs.batch "a" is forbidden: exceeded quota: few', (), ApiError, True),
        (403, 'jobs.batch "a" is forbidden: llm is being terminated', ("NamespaceTerminating",), NotFoundError, False),
        (404, 'namespaces "webhook-bot" not found', (), NotFoundError, False),
        (409, 'Operation cannot be fulfilled on jobs.batch "webhook-bot-r1"', (), ConflictError, False),
        (404, 'admission webhook "policy.example" denied the request: no such team', (), ApiError, True),
        (409, 'admission webhook "policy.example" denied the request: too late', (), ApiError, True),
    ],
)
def test_an_answer_is_a_refusal_unless_something_is_gone_or_has_changed(
    status: int, message: str, causes: tuple[str, ...], kind: type[ApiError], refused: bool
) -> None:
    manifest = {"kind": "Job", "metadata": {"namespace": "llm", "name": "a"}}
    with answering(status, message, *causes) as client, pytest.raises(ApiError) as caught:
        client.create(manifest)
    assert (type(caught.value), caught.value.refused) == (kind, refused)
