"""What wakes an object, told by a real API server: its children's changes, and the doubt whether one was missed."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kubernetes.client import Configuration

from eagle3_api import KIND
from eagle3_operator.cluster.client import ApiError, Client, GoneError, Json
from eagle3_operator.cluster.queue import Key
from eagle3_operator.cluster.wakeups import KINDS, Wakeups
from eagle3_operator.manifests import names
from operating import Site, client_of
from testcluster import AnyCluster, wait_for
from unit.samples import SPEC


class ClientWhoseServerForgot(Client):
    """The first watch of each kind is told that the API server remembers no such version any more."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.told: set[str] = set()

    def changes(self, kind: str, namespace: str | None, labels: str, version: str) -> Iterator[Json]:
        if kind not in self.told:
            self.told.add(kind)
            raise GoneError(f"watch {kind}", 410, "Expired", "too old resource version")
        return super().changes(kind, namespace, labels, version)


@pytest.fixture
def site(api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


@pytest.fixture
def client(site: Site) -> Client:
    return client_of(site.cluster.kubeconfig)


@contextmanager
def woken(client: Client, namespace: str) -> Iterator["queue.Queue[Key]"]:
    """The keys that are woken while the context lasts."""
    keys: queue.Queue[Key] = queue.Queue()
    wakeups = Wakeups(client, namespace, keys.put)
    wakeups.start()
    try:
        yield keys
    finally:
        wakeups.stop()


def make_service(site: Site, name: str, **labels: str) -> None:
    site.apply("v1", "Service", name, {"ports": [{"port": 80}]}, labels=labels)


def test_a_change_of_a_child_wakes_the_object_that_its_label_names(site: Site, client: Client) -> None:
    with woken(client, site.namespace) as keys:
        make_service(site, "any-name", **names.labels("kimi"))
        assert keys.get(timeout=10) == Key(site.namespace, "kimi")
        site.delete("services", "any-name")
        assert keys.get(timeout=10) == Key(site.namespace, "kimi")


def test_what_is_not_ours_and_what_was_there_before_wakes_nobody(site: Site, client: Client) -> None:
    make_service(site, "before", **names.labels("kimi"))
    with woken(client, site.namespace) as keys:
        make_service(site, "a-strangers", **{names.NAME_LABEL: "kimi"})
        make_service(site, "ours", **names.labels("other"))
        assert keys.get(timeout=10) == Key(site.namespace, "other")
        assert keys.empty()


def test_a_watch_of_a_version_that_is_forgotten_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_operator.cluster.client._WATCH_SECONDS", 5)

    def forgotten() -> bool:
        try:
            next(client.changes(KIND, None, names.NAME_LABEL, "1"), None)
        except GoneError:
            return True
        return False

    wait_for("the refusal", 30, forgotten, tolerate=(ApiError,))


def test_after_changes_may_have_been_missed_every_object_is_woken_and_the_watch_goes_on(site: Site) -> None:
    site.create("kimi", SPEC)
    client = client_of(site.cluster.kubeconfig, ClientWhoseServerForgot)
    with woken(client, site.namespace) as keys:
        assert {keys.get(timeout=20) for _ in KINDS} == {Key(site.namespace, "kimi")}
        make_service(site, "any-name", **names.labels("other"))
        assert keys.get(timeout=10) == Key(site.namespace, "other")
