"""SGLang's HTTP API, as far as a probe needs it.

What goes wrong here is an error of measurement and never a judgement: a server that cannot be reached or that dies is
tried again by the Job, a request that it refuses is not.
"""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter, ValidationError

from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError

#: How long a server may take to be reached: its pods are ready, its Service's endpoints may lag.
REACH_SECONDS = 60.0

#: How long one answer may take.
ANSWER_SECONDS = 600.0

_TOKENS = "sglang:generation_tokens_histogram_sum"
_REQUESTS = "sglang:generation_tokens_histogram_count"


#: So many of the likeliest tokens of a position are asked for.
NEAR = 5

Parsed = TypeVar("Parsed")

#: The likeliest tokens of a position, best first: log-probability, id, text.
_Best = list[tuple[float, int, str | None]]


class _FinishReason(Model):
    type: str
    message: str = ""


class _Meta(Model):
    completion_tokens: int
    finish_reason: _FinishReason | None = None
    spec_verify_ct: int | None = None
    output_top_logprobs: list[_Best] | None = None
    #: Nothing is known of the first token of all.
    input_top_logprobs: list[_Best | None] | None = None


class _Answer(Model):
    output_ids: list[int] = Field(default_factory=list)
    meta_info: _Meta


class _Usage(Model):
    prompt_tokens: int


class _Choice(Model):
    prompt_token_ids: list[int] | None = None


class _Completion(Model):
    usage: _Usage
    choices: list[_Choice] = Field(default_factory=list)


class _Error(Model):
    #: That it would have without streaming. Who does not say answered the same prompt before: it failed since.
    code: int = 500


class _Failed(Model):
    error: _Error


_FAILED = TypeAdapter(_Failed)
_INFO = TypeAdapter(dict[str, Any])
_ANSWER = TypeAdapter(_Answer)
_COMPLETION = TypeAdapter(_Completion)


@dataclass(frozen=True)
class Rendered:
    """A conversation by the server's own chat template."""

    tokens: int
    #: None where an older SGLang does not tell.
    ids: list[int] | None


@dataclass(frozen=True)
class Generated:
    """One answer of ``/generate``."""

    output_ids: list[int]
    verify_steps: int
    #: Of each position the log-probabilities of the likeliest tokens, best first. Only where they were asked for.
    best: list[dict[int, float]]

    @property
    def tokens(self) -> int:
        """Tokens of the answer, the first of which came from prefill."""
        return len(self.output_ids)


@dataclass(frozen=True)
class Streamed:
    """When the tokens of one streamed answer came."""

    tokens: int
    first_token_seconds: float
    #: Mean over the tokens after those of the first event; None where there were none.
    inter_token_seconds: float | None


@dataclass(frozen=True)
class Counters:
    """What a server counted since it started, of finished requests."""

    requests: float
    tokens: float


