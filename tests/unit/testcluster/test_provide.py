import pytest

from testcluster.provide import choose


@pytest.mark.parametrize(
    ("environment", "node", "is_root", "docker", "expected"),
    [
        ({}, False, False, False, "embedded"),
        ({}, False, False, True, "embedded"),
        ({}, True, True, False, "embedded"),
        ({}, True, True, True, "embedded"),
        ({}, True, False, True, "kind"),
        ({"EAGLE3_TEST_CLUSTER": "kind"}, True, True, True, "kind"),
        ({"EAGLE3_TEST_CLUSTER": "embedded"}, True, True, True, "embedded"),
        ({"EAGLE3_TEST_KUBECONFIG": "/x"}, True, False, False, "external"),
        ({"EAGLE3_TEST_KUBECONFIG": "/x", "EAGLE3_TEST_CLUSTER": "kind"}, True, True, True, "external"),
    ],
)
def test_the_cluster_is_what_the_environment_asks_for_and_the_machine_can_do(
    environment: dict[str, str], node: bool, is_root: bool, docker: bool, expected: str
) -> None:
    assert choose(environment, node=node, is_root=is_root, docker=docker) == expected


@pytest.mark.parametrize(
    ("environment", "docker", "words"),
    [
        ({}, False, "tests with pods need root"),
        ({"EAGLE3_TEST_CLUSTER": "embedded"}, True, "tests with pods need root"),
        ({"EAGLE3_TEST_CLUSTER": "kind"}, False, "no docker engine answers"),
        ({"EAGLE3_TEST_CLUSTER": "minikube"}, True, "embedded and kind are possible"),
    ],
)
def test_where_there_can_be_no_cluster_the_message_says_what_to_do(
    environment: dict[str, str], docker: bool, words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        choose(environment, node=True, is_root=False, docker=docker)
