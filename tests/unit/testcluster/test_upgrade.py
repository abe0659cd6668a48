import pytest

from testcluster.upgrade import go_mod

UPSTREAM = """\
module k8s.io/kubernetes

go 1.24.0

require (
	github.com/spf13/cobra v1.9.1
	go.etcd.io/etcd/server/v3 v3.6.4
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubectl => ./staging/src/k8s.io/kubectl
)
"""


def test_each_sister_module_is_replaced_by_the_version_published_beside_kubernetes() -> None:
    written = go_mod(UPSTREAM, "1.34.4")

    assert "\tk8s.io/kubernetes v1.34.4\n" in written
    assert "\tk8s.io/api => k8s.io/api v0.34.4\n" in written
    assert "\tk8s.io/kubectl => k8s.io/kubectl v0.34.4\n" in written


def test_etcd_and_go_are_those_that_kubernetes_names() -> None:
    written = go_mod(UPSTREAM, "1.34.4")

    assert "\tgo.etcd.io/etcd/server/v3 v3.6.4\n" in written
    assert "\ngo 1.24.0\n" in written


def test_a_module_that_looks_otherwise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k8s\.io/kubernetes 1\.34\.4 is not as expected"):
        go_mod("module k8s.io/kubernetes\n", "1.34.4")
