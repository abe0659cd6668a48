"""What a bucket's bad answers mean: words in the form in which obstore tells them, codes as the stores document them."""

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.fetch.stored import SETTINGS
from eagle3_draft.storage.bucket import MOST_PIECES, ONE_REQUEST_BYTES, PIECE_BYTES, SettingNames, piece_bytes
from eagle3_draft.storage.bucket_answers import is_absent, is_wordless, meaning, said

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
        (
            answered("404 Not Found", "XAdminUserNotFound"),
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "let us at",
        ),
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
        (
            answered("501 Not Implemented", "NotImplemented"),
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "AWS_CHECKSUM_ALGORITHM",
        ),
        (
            answered("400 Bad Request", "InvalidArgument"),  # as Ceph says of a session token that it does not know
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "AWS_SESSION_TOKEN",
        ),
        (
            answered("400 Bad Request", "RequestTimeout"),
            ExitCode.INTERRUPTED,
            Reason.STORAGE_UNAVAILABLE,
            "did not arrive whole",
        ),
        (
            f"{GET} - Server returned non-2xx status code: 400 Bad Request: Client sent an HTTP request to an HTTPS server.",
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "with https://",
        ),
        (
            f"{GET} - Server returned non-2xx status code: 400 Bad Request: what do you want?",
            ExitCode.BAD_INPUT,
            Reason.STORAGE_UNAVAILABLE,
            "does not speak S3",
        ),
        (silent("InvalidContentType"), ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, "with http://"),
        ("something else", ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, "as it should"),
    ],
)
def test_an_answer_means_what_a_user_can_do_about_it(text: str, code: ExitCode, reason: Reason, words: str) -> None:
    found = meaning(text)
    assert (found.code, found.reason) == (code, reason)
    assert words in found.text


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        (answered("404 Not Found", "NoSuchKey"), True),
        (f"{GET.replace('GET', 'HEAD')} - Server returned non-2xx status code: 404 Not Found: ", True),
        (answered("404 Not Found", "NoSuchBucket"), False),
        (answered("404 Not Found", "XAdminUserNotFound"), False),
        (answered("404 Not Found", "NoSuchKey").replace("GET", "PUT"), False),
    ],
)
def test_an_object_that_is_not_there_is_told_from_a_bucket_and_a_user_that_are_not(text: str, absent: bool) -> None:
    assert is_absent(text) == absent


@pytest.mark.parametrize("settings", [SettingNames.beside("publish.objectStore"), SETTINGS])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        (answered("403 Forbidden", "InvalidAccessKeyId"), "keys"),
        (answered("400 Bad Request", "AuthorizationHeaderMalformed"), "region"),
        (answered("403 Forbidden", "SecondLevelDomainForbidden"), "addressing"),
        (silent("invalid peer certificate: UnknownIssuer"), "authority"),
    ],
)
def test_what_to_do_is_named_as_one_does_it_where_the_store_was_named(
    settings: SettingNames, text: str, named: str
) -> None:
    told = meaning(text).text.format(what="x", expired="", region="r", endpoint="e", set=settings)
    assert told.endswith(getattr(settings, named))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (silent("kind: Timeout"), "GET; 4 tries in 92 s"),
        (
            answered("400 Bad Request", "InvalidArgument", "no"),
            "GET: 400 Bad Request: InvalidArgument: no; 1 try in 0 s",
        ),
        (
            answered("400 Bad Request", "InvalidRegion", "&#34;xx&#34; is wrong"),
            'GET: 400 Bad Request: InvalidRegion: "xx" is wrong; 1 try in 0 s',
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


@pytest.mark.parametrize(
    ("status", "wordless"),
    [("400 Bad Request", True), ("501 Not Implemented", True), ("429 Too Many Requests", False), ("503 Slow", False)],
)
def test_only_who_was_refused_for_good_without_a_word_is_asked_for_it(status: str, wordless: bool) -> None:
    head = GET.replace("GET", "HEAD")
    assert is_wordless(f"{head} - Server returned non-2xx status code: {status}: ") == wordless
    assert not is_wordless(silent("kind: Timeout").replace("GET", "HEAD"))
    assert not is_wordless(answered(status, "Any"))
