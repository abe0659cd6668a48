import base64
import json
import subprocess
from pathlib import Path

import pytest

from testcluster import certificates
from testcluster.certificates import Certificate
from testcluster.layout import Layout

ADDRESS, SERVER = "10.250.7.1", "https://10.250.7.1:6443"


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    layout = Layout(tmp_path_factory.mktemp("pki"), 7)
    certificates.issue(layout, ADDRESS, SERVER)
    return layout


def test_the_api_server_is_trusted_under_every_name_that_reaches_it() -> None:
    layout = Layout(Path("/tmp/a"), 7)
    names = {certificate.file: certificate.names for certificate in certificates.wanted(layout, ADDRESS)}["apiserver"]

    assert {"IP:127.0.0.1", f"IP:{ADDRESS}", f"IP:{layout.service_ip}", "DNS:kubernetes.default.svc"} <= set(names)


def test_the_kubelet_has_the_identity_that_the_node_authorizer_asks_for() -> None:
    wanted = {certificate.file: certificate for certificate in certificates.wanted(Layout(Path("/tmp/a"), 7), ADDRESS)}

    assert wanted["kubelet"].subject == "/O=system:nodes/CN=system:node:node-0"


def test_a_certificate_with_names_is_a_servers_and_one_without_is_a_clients() -> None:
    server = certificates.openssl_arguments(Certificate("s", "/CN=s", ("DNS:a", "IP:1.2.3.4")))
    client = certificates.openssl_arguments(Certificate("c", "/CN=c"))

    assert {"extendedKeyUsage=serverAuth", "subjectAltName=DNS:a,IP:1.2.3.4"} <= set(server)
    assert "extendedKeyUsage=clientAuth" in client
    assert not any("subjectAltName" in argument for argument in client)


def test_every_certificate_verifies_against_the_authority(issued: Layout) -> None:
    for certificate in certificates.wanted(issued, ADDRESS):
        purpose = "sslserver" if certificate.names else "sslclient"
        files = [issued.pki / "ca.crt", issued.pki / f"{certificate.file}.crt"]
        subprocess.run(["openssl", "verify", "-purpose", purpose, "-CAfile", *files], check=True, capture_output=True)


def test_a_kubeconfig_holds_all_that_its_user_needs_and_nobody_else_may_read_it(issued: Layout) -> None:
    path = issued.kubeconfig("admin")
    content = json.loads(path.read_text())

    assert content["clusters"][0]["cluster"]["server"] == SERVER
    authority = base64.b64decode(content["clusters"][0]["cluster"]["certificate-authority-data"])
    assert authority == (issued.pki / "ca.crt").read_bytes()
    key = base64.b64decode(content["users"][0]["user"]["client-key-data"])
    assert key == (issued.pki / "admin.key").read_bytes()
    assert path.stat().st_mode & 0o077 == 0
