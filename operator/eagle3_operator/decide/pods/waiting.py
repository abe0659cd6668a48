"""What keeps a pod from being started, in the words of whoever keeps it, and what a person can do about it."""

import re
from collections.abc import Iterable
from datetime import datetime

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_operator.decision import Because
from eagle3_operator.manifests.servers import BEFORE_THE_CONTAINER
from eagle3_operator.observation import Pod

#: What a container waits for when its image does not come.
_PULL_TROUBLE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_BAD_START = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})

#: What a person can do about a pod that has a place and does not run.
_ADVICE = {
    Reason.IMAGE_PULL: "Correct the image, or name its Secret in placement.imagePullSecrets",
    Reason.INVALID_CONFIGURATION: "Create the Secret or ConfigMap that it names, or correct placement; where it names none, correct the image",
    Reason.POD_NOT_STARTED: "Its Events say why (kubectl get events): a volume that cannot be mounted, or that is attached to another "
    "node (use ReadWriteMany, or one node for both with placement.nodeSelector); a network fault; an image that downloads slowly",
    Reason.HELD_BY_SIDECAR: "Have it injected as a native sidecar (an init container with restartPolicy: Always), or turn its "
    "injection off with placement.labels or placement.annotations",
}

#: What a pod waits for comes within so long, or hardly any more without a person: the end of others' work, for a place; its start on
#: the node, or its end there.
PLACE_SECONDS, _NODE_SECONDS = 86_400.0, 7200.0

#: What follows in the scheduler's words speaks of pods that would have to go for this one. It tells nothing about why this one has no place.
_AFTERTHOUGHT = re.compile(r"[.,]? *(no new claims to deallocate,? *)?preemption:.*|(?<=\.) not found\.?$", re.DOTALL)

#: What causes are told by, and what to do. Of several each is told, because each keeps the pod from a node.
#: The words are those of Kubernetes' scheduler plugins (VolumeBinding, VolumeRestrictions, InterPodAffinity,
#: NodeResourcesFit, NodeAffinity, TaintToleration).
_CAUSES = (
    (
        r'persistentvolumeclaim "([^"]+)" not found',
        "Create the claim {0}, or correct its name in placement.volumes",
    ),
    (
        r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes",
        "kubectl get pvc shows which claim is not bound, kubectl describe pvc why: no volume, no storage class, no room",
    ),
    (
        r"volume node affinity conflict",
        "The claims of one pod lie on different nodes: use claims that one node, or every node, can mount",
    ),
    (
        r"didn't match pod affinity rules",
        "A ReadWriteOnce claim holds its object's pods to one node: use ReadWriteMany, free that node, or correct placement.affinity",
    ),
    (
        r"pods? anti-affinity rules",
        "Correct the podAntiAffinity in placement.affinity: what mounts a ReadWriteOnce claim cannot be kept apart",
    ),
    (
        r"ReadWriteOncePod access mode",
        "Only one pod at a time can mount a ReadWriteOncePod claim: use ReadWriteMany, or ReadWriteOnce where one node is enough",
    ),
    (
        r"Insufficient ([-a-z0-9.]+/[-\w.]*[-\w])",
        "Free {0}, ask for fewer, or correct placement.gpuResource: kubectl describe nodes lists what each node offers",
    ),
    (
        r"Insufficient (cpu|memory)",
        "Free {0} on the nodes, or ask for less in placement.{0}",
    ),
    (
        r"didn't match Pod's node affinity/selector",
        "Correct placement.nodeSelector or affinity: kubectl get nodes --show-labels lists their labels",
    ),
    (
        r"untolerated taint",
        "Add the taint to placement.tolerations if the pods may run there",
    ),
)
_OTHERWISE = "Free GPUs or quota, or correct placement"


def held_up(pods: Iterable[Pod], now: datetime) -> Because | None:
    """What keeps one of these from being started: its image, what its container is to be made of, no place for it, its node."""
    pods = tuple(pods)
    for troubles, reason in ((_PULL_TROUBLE, Reason.IMAGE_PULL), (_BAD_START, Reason.INVALID_CONFIGURATION)):
        if waiting := next((pod for pod in pods if pod.waiting_reason in troubles), None):
            return Because(reason, f"pod {waiting.name}: {waiting.waiting_reason}: {waiting.waiting_message}")
    if (pod := unplaced(pods)) is None:
        return _lingering(pods, now)
    if pod.queue is not None:
        return Because(Reason.QUEUED, f"pod {pod.name} waits for quota in queue {pod.queue}")
    return Because(Reason.UNSCHEDULABLE, no_node(pod))


def time_left(pod: Pod, now: datetime) -> float | None:
    """Seconds until a pod that has a node is told of as not started there, below 0 since; None of one that does not wait for that."""
    if not pod.on_its_way or pod.placed_at is None:
        return None
    return BEFORE_THE_CONTAINER - (now - pod.placed_at).total_seconds()


def overdue(pod: Pod, now: datetime) -> bool:
    """Whether a pod has waited for so long that a person should look: for a place, on its node to be started, or there to end."""
    if pod.terminating:
        return False
    if pod.held_by is not None or pod.on_its_way:
        since, allowed = pod.finished_at if pod.held_by is not None else pod.placed_at, _NODE_SECONDS
    elif (pod.unschedulable is not None or pod.queue is not None) and not pod.started:
        since, allowed = pod.unschedulable_since or pod.created_at, PLACE_SECONDS
    else:
        return False
    return since is not None and (now - since).total_seconds() > allowed


def _lingering(pods: Iterable[Pod], now: datetime) -> Because | None:
    """A pod that has had its node for so long, and whose container was not started there: the kubelet says why in Events only."""
    for pod in pods:
        if pod.placed_at and (left := time_left(pod, now)) is not None and left < 0:
            said = f"pod {pod.name} was scheduled to node {pod.node} at {times.text(pod.placed_at)}, but its container has not started"
            return Because(Reason.POD_NOT_STARTED, f"{said}: {pod.kept_from}" if pod.kept_from else said)
    return None


def unplaced(pods: Iterable[Pod]) -> Pod | None:
    """The pod that the scheduler finds no node for, or that a queue holds back; the longest waiting first."""
    unplaced = [pod for pod in pods if pod.unschedulable is not None or pod.queue is not None]
    waiting = [pod for pod in unplaced if not pod.started and not pod.terminating]
    return min(waiting, key=lambda pod: pod.unschedulable_since or pod.created_at, default=None)


def no_node(pod: Pod) -> str:
    """That a pod finds no node, in the scheduler's words."""
    return f"pod {pod.name} finds no node: {_AFTERTHOUGHT.sub('', pod.unschedulable or '')}"


def advised(waiting: Because) -> Because:
    """The same, with what a person can do about it."""
    said = waiting.message
    told = advice(said) if waiting.reason is Reason.UNSCHEDULABLE else _ADVICE.get(waiting.reason)
    return waiting._replace(message=f"{said.rstrip('. ')}. {told}.") if told else waiting


def advice(said: str) -> str:
    """What to do about a pod without a place, by what is said of it."""
    told = dict.fromkeys(text.format(*found.groups()) for cause, text in _CAUSES if (found := re.search(cause, said)))
    return ". ".join(told) or _OTHERWISE