class Server:
    """One server, by the address of its Service.

    Each thread keeps one connection, so that all requests of a thread reach the same pod.
    """

    def __init__(self, url: str, *, reach_seconds: float = REACH_SECONDS) -> None:
        address = urlsplit(url)
        if address.scheme != "http" or not address.hostname:
            raise StageError(
                ExitCode.BAD_CONFIGURATION,
                Reason.INVALID_CONFIGURATION,
                f"{url!r} is not an http:// address of a server",
            )
        self.url = url
        self._host = address.hostname
        self._port = address.port or 80
        self._reach_seconds = reach_seconds
        self._local = threading.local()

    def wait(self) -> None:
        """Return when the server answers.

        Raises:
            StageError: it did not within ``reach_seconds`` (Interrupted, to be tried again).
        """
        give_up = time.monotonic() + self._reach_seconds
        while True:
            try:
                status, _ = self._exchange("GET", "/model_info", None)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            else:
                if status == 200:
                    return
                problem = f"HTTP {status}"
            if time.monotonic() > give_up:
                raise StageError(
                    ExitCode.INTERRUPTED,
                    Reason.PROBE_ERROR,
                    f"the server at {self.url} could not be reached for {self._reach_seconds:.0f} s ({problem})",
                )
            time.sleep(min(1.0, self._reach_seconds / 10))

    def info(self) -> dict[str, Any]:
        """``/server_info``: the resolved arguments and the version."""
        status, body = self._request("GET", "/server_info", None)
        if status != 200:
            raise self._refused("/server_info", status, body)
        return self._parsed(_INFO, "/server_info", body)

    def flush(self) -> bool:
        """Empty the prefix cache, so that every prompt is prefilled; False where the server would not."""
        for _ in range(5):
            status, _ = self._request("POST", "/flush_cache", {})
            if status == 200:
                return True
            # It refuses while a request runs, and the last one's books may still be open
            time.sleep(0.2)
        return False

    def generate(self, input_ids: list[int], max_tokens: int, *, best: bool = False) -> Generated:
        """Answer greedily.

        Args:
            input_ids: the rendered prompt.
            max_tokens: of the answer, at most.
            best: report the likeliest tokens of each position too.
        """
        body = _greedy(input_ids, max_tokens)
        if best:
            body |= {"return_logprob": True, "top_logprobs_num": NEAR}
        answer = self._generated(body)
        return Generated(
            output_ids=answer.output_ids,
            verify_steps=answer.meta_info.spec_verify_ct or 0,
            best=[_likeliest(position) for position in answer.meta_info.output_top_logprobs or []],
        )

    def prefilled(self, input_ids: list[int], answer_ids: list[int]) -> list[dict[int, float]]:
        """The likeliest tokens of each position of an answer that the server is given, computed together.

        One token is generated, so that the server counts one request of one token.

        Args:
            input_ids: the rendered prompt, of one token at least.
            answer_ids: what followed it.

        Returns:
            Of each position of the answer the log-probabilities of its likeliest tokens, best first.
        """
        body = _greedy([*input_ids, *answer_ids], 1)
        body |= {"return_logprob": True, "top_logprobs_num": NEAR, "logprob_start_len": len(input_ids) - 1}
        told = self._generated(body).meta_info.input_top_logprobs or []
        if len(told) < len(answer_ids):
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.PROBE_ERROR,
                f"the server at {self.url} answered for {len(told)} positions of a prompt, but {len(answer_ids)} were asked for",
            )
        return [_likeliest(position or []) for position in told[len(told) - len(answer_ids) :]]

    def stream(self, input_ids: list[int], max_tokens: int) -> Streamed:
        """Answer greedily, and tell when the tokens came."""
        began = time.perf_counter()
        first = last = began
        tokens = in_first = 0
        for at, event in self._events("/generate", _greedy(input_ids, max_tokens) | {"stream": True}):
            tokens = event.meta_info.completion_tokens
            if not in_first:
                first, in_first = at, tokens
            last = at
        later = tokens - in_first
        return Streamed(tokens, first - began, (last - first) / later if later > 0 else None)

    def rendered(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Rendered | str:
        """A conversation by the server's own chat template, or why there is none.

        One token is generated, so that the server counts one request of one token.
        """
        asked = {"max_tokens": 1, "temperature": 0, "return_prompt_token_ids": True}
        body = {"model": "default", "messages": messages} | asked
        if tools:
            body["tools"] = tools
        status, text = self._request("POST", "/v1/chat/completions", body)
        if status != 200:
            return f"HTTP {status}: {text[:200].decode(errors='replace')}"
        told = self._parsed(_COMPLETION, "/v1/chat/completions", text)
        return Rendered(told.usage.prompt_tokens, told.choices[0].prompt_token_ids if told.choices else None)

    def counters(self) -> Counters | None:
        """What ``/metrics`` counts, or None where it does not."""
        status, body = self._request("GET", "/metrics", None)
        if status != 200:
            return None
        sums = {_TOKENS: 0.0, _REQUESTS: 0.0}
        for line in body.decode(errors="replace").splitlines():
            # Newer client libraries write sglang_... for some readers
            name = line.partition("{")[0].partition(" ")[0].replace("sglang_", "sglang:", 1)
            if name in sums:
                sums[name] += float(line.rpartition(" ")[2])
        return Counters(requests=sums[_REQUESTS], tokens=sums[_TOKENS])

    # ------------------------------------------------------------------------------------------------------- exchange

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """One exchange with a server that was reached before: if it cannot be had, the server is gone."""
        try:
            return self._exchange(method, path, body)
        except TimeoutError:
            raise StageError(
                ExitCode.INTERRUPTED,
                Reason.PROBE_ERROR,
                f"the server at {self.url} did not answer {path} in {ANSWER_SECONDS:.0f} s",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._died(f"{path}: {str(error) or type(error).__name__}") from error

    def _generated(self, body: Mapping[str, Any]) -> _Answer:
        """An answer of ``/generate`` that was not aborted."""
        status, text = self._request("POST", "/generate", body)
        if status != 200:
            raise self._refused("/generate", status, text)
        answer = self._parsed(_ANSWER, "/generate", text)
        reason = answer.meta_info.finish_reason
        if reason is not None and reason.type == "abort":
            raise self._died(f"it aborted a request: {reason.message}")
        return answer

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        response = self._send(method, path, body)
        return response.status, response.read()

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[float, _Answer]]:
        """The events of a streamed answer and when each came."""
        try:
            response = self._send("POST", path, body)
            if response.status != 200:
                raise self._refused(path, response.status, response.read())
            for line in response:
                at = time.perf_counter()
                if line.startswith(b"data: {"):
                    yield at, self._event(path, line.removeprefix(b"data: "))
            response.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._died(f"{path}: {str(error) or type(error).__name__}") from error

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            try:
                kept.request(method, path, data, headers)
                return kept.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # The server closes connections that were idle, and has not seen this request
                kept.close()
        self._local.connection = None
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_SECONDS)
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        self._local.connection = connection
        return response

    def _parsed(self, shape: TypeAdapter[Parsed], path: str, text: bytes) -> Parsed:
        try:
            return shape.validate_json(text)
        except ValidationError:
            raise self._refused(path, 200, text) from None

    def _event(self, path: str, text: bytes) -> _Answer:
        """An event of a streamed answer, which begins with 200 whatever comes of it: an error has a status of its own, or none."""
        try:
            status = _FAILED.validate_json(text).error.code
        except ValidationError:
            return self._parsed(_ANSWER, path, text)
        raise self._refused(path, status, text)

    def _refused(self, path: str, status: int, body: bytes) -> StageError:
        """An answer that is none. That of a failing server may be better next time; that of a healthy one may not."""
        words = body[:300].decode(errors="replace")
        code = ExitCode.ENGINE_CRASHED if status >= 500 else ExitCode.BAD_INPUT
        return StageError(code, Reason.PROBE_ERROR, f"the server at {self.url} answered {path} with {status}: {words}")

    def _died(self, what: str) -> StageError:
        return StageError(
            ExitCode.ENGINE_CRASHED,
            Reason.PROBE_ERROR,
            f"the server at {self.url} went away while it was measured: {what}",
        )


def _likeliest(position: _Best) -> dict[int, float]:
    return {token: log_probability for log_probability, token, _ in position}


def _greedy(input_ids: list[int], max_tokens: int) -> dict[str, Any]:
    return {"input_ids": input_ids, "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens}}
