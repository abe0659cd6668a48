"""The cluster's credentials: one authority, and a certificate for each server and each client.

Names and groups (CN and O) are those that Kubernetes itself gives a meaning: `system:masters` may do everything,
`system:node:NAME` in `system:nodes` is what the Node authorizer takes for a kubelet, and so on.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testcluster.layout import NODE_NAME, Layout
from testcluster.processes import run

DAYS = "365"


@dataclass(frozen=True)
class Certificate:
    """What a certificate says. One with `names` (subjectAltName entries) is a server's, one without is a client's."""

    file: str
    subject: str
    names: tuple[str, ...] = ()
    has_kubeconfig: bool = False


def wanted(layout: Layout, address: str) -> list[Certificate]:
    """The certificates of a cluster whose API server listens on `address`."""
    return [
        Certificate(
            "apiserver",
            "/CN=kube-apiserver",
            (
                "DNS:localhost",
                "DNS:kubernetes",
                "DNS:kubernetes.default",
                "DNS:kubernetes.default.svc",
                "DNS:kubernetes.default.svc.cluster.local",
                "IP:127.0.0.1",
                f"IP:{address}",
                f"IP:{layout.service_ip}",
            ),
        ),
        Certificate("kubelet-server", f"/CN={NODE_NAME}", (f"DNS:{NODE_NAME}", f"IP:{layout.node_ip}")),
        Certificate("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        Certificate("admin", "/O=system:masters/CN=admin", has_kubeconfig=True),
        Certificate("kube-controller-manager", "/CN=system:kube-controller-manager", has_kubeconfig=True),
        Certificate("kube-scheduler", "/CN=system:kube-scheduler", has_kubeconfig=True),
        Certificate("kube-proxy", "/CN=system:kube-proxy", has_kubeconfig=True),
        Certificate("kubelet", f"/O=system:nodes/CN=system:node:{NODE_NAME}", has_kubeconfig=True),
    ]


def openssl_arguments(certificate: Certificate) -> list[str]:
    """What `openssl req` is told about a certificate, beside keys and files."""
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        f"extendedKeyUsage={'serverAuth' if certificate.names else 'clientAuth'}",
    ]
    if certificate.names:
        extensions.append("subjectAltName=" + ",".join(certificate.names))
    return ["-subj", certificate.subject, *(part for extension in extensions for part in ("-addext", extension))]


def kubeconfig(server: str, user: str, authority: bytes, certificate: bytes, key: bytes) -> dict[str, Any]:
    """A kubeconfig with everything in it. Written as JSON, which every reader of YAML reads."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    name = "eagle3-test"
    cluster = {"server": server, "certificate-authority-data": encoded(authority)}
    credentials = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
    }


def issue(layout: Layout, address: str, server: str) -> None:
    """Writes all keys and certificates to `layout.pki`, and the kubeconfig of each client beside it."""
    pki = layout.pki
    pki.mkdir(mode=0o700)
    _certificate(pki, "ca", ["-subj", "/CN=eagle3-test-ca"])
    authority = ["-CA", str(pki / "ca.crt"), "-CAkey", str(pki / "ca.key")]
    for certificate in wanted(layout, address):
        _certificate(pki, certificate.file, [*openssl_arguments(certificate), *authority])
        if certificate.has_kubeconfig:
            parts = [pki / "ca.crt", pki / f"{certificate.file}.crt", pki / f"{certificate.file}.key"]
            content = kubeconfig(server, certificate.file, *(part.read_bytes() for part in parts))
            path = layout.kubeconfig(certificate.file)
            path.touch(mode=0o600)
            path.write_text(json.dumps(content, indent=1))
    key, public = pki / "service-accounts.key", pki / "service-accounts.pub"
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    run("openssl", "pkey", "-in", key, "-pubout", "-out", public)


def _certificate(pki: Path, file: str, arguments: list[str]) -> None:
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", pki / f"{file}.key")
    run("openssl", "req", "-x509", *new_key, "-days", DAYS, "-out", pki / f"{file}.crt", *arguments)
