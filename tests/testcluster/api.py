"""Any request to an API server, with the credentials of a kubeconfig, on plain JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

__all__ = ["MERGE_PATCH", "Api", "ApiException"]

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "eagle3-testcluster"
TIMEOUT = 60  # seconds, for one request


class Api:
    """The API server that a kubeconfig's current context names."""

    def __init__(self, kubeconfig: Path) -> None:
        settings = client.Configuration()
        load: Any = config.load_kube_config  # the package has no types
        load(str(kubeconfig), client_configuration=settings, persist_config=False)
        self.server: str = settings.host
        self._client: Any = client.ApiClient(settings)
        self._resources: dict[str, dict[str, Any]] = {}

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Sends a request and returns the JSON of the answer, or its text if it is none; raises ApiException."""
        headers = {"Content-Type": content_type, "Accept": "application/json, */*"}
        if body is not None and content_type == APPLY_PATCH:
            body = json.dumps(body)
        call = self._client.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        response = self._client.call_api(*call, _request_timeout=TIMEOUT)
        text = response.read().decode()
        if not 200 <= response.status < 300:
            raise ApiException.from_response(http_resp=response, body=text, data=None)
        if "json" in (response.headers.get("Content-Type") or ""):
            return json.loads(text)
        return text

    def apply(self, manifest: Mapping[str, Any]) -> Any:
        """Server-side apply of one object."""
        path = f"{self.path_of(manifest)}?fieldManager={FIELD_MANAGER}&force=true"
        return self.request("PATCH", path, dict(manifest), APPLY_PATCH)

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """The path of the object that a manifest names."""
        version, metadata = manifest["apiVersion"], manifest["metadata"]
        resource = self._resource(version, manifest["kind"])
        parts = ["apis" if "/" in version else "api", version]
        if resource["namespaced"]:
            parts += ["namespaces", metadata.get("namespace", "default")]
        return "/" + "/".join([*parts, resource["name"], metadata["name"]])

    def _resource(self, version: str, kind: str) -> dict[str, Any]:
        key = f"{version} {kind}"
        if key not in self._resources:
            listed = self.request("GET", f"/{'apis' if '/' in version else 'api'}/{version}")["resources"]
            for resource in listed:
                if "/" not in resource["name"]:
                    self._resources[f"{version} {resource['kind']}"] = resource
        if key not in self._resources:
            raise LookupError(f"{self.server} has no {kind} in {version}")
        return self._resources[key]
