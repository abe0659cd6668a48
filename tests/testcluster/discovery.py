"""Tells Prometheus which pods to scrape, as a program of its own beside it: `discovery.py targets.json`.

Debian's Prometheus is built without Kubernetes service discovery. This does the small part of it that is needed, with
the standard library alone: it lists all pods each second, and writes those that ask to be scraped to a file that
Prometheus watches (`file_sd_configs`).
"""

import json
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANNOTATION = "prometheus.io"
PAUSE = 1.0  # seconds


def targets(pods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The target groups of a file for `file_sd_configs`: one for each pod that asks, has an address and has not ended."""
    groups = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        asked = metadata.get("annotations") or {}
        address, port = status.get("podIP"), asked.get(f"{ANNOTATION}/port", "80")
        ended = status.get("phase") in ("Succeeded", "Failed")
        if asked.get(f"{ANNOTATION}/scrape") != "true" or not address or ended:
            continue
        labels = {
            "namespace": metadata["namespace"],
            "pod": metadata["name"],
            "__metrics_path__": asked.get(f"{ANNOTATION}/path", "/metrics"),
        }
        groups.append({"targets": [f"{address}:{port}"], "labels": labels})
    return sorted(groups, key=lambda group: json.dumps(group))


def list_pods() -> list[dict[str, Any]]:
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    token = (CREDENTIALS / "token").read_text()
    # resourceVersion 0: from the API server's memory
    request = urllib.request.Request(  # noqa: S310 - the scheme is written above
        f"{server}/api/v1/pods?resourceVersion=0", headers={"Authorization": f"Bearer {token}"}
    )
    context = ssl.create_default_context(cafile=str(CREDENTIALS / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
        items: list[dict[str, Any]] = json.load(answer)["items"]
        return items


def main() -> None:
    path = Path(sys.argv[1])
    written = None
    while True:
        try:
            content = json.dumps(targets(list_pods()), indent=1)
        except OSError as error:  # the API server will be back; until then the last targets are the best known
            print(f"pods not listed: {error}", file=sys.stderr, flush=True)
        else:
            if content != written:
                partial = path.with_suffix(".partial")
                partial.write_text(content)
                partial.replace(path)
                written = content
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
