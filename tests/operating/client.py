"""The operator's own client of a test cluster."""

from pathlib import Path

import kubernetes.config
from kubernetes.client import Configuration

from eagle3_operator.cluster.client import Client


def client_of(kubeconfig: Path, kind: type[Client] = Client) -> Client:
    """A client, or one of a kind that a test made, with the credentials of a kubeconfig."""
    configuration = Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    return kind(configuration)
