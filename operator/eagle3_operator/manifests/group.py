"""Pods that train together: one Indexed Job of them, and a headless Service through which they know each other by name.

Where the cluster serves JobSets the Job is made by one, and the Service too: so that whoever queues, places and watches a
cluster's trainings as JobSets has ours among them. Elsewhere both are made here. Nothing else differs: it is the same Job,
with our labels, found and judged in the same way.

The restart of the group is nobody's business. Where one pod is lost the collectives of all others fail, every pod ends with a
code that may be tried again, and the Job starts each anew under its old name. They meet in the first pod, which goes last.
"""

from collections.abc import Collection

from eagle3_api.jobs import MEETING_PORT, StageName, TrainConfig
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests import jobs, names
from eagle3_operator.settings import Settings

#: What a JobSet calls the replicas of its one Job.
REPLICATED_JOB = "nodes"

#: What Kubernetes adds to the host name of a Job's pod for the pod's own, which JobSet wants to be a label of the DNS too.
_SUFFIX = "-abcde"
_LABEL_CHARACTERS = 63


def launched(
    obj: Eagle3Draft, settings: Settings, config: TrainConfig, *, jobsets: bool, one_node: Collection[str] = ()
) -> tuple[Manifest, ...]:
    """What is made for a training of several pods, in this order.

    Args:
        obj: the object.
        settings: of the operator.
        config: of the training, without the names of its pods.
        jobsets: whether the cluster serves JobSets. An object whose name is too long for a JobSet's pods goes without.
        one_node: claims that only one node can have at a time.
    """
    name, nodes = names.job_name(obj.metadata.name, StageName.TRAIN, config.key), obj.spec.train.nodes
    by_jobset = _hosts(job_of(name), nodes)
    if jobsets and len(by_jobset[-1] + _SUFFIX) <= _LABEL_CHARACTERS:
        return (_jobset(_job(obj, settings, config, by_jobset, one_node, subdomain=name)),)
    service = _service(obj)
    return service, _job(obj, settings, config, _hosts(name, nodes), one_node, subdomain=service["metadata"]["name"])


def job_of(jobset: str) -> str:
    """The name of the one Job of a JobSet."""
    return f"{jobset}-{REPLICATED_JOB}-0"


def _hosts(job: str, nodes: int) -> list[str]:
    """The host names that Kubernetes gives to the pods of an Indexed Job, in the order of their index."""
    return [f"{job}-{index}" for index in range(nodes)]


def _job(
    obj: Eagle3Draft,
    settings: Settings,
    config: TrainConfig,
    hosts: list[str],
    one_node: Collection[str],
    *,
    subdomain: str,
) -> Manifest:
    told = config.model_copy(update={"hosts": [f"{host}.{subdomain}" for host in hosts]})
    made = jobs.job(obj, settings, config=told, one_node=one_node)
    made["spec"]["template"]["spec"]["subdomain"] = subdomain
    return made


def _jobset(job: Manifest) -> Manifest:
    """A JobSet of this Job alone, which names, suspends and owns it. Only the JobSet is in a queue."""
    spec = {name: value for name, value in job["spec"].items() if name != "suspend"}
    labels = {name: value for name, value in job["metadata"]["labels"].items() if name != names.QUEUE_LABEL}
    return {
        "apiVersion": names.JOBSET_API,
        "kind": "JobSet",
        "metadata": job["metadata"],
        "spec": {
            "suspend": job["spec"]["suspend"],
            # It names the Service, and the pods' subdomain, after itself.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # A Job that has failed stays as it is, for its words to be read; what is tried again, and when, is ours to say.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": REPLICATED_JOB,
                    "replicas": 1,
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                }
            ],
        },
    }


def _service(obj: Eagle3Draft) -> Manifest:
    """The headless Service. It has names for pods that are not ready too: that is when they look for each other."""
    name = obj.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(obj, f"{name}-train-nodes", labels=names.labels(name, stage=StageName.TRAIN)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.NAME_LABEL: name, names.STAGE_LABEL: str(StageName.TRAIN)},
            "ports": [{"name": "meeting", "port": MEETING_PORT, "protocol": "TCP"}],
        },
    }
