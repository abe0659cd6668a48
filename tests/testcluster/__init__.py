"""A real Kubernetes on this machine, for tests and the demo.

`Cluster` runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine, built
from their Go modules (`build`); that needs no root and is up in seconds. With a node (root, Linux) it also runs
containerd, kubelet and kube-proxy in namespaces of their own, so that pods really run, with volumes, images, DNS,
Services and as many `nvidia.com/gpu` as the caller says:

    from testcluster import Cluster, wait_for

    with Cluster() as cluster:
        cluster.up(node=True, gpus=2)
        cluster.image("kit.local/app:1", add=[("app", "/app")], entrypoint=["python3", "/app/main.py"])
        cluster.apply(deployment)
        wait_for("the deployment", 60, lambda: available(cluster))

Whatever kind of cluster a test is given (embedded, `kind`, or one that a kubeconfig names), it is an `AnyCluster` and
carries the marker of `guard`: nothing here writes to a cluster without it.
"""

from testcluster.any_cluster import AnyCluster
from testcluster.cluster import Cluster
from testcluster.guard import NotATestClusterError, require_test_cluster
from testcluster.volumes import Volume
from testcluster.wait import wait_for

__all__ = ["AnyCluster", "Cluster", "NotATestClusterError", "Volume", "require_test_cluster", "wait_for"]
