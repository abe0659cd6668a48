"""A stand-in for SGLang, only to inject faults: it answers as a healthy server does, but for what a test breaks."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Instead of an answer: close the connection.
DIE = (0, b"")

Answer = tuple[int, bytes]


@dataclass
class FaultyServer:
    """What the stand-in says, and what tests may change."""

    info: dict[str, Any] = field(
        default_factory=lambda: {"version": "0.5.21", "dtype": "float32", "context_length": 1024}
    )
    #: Tokens of any conversation by "its own" chat template; None: it has no template.
    chat_tokens: int | None = None
    chat_ids: list[int] | None = None
    #: Verify steps of each answer; 0: no speculation.
    verify_steps: int = 0
    #: How far it moves the gap of two logits, where it computes many tokens together.
    rounding: float = 0.0
    #: Returns another answer to one request (method, path, body), or None.
    fault: Callable[[str, str, dict[str, Any]], Answer | None] = lambda method, path, body: None
    #: Called with the path of each request when it is there, by as many threads as there are requests.
    arrived: Callable[[str], None] = lambda path: None
    requests: int = 0
    tokens: int = 0
    asked: list[str] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.asked.append(f"{method} {path}")
            broken = self.fault(method, path, body)
            if broken is not None:
                return broken
            if path == "/server_info":
                return 200, json.dumps(self.info).encode()
            if path == "/metrics":
                labels = '{model_name="a b",eagle3_name="x"}'
                return 200, (
                    "# HELP sglang:generation_tokens_histogram Histogram.\n"
                    f"sglang:generation_tokens_histogram_sum{labels} {float(self.tokens)}\n"
                    f"sglang:generation_tokens_histogram_count{labels} {float(self.requests)}\n"
                ).encode()
            if path == "/generate":
                return 200, self._generate(body)
            if path == "/v1/chat/completions":
                return self._chat()
            return 200, b"{}"

    def serve_somebody_else(self, *, tokens: int = 40) -> None:
        """One finished request that is not the probe's."""
        self.requests += 1
        self.tokens += tokens

    def _generate(self, body: dict[str, Any]) -> bytes:
        # The answer depends on the prompt, and is sure of itself everywhere
        count = body["sampling_params"]["max_new_tokens"]
        ids = [sum(body["input_ids"]) % 100 + i for i in range(count)]
        meta: dict[str, Any] = {"completion_tokens": count, "finish_reason": {"type": "length", "length": count}}
        if self.verify_steps:
            meta["spec_verify_ct"] = self.verify_steps
        if body.get("return_logprob"):
            meta["output_top_logprobs"] = [[[-0.1, i, None], [-3.1, i + 1, None]] for i in ids]
        if "logprob_start_len" in body:
            # Computed together, the first of two is a little surer of itself
            asked = body["input_ids"][body["logprob_start_len"] + 1 :]
            meta["input_top_logprobs"] = [
                None,
                *([[-0.1, i, None], [-3.1 - self.rounding, i + 1, None]] for i in asked),
            ]
        self.requests += 1
        self.tokens += count
        if not body.get("stream"):
            return json.dumps({"output_ids": ids, "meta_info": meta}).encode()
        events = [{"output_ids": ids[:n], "meta_info": meta | {"completion_tokens": n}} for n in range(1, count + 1)]
        return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"

    def _chat(self) -> Answer:
        if self.chat_tokens is None:
            return 400, b'{"message": "Cannot use chat template functions"}'
        self.requests += 1
        self.tokens += 1
        told = {"usage": {"prompt_tokens": self.chat_tokens}, "choices": [{"prompt_token_ids": self.chat_ids}]}
        return 200, json.dumps(told).encode()


@contextmanager
def serving(server: FaultyServer) -> Iterator[FaultyServer]:
    """The stand-in on a port of its own, which is in ``url``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet an answer
        wbufsize = -1

        def do_GET(self) -> None:
            self._reply("GET", {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._reply("POST", json.loads(body))

        def _reply(self, method: str, body: dict[str, Any]) -> None:
            server.arrived(self.path)
            status, text = server.answer(method, self.path, body)
            if (status, text) == DIE:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
