"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, each a process of this machine."""

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testcluster.layout import Layout
from testcluster.processes import Processes
from testcluster.wait import wait_for

# Otherwise the controller manager is held to 20 requests a second and the scheduler to 50.
FAST = ("--kube-api-qps=500", "--kube-api-burst=1000")
NOT_YET = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Ports:
    """One port on this machine for each server."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int

    @classmethod
    def free(cls) -> "Ports":
        """Ports that nobody uses now. Another process may take one before its server does, which then ends."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
            return cls(*(s.getsockname()[1] for s in sockets))


def arguments(layout: Layout, ports: Ports, address: str, *, with_node: bool) -> dict[str, list[str]]:
    """The command line of each program, by name, in the order in which they start."""
    pki = layout.pki
    etcd, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return {
        "etcd": [
            f"--data-dir={layout.folder}/etcd",
            "--unsafe-no-fsync",  # nothing here outlives the machine
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd}",
            f"--bind-address={address}",
            f"--advertise-address={address}",
            f"--secure-port={ports.apiserver}",
            f"--service-cluster-ip-range={layout.service_network}",
            "--allow-privileged",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki}/service-accounts.pub",
            f"--service-account-signing-key-file={pki}/service-accounts.key",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            # A loopback address may not stand in the endpoints of the Service `kubernetes`.
            f"--endpoint-reconciler-type={'lease' if with_node else 'none'}",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports.controller_manager}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--pvclaimbinder-sync-period=1s",  # a claim made as its volume becomes known waits for the next of these
            "--horizontal-pod-autoscaler-sync-period=2s",  # an autoscaler begins to work after one of these
            f"--service-account-private-key-file={pki}/service-accounts.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            *FAST,
        ],
        "kube-scheduler": [
            f"--kubeconfig={layout.kubeconfig('kube-scheduler')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports.scheduler}",
            "--leader-elect=false",
            *FAST,
        ],
    }


def start(processes: Processes, kube: Path, layout: Layout, ports: Ports, address: str, *, with_node: bool) -> None:
    """Starts the control plane and returns when it takes objects and schedules pods.

    Raises ProcessEndedError when a program ends instead.
    """
    commands = arguments(layout, ports, address, with_node=with_node)

    def begin(name: str) -> None:
        processes.start(name, [kube, name, *commands[name]])

    def wait(what: str, answers: Callable[[], bool]) -> None:
        def check() -> bool:
            processes.check()
            return answers()

        wait_for(what, 120, check, tolerate=NOT_YET)

    begin("etcd")
    begin("kube-apiserver")
    wait("kube-apiserver", lambda: _answers(layout, address, ports.apiserver, "/readyz"))
    begin("kube-controller-manager")
    begin("kube-scheduler")
    # A pod is refused until its namespace has this account.
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    wait("the default service account", lambda: _answers(layout, address, ports.apiserver, account))
    wait("kube-scheduler", lambda: _answers(layout, "127.0.0.1", ports.scheduler, "/healthz"))


def _answers(layout: Layout, address: str, port: int, path: str) -> bool:
    """Whether a server answers with 200. Whose certificate it shows does not matter: the scheduler's is self-signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
    connection = http.client.HTTPSConnection(address, port, context=context, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status == 200
