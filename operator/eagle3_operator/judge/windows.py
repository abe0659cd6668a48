"""Windows: what a revision's servers counted between two times, from whoever read it.

Accept length. SGLang adds to its counters when a request finishes: once to the number of requests, all its tokens, all
its verify calls. The first token of an answer comes from prefill and needs no verify call, hence

    accept length = (increase of tokens - increase of requests) / increase of verify calls

Tokens over verify calls alone reads 2.0 for a useless draft with answers of two tokens. Both numerator and denominator
are sums over all pods, so the quotient is weighted by traffic.

Which counters. ``generation_tokens_histogram`` (its ``_sum`` is tokens, its ``_count`` finished requests) and
``spec_verify_calls_total`` carry the same labels and are increased by the same function call; a server's warm-up, which
runs before it is ready, creates all three. ``generation_tokens_total`` and ``num_requests_total`` count the same but are
split by ``is_streaming``: the first streaming request would create a series whose first value Prometheus cannot see the
increase of, and the window would miss tokens whose verify calls it has. All are there from SGLang 0.5.17 to 0.5.23.
Health checks are not counted. A request that is refused for its grammar counts as one request with one token and no
verify call, which the formula above cancels.
"""

from datetime import datetime

from eagle3_api import times
from eagle3_api.status import RevisionStatus, Window

TOKENS = "sglang:generation_tokens_histogram_sum"
REQUESTS = "sglang:generation_tokens_histogram_count"
VERIFY_CALLS = "sglang:spec_verify_calls_total"


def begins(revision: RevisionStatus) -> datetime | None:
    """Where the next window begins: at the end of the last one since the promotion; None before a promotion."""
    if revision.promoted_at is None:
        return None
    return max(times.parse(stamp) for stamp in (revision.promoted_at, *(made.end for made in revision.windows[-1:])))


def made_of(
    *, start: datetime, end: datetime, tokens: float, requests: float, verify_calls: float, running: float
) -> Window:
    """The window of these increases, with its accept length."""
    return Window(
        start=times.text(start),
        end=times.text(end),
        tokens=tokens,
        requests=requests,
        verify_calls=verify_calls,
        running=running,
        accept_length=max(0, tokens - requests) / verify_calls if verify_calls > 0 else None,
    )
