"""What a user has elsewhere, here as two pods: a hub to fetch from (a stand-in), a registry to push to (a real one, with a login)."""

import base64
import json
import urllib.request
from dataclasses import dataclass
from typing import Any

from hub import stand_in
from testbed import sign, tiny
from testbed.bed import Testbed
from testcluster import build

TARGET, DATASET = "acme/tiny-target", "acme/conversations"
HUB, REGISTRY = "hub", "registry"
#: The volume for what is fetched.
FETCHED = "fetched"
HUB_IMAGE, REGISTRY_IMAGE = "kit.local/hub:1", "kit.local/registry:1"
HUB_PORT, REGISTRY_PORT = 8000, 5000
REPOSITORY = "llm/tiny-eagle3"
SECRET, USER, PASSWORD = "registry-login", "robot", "secret:word"
SIGNER, KEY = "signer", "a key of the user's"
READY_SECONDS = 60

#: In the image of the hub, which has a Python.
_HUB, _SIGN = "/hub.py", "/sign.py"


@dataclass(frozen=True)
class Elsewhere:
    """Both, ready."""

    bed: Testbed

    @property
    def registry(self) -> str:
        """As pods call it."""
        return f"{REGISTRY}.{self.bed.namespace}:{REGISTRY_PORT}"

    def sections(self) -> dict[str, Any]:
        """Of the tiny object's spec, so that its target and its data come from the hub and its draft goes to the registry, signed."""
        spec = tiny.manifest()["spec"]
        data = {name: value for name, value in spec["data"].items() if name != "conversations"}
        oci = {"reference": f"{self.registry}/{REPOSITORY}", "secret": SECRET, "plainHttp": True}
        key = {"name": "SIGNING_KEY", "secretKeyRef": {"name": SIGNER, "key": "key"}}
        command = ["/usr/bin/python3", _SIGN, "$(EAGLE3_REFERENCE)"]
        hook = {"image": HUB_IMAGE, "command": command, "env": [key]}
        hub = {"name": "HF_ENDPOINT", "value": f"http://{HUB}.{self.bed.namespace}:{HUB_PORT}"}
        return {
            "target": {"model": TARGET},
            "data": {**data, "dataset": {"repository": DATASET}},
            "publish": {"oci": oci, "hook": hook},
            "storage": {**spec["storage"], "models": {"claim": FETCHED}},
            "placement": {**spec["placement"], "env": [hub]},
        }

    def pull(self, path: str) -> bytes:
        """What the registry gives to its user: ``manifests/<digest>``, ``blobs/<digest>``."""
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "*/*"}
        url = f"{self.bed.service_url(REGISTRY)}/v2/{REPOSITORY}/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content


def deploy(bed: Testbed) -> Elsewhere:
    """Run both and return when they are ready."""
    bed.cluster.add_volume(FETCHED, "1Gi")
    bed.cluster.claim(bed.namespace, FETCHED)
    bed.cluster.image(HUB_IMAGE, add=[(stand_in.__file__, _HUB), (sign.__file__, _SIGN)])
    bed.cluster.image(REGISTRY_IMAGE, add=[(build.binary("registry"), "/registry")])
    shown = [f"models/{TARGET}=/models/tiny-target", f"datasets/{DATASET}=/data/train.jsonl"]
    login = ["-user", USER, "-password", PASSWORD]
    manifests = [
        *_server(HUB, HUB_IMAGE, ["/usr/bin/python3", _HUB, str(HUB_PORT), *shown], HUB_PORT, ["models", "data"]),
        *_server(REGISTRY, REGISTRY_IMAGE, ["/registry", "-listen", f":{REGISTRY_PORT}", *login], REGISTRY_PORT, []),
    ]
    bed.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    made = Elsewhere(bed)
    bed.kubectl(
        *("create", "secret", "docker-registry", SECRET, f"--docker-server={made.registry}"),
        *(f"--docker-username={USER}", f"--docker-password={PASSWORD}"),
    )
    bed.kubectl("create", "secret", "generic", SIGNER, f"--from-literal=key={KEY}")
    bed.kubectl("wait", "--for=condition=Ready", f"--timeout={READY_SECONDS}s", f"pod/{HUB}", f"pod/{REGISTRY}")
    return made


def _server(name: str, image: str, command: list[str], port: int, claims: list[str]) -> list[dict[str, Any]]:
    """A pod that listens, with these claims to read from, and its Service."""
    metadata = {"name": name, "labels": {"app": name}}
    container = {
        "name": name,
        "image": image,
        "command": command,
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "volumeMounts": [{"name": claim, "mountPath": f"/{claim}", "readOnly": True} for claim in claims],
    }
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}} for claim in claims]
    pod = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": port}]},
        },
    ]
