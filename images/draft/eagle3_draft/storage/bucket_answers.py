"""What it means for a stage that a bucket answered badly, or not at all.

Pure, over the text of an error of obstore's: it has the answer's status and XML, how long it took and how often it was tried. What
the store itself says in words is told with what it means.
"""

import html
import re
from dataclasses import dataclass

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode

#: A user reads this in a condition, where a report of 3 KiB has room for it.
_SAID_LENGTH = 300

_TRIED = re.compile(r" in ([\d.]+)(s|ms|µs|ns)(?:, after (\d+) retries)?")
_ASKED = re.compile(r"performing ([A-Z]+) ")
_STATUS = re.compile(r"status code: (\d{3} [\w ]+?)(?:: |$|\n)")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


@dataclass(frozen=True)
class Meaning:
    """What an answer means.

    Attributes:
        code: whether it is tried again, in another pod.
        reason: in the condition.
        text: what is wrong and what to do, with the fields ``what`` (was asked about), ``expired`` (what may be the reason, where
            keys can expire), ``region``, ``endpoint`` and ``set`` (a ``bucket.SettingNames``).
    """

    code: ExitCode
    reason: Reason
    text: str


def _wrong(text: str) -> Meaning:
    return Meaning(ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, text)


def _for_now(text: str) -> Meaning:
    return Meaning(ExitCode.INTERRUPTED, Reason.STORAGE_UNAVAILABLE, text)


_FULL = Meaning(
    ExitCode.DOES_NOT_FIT,
    Reason.STORAGE_TOO_SMALL,
    "it is full, or its quota is, at {what}. Remove what nobody needs, or have it raised",
)

_NO_ANSWER = _for_now("who gives pods their credentials does not answer")

#: Who gives them on Amazon's machines: EC2's metadata, ECS's agent and EKS's.
_METADATA = r"169\.254\.(169\.254|170\.23?)\b"

#: Words of an error and what they mean: the first that fits decides. The codes are those of Amazon, MinIO, Ceph and Alibaba.
_MEANINGS: tuple[tuple[str, Meaning], ...] = (
    (r"NoSuchBucket", _wrong("there is no such bucket")),
    (r"QuotaExceeded|XMinioStorageFull|507 Insufficient Storage", _FULL),
    (
        r"RequestTimeTooSkewed",
        _for_now("its clock and that of this node differ by more than it allows. Set the node's clock"),
    ),
    (
        r"ExpiredToken|TokenRefreshRequired",
        _for_now("the keys have expired. The next pod takes them anew: see {set.keys}"),
    ),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|incorrectly configured region|IllegalLocationConstraint",
        _wrong("the bucket is not in the region {region}; set {set.region}"),
    ),
    (
        r"SecondLevelDomainForbidden|PathStyleDomainForbidden",
        _wrong("it wants the bucket in the host's name; set {set.addressing}"),
    ),
    (
        r"performing POST REDACTED[\s\S]*(400 Bad Request|403 Forbidden)",
        _wrong(
            "who gives pods their credentials refuses; see the role of placement.serviceAccountName, and whom it trusts"
        ),
    ),
    (r"performing POST REDACTED", _NO_ANSWER),
    (_METADATA + r"[\s\S]*status code: (429|5\d\d)\b", _NO_ANSWER),
    (
        _METADATA,
        _wrong(
            "the pod has no credentials, or is refused them. Name them in {set.keys}, or see placement.serviceAccountName"
        ),
    ),
    # A listing that is denied is a generic error; and Versity's gateway knows no user with status 404
    (
        r"403 Forbidden|401 Unauthorized|InvalidToken|XAdminUserNotFound",
        _wrong("it does not let us at {what}{expired}; see {set.keys}"),
    ),
    # As Go's servers and nginx answer a request without it
    (
        r"HTTP request (to an HTTPS server|was sent to HTTPS port)",
        _wrong("it speaks TLS; begin {endpoint} with https://"),
    ),
    (r"InvalidContentType", _wrong("it speaks no TLS; begin {endpoint} with http://")),
    (
        r"UnknownIssuer",
        _wrong("nobody whom the pod trusts signed its certificate; put the authority's into {set.authority}"),
    ),
    (r"invalid peer certificate|InvalidCertificate", _wrong("its certificate is not one for {endpoint}")),
    (
        r"RequestTimeout|IncompleteBody|BadDigest|SHA256Mismatch",
        _for_now("what was sent about {what} did not arrive whole"),
    ),
    (
        r"<Code>NotImplemented<|400 Bad Request[\s\S]*<Code>",
        _wrong(
            "it takes no such request about {what}; see AWS_CHECKSUM_ALGORITHM, AWS_SERVER_SIDE_ENCRYPTION and AWS_SESSION_TOKEN in "
            "placement.env and {set.keys}"
        ),
    ),
    (
        r"400 Bad Request|404 Not Found|405 Method Not Allowed|501 Not Implemented",
        _wrong("what answers at {endpoint} does not speak S3, or keeps another bucket"),
    ),
    (r"SlowDown|503 Service Unavailable|429 Too Many", _for_now("it has too much to do, and refused {what}")),
    (r"dns error", _for_now("the name in {endpoint} is not known here")),
    (r"ConnectionRefused", _for_now("nobody listens at {endpoint}")),
    (r"kind: Timeout", _for_now("it does not answer about {what}")),
)

_OTHER = _for_now("it does not answer about {what} as it should")


def meaning(text: str) -> Meaning:
    """What an error means, by its text. What says nothing may pass: it is tried again."""
    return next((found for words, found in _MEANINGS if re.search(words, text)), _OTHER)


def is_absent(text: str) -> bool:
    """Whether a "not found" is about the object, not about the bucket or who asks. Nobody puts what must be there already."""
    code, asked = _CODE.search(text), _ASKED.search(text)
    return not (code and re.search("Bucket|User", code[1])) and not (asked and asked[1] in {"PUT", "POST"})


def is_wordless(text: str) -> bool:
    """Whether a HEAD was refused for good: an answer to one has no words, and a GET would learn them."""
    return re.search(r"performing HEAD [\s\S]*status code: (4(?!29)\d\d|501)\b", text) is not None


def said(text: str) -> str:
    """What was asked and answered, how often and for how long, in one line."""
    words = [found[1] for pattern in (_ASKED, _STATUS, _CODE, _MESSAGE) if (found := pattern.search(text))]
    told = html.unescape(": ".join(word.strip() for word in words if word.strip())) or text.splitlines()[0]
    if (tried := _TRIED.search(text)) is None:
        return told[:_SAID_LENGTH]
    number, unit, retries = tried[1], tried[2], int(tried[3] or 0)
    seconds = float(number) if unit == "s" else 0.0
    times = f"{retries + 1} tries" if retries else "1 try"
    return f"{told[:_SAID_LENGTH]}; {times} in {seconds:.0f} s"
