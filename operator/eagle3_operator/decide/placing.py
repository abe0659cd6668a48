"""Why the scheduler finds no node for a pod: its own words, and what a person can do about each cause that they name."""

import re

from eagle3_operator.observation import Pod

#: What follows speaks of pods that would have to go for this one. It tells nothing about why this one has no place.
_AFTERTHOUGHT = re.compile(r"[.,]? *(no new claims to deallocate,? *)?preemption:.*|(?<=\.) not found\.?$", re.DOTALL)

#: What causes are told by, and what to do. Of a message with several each is told, because each keeps the pod from a node.
#: The words are those of Kubernetes' scheduler plugins (VolumeBinding, NodeResourcesFit, NodeAffinity, TaintToleration).
_CAUSES = (
    (
        r'persistentvolumeclaim "([^"]+)" not found',
        "Make the claim {0}, or correct its name in placement.volumes",
    ),
    (
        r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes",
        "kubectl get pvc shows which claim is not bound, kubectl describe pvc why: no volume, no class of storage, no room",
    ),
    (
        r"volume node affinity conflict",
        "The claims of one pod lie on different nodes: use claims that one node, or every node, can mount",
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
        "Correct placement.nodeSelector or affinity: kubectl get nodes --show-labels lists the labels that there are",
    ),
    (
        r"untolerated taint",
        "Name the taint in placement.tolerations if the pods may run there",
    ),
)
_OTHERWISE = "Free GPUs or quota, or correct placement"


def no_node(pod: Pod) -> str:
    """That a pod finds no node, in the scheduler's words."""
    return f"pod {pod.name} finds no node: {_AFTERTHOUGHT.sub('', pod.unschedulable or '')}"


def advice(said: str) -> str:
    """What to do about a pod without a place, by what is said of it."""
    told = dict.fromkeys(text.format(*found.groups()) for cause, text in _CAUSES if (found := re.search(cause, said)))
    return ". ".join(told) or _OTHERWISE
