"""A server in a thread of the test's own process, and the certificate that it shows."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from testcluster.processes import run


class Certificate(NamedTuple):
    """Of a server, and its key, as files in PEM."""

    file: Path
    key: Path


def certify(folder: Path) -> Certificate:
    """One for this machine, which is its own authority: ``tls.crt`` and ``tls.key`` in a folder that is there."""
    made = Certificate(folder / "tls.crt", folder / "tls.key")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", made.key)
    names = ("-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1")
    run("openssl", "req", "-x509", *new_key, "-days", "2", *names, "-out", made.file)
    return made


class _Server(http.server.ThreadingHTTPServer):
    """Takes as many connections at once as a real one."""

    request_queue_size = 128


@contextmanager
def serving_http(
    handler: type[http.server.BaseHTTPRequestHandler],
    address: str = "127.0.0.1",
    port: int = 0,
    *,
    certificate: Certificate | None = None,
) -> Iterator[int]:
    """A server in a thread, of https where it has a certificate; its port."""
    server = _Server((address, port), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
