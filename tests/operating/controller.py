"""A real controller of somebody else's kinds, with its webhooks, against an API server of this machine."""

import base64
import contextlib
import copy
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from operating.process import free_ports
from operating.web import certify
from testcluster import AnyCluster, wait_for
from testcluster.build import binary
from testcluster.processes import Processes

Json = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS = {
    "MutatingWebhookConfiguration": f"{HOOKS}/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"{HOOKS}/validatingwebhookconfigurations",
}

#: What both controllers are told: they are alone, and their certificates are ours.
_ALONE = {
    "kind": "Configuration",
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": False},
    "metrics": {"bindAddress": "0"},
}

#: JobSet's own configuration.
JOBSET = {"apiVersion": "config.jobset.x-k8s.io/v1alpha1"} | _ALONE

#: Kueue's, with the integrations that docs/serving.md asks for.
KUEUE = _ALONE | {
    "apiVersion": "config.kueue.x-k8s.io/v1beta1",
    "featureGates": {"VisibilityOnDemand": False},
    "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "pod", "deployment"]},
}

#: Lays the certificate of the folder $1 at $2 in an /etc that only the program which follows sees.
_OWN_ETC = """
mount -t tmpfs tmpfs "$1/etc"
mkdir "$1/etc/upper" "$1/etc/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc/upper,workdir=$1/etc/work" /etc
mkdir -p "$2"
cp "$1/tls.crt" "$1/tls.key" "$2"
shift 2
exec "$@"
"""


class Controller:
    """A controller and its kinds. The API server reaches its webhooks on this machine, instead of through a Service.

    Args:
        cluster: an embedded one.
        folder: for its certificate, configuration and log.
        program: of ``testcluster.build``, which keeps its manifests beside it.
        configuration: its own, in its own words, but for ports and certificates.
        certificate_at: a folder below /etc, the only one in which it looks for the certificate of its metrics. It is not this
            machine's: the controller sees an /etc of its own, which needs root.
    """

    def __init__(
        self,
        cluster: AnyCluster,
        folder: Path,
        program: str,
        configuration: Mapping[str, Any],
        *,
        certificate_at: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._program = binary(program)
        self._configuration = configuration
        self._certificate_at = certificate_at
        manifests = [
            made for file in self._program.parent.glob("*.yaml") for made in yaml.safe_load_all(file.read_text())
        ]
        self._webhooks: list[Json] = [made for made in manifests if made["kind"] in WEBHOOKS]
        self._definitions: list[Json] = [made for made in manifests if made["kind"] == "CustomResourceDefinition"]

    def add_kinds(self) -> None:
        """Have the cluster serve its kinds."""
        self._cluster.apply(*self._definitions)
        for made in self._definitions:
            spec = made["spec"]
            served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            wait_for(f"{spec['names']['kind']} to be served", 30, partial(self._cluster.request, "GET", served))

    def remove_kinds(self) -> None:
        """Remove its kinds, and with them every object of theirs."""
        for made in self._definitions:
            self._cluster.request("DELETE", f"{DEFINITIONS}/{made['metadata']['name']}")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The controller at work and its webhooks in force."""
        port, health = free_ports(2)
        certify(self._folder)
        config = self._folder / "config.yaml"
        reached = {
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(self._folder)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        }
        config.write_text(yaml.safe_dump({**self._configuration, **reached}))
        processes = Processes(self._folder, self._folder, tied=True)
        name = self._program.name
        command: list[str | Path] = [self._program, "--config", config, "--kubeconfig", self._cluster.kubeconfig]
        processes.start(name, [*self._seeing_its_certificate(), *command])

        def ready() -> bool:
            processes.check()
            return httpx.get(f"http://127.0.0.1:{health}/readyz", timeout=5).status_code == httpx.codes.OK

        try:
            wait_for(f"{name} to be ready", 30, ready, tolerate=(httpx.HTTPError,))
            with self._in_force(port):
                yield
        finally:
            print(processes.log_end(name, lines=100))
            processes.end()

    def _seeing_its_certificate(self) -> list[str | Path]:
        if self._certificate_at is None:
            return []
        (self._folder / "etc").mkdir(exist_ok=True)
        return ["unshare", "--mount", "sh", "-ec", _OWN_ETC, "sh", self._folder, self._certificate_at]

    @contextlib.contextmanager
    def _in_force(self, port: int) -> Iterator[None]:
        """Its webhooks, which take pods of every namespace, and are gone before it is."""
        authority = base64.b64encode((self._folder / "tls.crt").read_bytes()).decode()
        made_here = copy.deepcopy(self._webhooks)
        for made in made_here:
            made["metadata"]["name"] = f"{self._program.name}-{made['metadata']['name']}"
            for webhook in made["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
        self._cluster.apply(*made_here)
        try:
            yield
        finally:
            for made in made_here:
                self._cluster.request("DELETE", f"{WEBHOOKS[made['kind']]}/{made['metadata']['name']}")
