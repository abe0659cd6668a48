import pytest
from kubernetes.client.exceptions import ApiException

from testcluster import wait_for


def test_the_value_that_ended_the_wait_is_returned() -> None:
    answers = iter([None, 0, "", "there"])

    assert wait_for("an answer", 10, lambda: next(answers)) == "there"


def test_a_wait_that_fails_names_what_was_waited_for_and_the_last_value_seen() -> None:
    with pytest.raises(AssertionError, match=r"^two pods to run: not within 0 s; last seen: \[\]$"):
        wait_for("two pods to run", 0, list)


def test_an_object_that_is_not_there_yet_is_waited_for() -> None:
    missing = [ApiException(status=404), ApiException(status=404)]

    def check() -> str:
        if missing:
            raise missing.pop()
        return "there"

    assert wait_for("the object", 10, check) == "there"


def test_the_last_error_seen_is_told() -> None:
    def check() -> bool:
        raise ApiException(status=404, reason="Not Found")

    with pytest.raises(AssertionError, match=r"(?s)the object: not within 0 s; last seen: .*Not Found"):
        wait_for("the object", 0, check)


def test_an_error_that_no_waiting_mends_is_raised_at_once() -> None:
    def check() -> bool:
        raise ApiException(status=403)

    with pytest.raises(ApiException):
        wait_for("the object", 600, check)


def test_only_errors_named_are_tolerated() -> None:
    answers = iter([ConnectionRefusedError(), KeyError("x")])

    def check() -> bool:
        raise next(answers)

    with pytest.raises(KeyError):
        wait_for("the server", 600, check, tolerate=(ConnectionRefusedError,))
