"""Each line of the log is JSON and names the object that it is about."""

import json
import logging

import pytest

from eagle3_operator.logs import Formatter, about


def line(record: logging.LogRecord) -> dict[str, str]:
    made: dict[str, str] = json.loads(Formatter().format(record))
    return made


def record(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("a.logger", logging.INFO, __file__, 1, message, arguments, None)
    made.__dict__.update(more)
    return made


def test_a_line_says_when_who_and_what() -> None:
    made = line(record("%s of %d", "one", 2))
    assert made.pop("time").endswith("+00:00")
    assert made == {"level": "info", "logger": "a.logger", "message": "one of 2"}


def test_a_line_within_a_reconcile_names_its_object() -> None:
    with about("llm", "kimi"):
        made = line(record("anything"))
    assert (made["namespace"], made["name"]) == ("llm", "kimi")
    assert "name" not in line(record("anything else"))


def test_the_frameworks_own_lines_about_an_object_name_it_too() -> None:
    made = line(record("handled", k8s_ref={"kind": "Eagle3Draft", "namespace": "llm", "name": "kimi"}))
    assert (made["namespace"], made["name"]) == ("llm", "kimi")


def test_an_exception_is_part_of_its_line() -> None:
    with pytest.raises(ValueError, match="broken") as caught:
        raise ValueError("broken")
    made = record("it failed")
    made.exc_info = (ValueError, caught.value, caught.value.__traceback__)
    assert "ValueError: broken" in line(made)["error"]
