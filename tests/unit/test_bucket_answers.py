"""What a bucket's bad answers mean: words in the form in which obstore tells them, codes as the stores document them."""

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.bucket import MOST_PIECES, ONE_REQUEST_BYTES, PIECE_BYTES, piece_bytes
from eagle3_draft.bucket_answers import meaning, said

GET = "Generic S3 error: Error performing GET http://s3.example.com/b/x in 5.006619ms"


def answered(status: str, code: str, message: str = "") -> str:
    return (
        f'{GET} - Server returned non-2xx status code: {status}: <?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message></Error>\n\nDebug source:\nGeneric {{ }}"
    )


def silent(source: str) -> str:
    return (
        f"{GET.replace('5.006619ms', '92.103863999s')}, after 3 retries, max_retries: 100, retry_timeout: 90s  - HTTP error: "
        f"error sending request\n\nDebug source:\nGeneric {{ {source} }}"
    )


@pytest.mark.parametrize(
    ("text", "code", "reason", "words"),
    [
        (answered("404 Not Found", "NoSuchBucket"), ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, "no such bucket"),
        (answered("403 Forbidden", "AccessDenied"), ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, "let us at"),
        (answered("403 Forbidden", "QuotaExceeded"), ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, "quota"),
        (
            answered("507 Insufficient Storage", "XMinioStorageFull"),
            ExitCode.DOES_NOT_FIT,
            Reason.STORAGE_TOO_SMALL,
            "full",
        ),
        (
            answered("403 Forbidden", "RequestTimeTooSkewed"),
            ExitCode.INTERRUPTED,
            Reason.STORAGE_UNAVAILABLE,
            "clock",
        ),
        (answered("400 Bad Request", "ExpiredToken"), ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, "expired"),
        (
            answered("403 Forbidden", "SecondLevelDomainForbidden"),
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "addressing",
        ),
        (
            f"{GET} - Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "region",
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 952.158µs - HTTP error",
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "no credentials",
        ),
        (
            answered("403 Forbidden", "AccessDenied").replace("GET http://s3.example.com/b/x", "POST REDACTED"),
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "role",
        ),
        (
            silent("dns error").replace("GET http://s3.example.com/b/x", "POST REDACTED"),
            ExitCode.INTERRUPTED,
            Reason.STORAGE_UNAVAILABLE,
            "who gives pods their credentials does not answer",
        ),
        (
            answered("503 Service Unavailable", "SlowDown"),
            ExitCode.INTERRUPTED,
            Reason.STORAGE_UNAVAILABLE,
            "too much to do",
        ),
        (silent("kind: Timeout"), ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, "does not answer about"),
        (silent("dns error"), ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, "not known here"),
        (silent("kind: ConnectionRefused"), ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, "nobody listens"),
        ("something else", ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, "as it should"),
    ],
)
def test_an_answer_means_what_a_user_can_do_about_it(text: str, code: ExitCode, reason: Reason, words: str) -> None:
    found = meaning(text)
    assert (found.code, found.reason) == (code, reason)
    assert words in found.text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (silent("kind: Timeout"), "GET; 4 tries in 92 s"),
        (
            answered("400 Bad Request", "InvalidArgument", "no"),
            "GET: 400 Bad Request: InvalidArgument: no; 1 try in 0 s",
        ),
        ("something else\nand its source", "something else"),
    ],
)
def test_what_was_said_is_one_line_with_how_often_and_how_long(text: str, line: str) -> None:
    assert said(text) == line


@pytest.mark.parametrize("size", [ONE_REQUEST_BYTES + 1, 50 * 2**30, 5 * 2**40])
def test_a_file_of_any_size_that_a_store_takes_has_no_more_pieces_than_it_takes(size: int) -> None:
    assert PIECE_BYTES <= piece_bytes(size) <= 5 * 2**30
    assert -(-size // piece_bytes(size)) <= MOST_PIECES
