"""Pods that train together: an Indexed Job, and a headless Service through which its pods know each other by name.

A plain Indexed Job is enough. JobSet would make the same two objects and must be installed first; what it adds, the restart of
a whole group, comes by itself here: where one pod is lost the collectives of all others fail, every pod ends with a code
that may be tried again, and the Job starts each anew under its old name. They meet in the first pod, which goes last.
"""

from eagle3_api.jobs import MEETING_PORT, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests import names


def service_name(name: str) -> str:
    """The Service of an object's training pods: their subdomain."""
    return f"{name}-train-nodes"


def hosts(obj: Eagle3Draft, key: str) -> list[str]:
    """The names of the pods of the training with this key, in the order of their index; none where there is one pod.

    Kubernetes gives the pods of an Indexed Job the host name ``<job>-<index>``.
    """
    nodes = obj.spec.train.nodes
    if nodes == 1:
        return []
    job = names.job_name(obj.metadata.name, StageName.TRAIN, key)
    return [f"{job}-{index}.{service_name(obj.metadata.name)}" for index in range(nodes)]


def service(obj: Eagle3Draft) -> Manifest:
    """The headless Service. It has names for pods that are not ready too: that is when they look for each other."""
    name = obj.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(obj, service_name(name), labels=names.labels(name, stage=StageName.TRAIN)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.NAME_LABEL: name, names.STAGE_LABEL: str(StageName.TRAIN)},
            "ports": [{"name": "meeting", "port": MEETING_PORT, "protocol": "TCP"}],
        },
    }
