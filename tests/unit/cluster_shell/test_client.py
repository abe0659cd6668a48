"""The client's credentials and errors, without a server. What a server answers is tested in tests/cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from eagle3_operator.cluster.client import ApiError, Client


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
