"""What the chart's values say: the operator's own configuration, read once at start-up."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from eagle3_api.base import Model

#: The user that both images have: "nonroot" in distroless ones.
NOBODY = 65532


#: Of a pod, which others reach.
EVERYWHERE: Literal["0.0.0.0"] = "0.0.0.0"  # noqa: S104


class PrometheusServer(Model):
    """A Prometheus that objects may name in ``spec.watch.prometheus.name``."""

    url: str = Field(description="Such as http://prometheus.monitoring:9090.")
    token_file: str | None = Field(None, description="A mounted file with a bearer token.")
    ca_file: str | None = Field(None, description="A mounted file with the authorities of its certificate (PEM).")
    timeout_seconds: float = 10.0


class Settings(Model):
    """The operator's configuration. Every field has a default that suits a cluster."""

    draft_image: str = Field(
        "eagle3-draft:dev", description="Our small image: Inspect, Probe, and the wheel for the rest."
    )
    image_pull_policy: str = "IfNotPresent"
    user: int | None = Field(
        NOBODY,
        description="User, group and fsGroup of objects' pods that name none in their placement; None leaves them to the cluster.",
    )
    listen: Literal["0.0.0.0", "::"] = Field(  # noqa: S104
        EVERYWHERE,
        description='Where servers and the operator listen; "::" where pods have addresses of IPv6 alone, or first.',
    )
    prometheus: dict[str, PrometheusServer] = Field(default_factory=dict)
    allowed_service_accounts: list[str] = Field(
        default_factory=list, description="What objects may name in placement.serviceAccountName, in any namespace."
    )
    namespace: str | None = Field(None, description="Watch this namespace only; all of them without.")
    resync_seconds: float = Field(600.0, description="Every object is looked at anew at least so often.")
    surge_patience_seconds: float = Field(
        120.0,
        description="How long a candidate's pods may find no GPU beside the serving revision before it replaces it; and how long "
        "a pod that should have ended is waited for, because its node may be lost.",
    )
    poll_seconds: float = Field(10.0, description="How often a running Job's progress is read.")
    workers: int = Field(8, description="Reconciles in flight, of different objects.")
    metrics_port: int = 9095

    @property
    def liveness(self) -> str:
        """URL at which liveness probes are answered."""
        host = f"[{self.listen}]" if ":" in self.listen else self.listen
        return f"http://{host}:8080/healthz"

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """The settings in a YAML file (a ConfigMap's); the defaults where there is no such file."""
        return cls.model_validate(yaml.safe_load(path.read_text()) or {}) if path.exists() else cls()
