"""What a user has elsewhere, here as three pods: a hub to fetch from (a stand-in), a registry and an object store (real ones, with logins)."""

import base64
import hashlib
import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_api.artifacts import MANIFEST
from eagle3_api.manifest import File
from eagle3_draft.publish.draft import Draft
from eagle3_draft.publish.store import manifest_of
from hub import stand_in
from testbed import foreign, sign, tiny
from testbed.bed import Testbed
from testcluster import build

#: Of the hub; the draft is one that another trainer left, in its own layout.
TARGET, DATASET, DRAFT = "acme/tiny-target", "acme/conversations", "acme/tiny-eagle3"
HUB, REGISTRY, STORE = "hub", "registry", "store"
#: The volume for what is fetched, and that of the object store.
FETCHED, OBJECTS = "fetched", "objects"
HUB_IMAGE, REGISTRY_IMAGE, STORE_IMAGE = "kit.local/hub:1", "kit.local/registry:1", "kit.local/store:1"
HUB_PORT, REGISTRY_PORT, STORE_PORT = 8000, 5000, 7070
REPOSITORY = "llm/tiny-eagle3"
SECRET, USER, PASSWORD = "registry-login", "robot", "secret:word"
BUCKET, PREFIX, SCRATCH, BUCKET_LOGIN = "drafts", "tiny", "scratch", "bucket-login"
KEYS = {"AWS_ACCESS_KEY_ID": "eagle3", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
SIGNER, KEY = "signer", "a key of the user's"
READY_SECONDS = 60

#: In the image of the hub, which has a Python.
_HUB, _SIGN = "/hub.py", "/sign.py"


@dataclass(frozen=True)
class Elsewhere:
    """All of them, ready."""

    bed: Testbed

    @property
    def registry(self) -> str:
        """As pods call it."""
        return f"{REGISTRY}.{self.bed.namespace}:{REGISTRY_PORT}"

    def sections(self) -> dict[str, Any]:
        """Of the tiny object's spec: its target and its data come from the hub, its features lie in the bucket, and its draft goes to the
        registry, signed, and to the bucket."""
        spec = tiny.manifest()["spec"]
        data = {name: value for name, value in spec["data"].items() if name != "conversations"}
        oci = {"reference": f"{self.registry}/{REPOSITORY}", "secret": SECRET, "plainHttp": True}
        key = {"name": "SIGNING_KEY", "secretKeyRef": {"name": SIGNER, "key": "key"}}
        command = ["/usr/bin/python3", _SIGN, "$(EAGLE3_REFERENCE)"]
        hook = {"image": HUB_IMAGE, "command": command, "env": [key]}
        store = f"http://{STORE}.{self.bed.namespace}:{STORE_PORT}"
        bucket = {"url": f"s3://{BUCKET}/{PREFIX}", "endpoint": store, "secret": BUCKET_LOGIN}
        features = {"objectStore": bucket | {"url": f"s3://{BUCKET}/{SCRATCH}", "cache": "1Gi"}}
        env: list[dict[str, Any]] = [
            {"name": "HF_ENDPOINT", "value": f"http://{HUB}.{self.bed.namespace}:{HUB_PORT}"},
            {"name": "AWS_ENDPOINT_URL", "value": store},
            *({"name": name, "secretKeyRef": {"name": BUCKET_LOGIN, "key": name}} for name in KEYS),
        ]
        return {
            "target": {"model": TARGET},
            "data": {**data, "dataset": {"repository": DATASET}},
            "publish": {"oci": oci, "objectStore": bucket, "hook": hook},
            "storage": {**spec["storage"], "features": features, "models": {"claim": FETCHED}},
            "placement": {**spec["placement"], "env": env},
        }

    def stored(self, address: str) -> dict[str, bytes]:
        """What lies in the bucket under an address, by its path there."""
        folder = self._objects / address.removeprefix(f"s3://{BUCKET}/")
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def keep(self, draft: Path, target: str) -> str:
        """Lay a draft into the bucket as an object of another cluster would have; returns its address.

        Args:
            draft: its folder.
            target: what it says that it was trained for, a digest.
        """
        content = {path.name: path.read_bytes() for path in sorted(draft.iterdir())}
        files = [
            File(path=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in content.items()
        ]
        about = {"digest": hashlib.sha256(b"".join(content.values())).hexdigest(), "target": target}
        manifest = manifest_of(Draft(draft, tuple(files), about, {}))
        name = f"{PREFIX}/sha256-{hashlib.sha256(manifest).hexdigest()}"
        (self._objects / name).mkdir(parents=True)
        for path, data in (content | {MANIFEST: manifest}).items():
            (self._objects / name / path).write_bytes(data)
        return f"s3://{BUCKET}/{name}"

    @property
    def _objects(self) -> Path:
        """The bucket's folder on this machine: an object is a file."""
        return self.bed.folder(OBJECTS) / BUCKET

    def pull(self, path: str) -> bytes:
        """What the registry gives to its user: ``manifests/<digest>``, ``blobs/<digest>``."""
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "*/*"}
        url = f"{self.bed.service_url(REGISTRY)}/v2/{REPOSITORY}/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content


def deploy(bed: Testbed) -> Elsewhere:
    """Run all three and return when they are ready."""
    for volume in (FETCHED, OBJECTS):
        bed.cluster.add_volume(volume, "1Gi")
        bed.cluster.claim(bed.namespace, volume)
    foreign.published(bed.folder("data") / "foreign-draft")
    (bed.folder(OBJECTS) / BUCKET).mkdir()
    bed.cluster.image(HUB_IMAGE, add=[(stand_in.__file__, _HUB), (sign.__file__, _SIGN)])
    bed.cluster.image(REGISTRY_IMAGE, add=[(build.binary("registry"), "/registry")])
    bed.cluster.image(STORE_IMAGE, add=[(build.binary("versitygw"), "/versitygw")])
    made = Elsewhere(bed)
    bed.kubectl(
        *("create", "secret", "docker-registry", SECRET, f"--docker-server={made.registry}"),
        *(f"--docker-username={USER}", f"--docker-password={PASSWORD}"),
    )
    bed.kubectl("create", "secret", "generic", SIGNER, f"--from-literal=key={KEY}")
    keys = [f"--from-literal={name}={value}" for name, value in KEYS.items()]
    bed.kubectl("create", "secret", "generic", BUCKET_LOGIN, *keys)
    shown = [
        f"models/{TARGET}=/models/tiny-target",
        f"models/{DRAFT}=/data/foreign-draft",
        f"datasets/{DATASET}=/data/train.jsonl",
    ]
    login = ["-user", USER, "-password", PASSWORD]
    roots = [
        {"name": f"ROOT_{theirs}", "valueFrom": {"secretKeyRef": {"name": BUCKET_LOGIN, "key": ours}}}
        for theirs, ours in (("ACCESS_KEY", "AWS_ACCESS_KEY_ID"), ("SECRET_KEY", "AWS_SECRET_ACCESS_KEY"))
    ]
    manifests = [
        *_server(HUB, HUB_IMAGE, ["/usr/bin/python3", _HUB, str(HUB_PORT), *shown], HUB_PORT, reads=["models", "data"]),
        *_server(REGISTRY, REGISTRY_IMAGE, ["/registry", "-listen", f":{REGISTRY_PORT}", *login], REGISTRY_PORT),
        *_server(
            *(STORE, STORE_IMAGE, ["/versitygw", "--port", f":{STORE_PORT}", "posix", f"/{OBJECTS}"], STORE_PORT),
            writes=[OBJECTS],
            env=roots,
        ),
    ]
    bed.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    pods = [f"pod/{name}" for name in (HUB, REGISTRY, STORE)]
    bed.kubectl("wait", "--for=condition=Ready", f"--timeout={READY_SECONDS}s", *pods)
    return made


def _server(
    name: str,
    image: str,
    command: list[str],
    port: int,
    *,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    env: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """A pod that listens, with these claims to read from and to write to, and its Service."""
    metadata = {"name": name, "labels": {"app": name}}
    claims = dict.fromkeys(reads, True) | dict.fromkeys(writes, False)
    container = {
        "name": name,
        "image": image,
        "command": command,
        "env": env,
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "volumeMounts": [{"name": claim, "mountPath": f"/{claim}", "readOnly": only} for claim, only in claims.items()],
    }
    volumes = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": only}}
        for claim, only in claims.items()
    ]
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
