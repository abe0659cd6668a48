"""What a person is told of a pod that finds no node. The scheduler's words are those of Kubernetes 1.34."""

from datetime import UTC, datetime

import pytest

from eagle3_operator.decide.pods.waiting import advice, no_node
from eagle3_operator.observation import Pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NONE_TO_PREEMPT = (
    "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)


def said(words: str) -> str:
    return no_node(Pod("p", NOW, unschedulable=words))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ('0/1 nodes are available: persistentvolumeclaim "modles" not found. not found', "Create the claim modles"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found", "kubectl get pvc"),
        (f"0/1 nodes are available: 1 Insufficient nvidia.com/gpus. {NONE_TO_PREEMPT}", "Free nvidia.com/gpus, ask"),
        (f"0/3 nodes are available: 3 Insufficient memory. {NONE_TO_PREEMPT}", "ask for less in placement.memory"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "--show-labels"),
        ("0/2 nodes are available: 2 node(s) had untolerated taint {gpu: only}.", "placement.tolerations"),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", "lie on different nodes"),
        (
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match pod affinity rules.",
            "A ReadWriteOnce claim holds its object's pods to one node: use ReadWriteMany",
        ),
        ("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.", "podAntiAffinity in placement"),
        ("0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules.", "podAntiAffinity"),
        (
            "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use.",
            "Only one pod at a time can mount a ReadWriteOncePod claim",
        ),
        ("0/2 nodes are available", "Free GPUs or quota, or correct placement"),
    ],
)
def test_each_cause_is_told_with_what_to_do_about_it(words: str, told: str) -> None:
    assert told in advice(said(words))


def test_of_several_causes_each_is_told_once() -> None:
    words = "0/4 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu, 1 Insufficient nvidia.com/gpu."
    told = advice(said(words))
    assert told.index("nvidia.com/gpu") < told.index("cpu")
    assert told.count("Free nvidia.com/gpu") == 1


def test_of_pods_that_would_have_to_go_nothing_is_told() -> None:
    words = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu. {NONE_TO_PREEMPT}"
    assert said(words) == "pod p finds no node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    for words in (
        'persistentvolumeclaim "m" not found. not found',
        "pod has unbound PersistentVolumeClaims. not found.",
    ):
        assert said(words).count("not found") == words.startswith("persistent")
