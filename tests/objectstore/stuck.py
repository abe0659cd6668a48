"""Stands between a client and the server, to inject a fault: what a request says is not passed on from some word on."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from urllib.parse import urlsplit

_BLOCK = 65536


class Stuck:
    """A way to the server on which nothing moves any more once a request names something, until ``let_go``.

    Attributes:
        url: of its endpoint.
        reached: a request named it.
    """

    def __init__(self, door: socket.socket, server: str, word: bytes) -> None:
        self.url = f"http://127.0.0.1:{door.getsockname()[1]}"
        self.reached = Event()
        self._door = door
        self._server = (urlsplit(server).hostname, urlsplit(server).port)
        self._word = word
        self._free = Event()

    def let_go(self) -> None:
        """From now on all gets through. What was stuck is cut off: its client has long given up."""
        self._free.set()

    def serve(self) -> None:
        """Pass on what comes, until the door is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._server)
                Thread(target=self._pass_on, args=(client, server, self._word), daemon=True).start()
                Thread(target=self._pass_on, args=(server, client, None), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, word: bytes | None) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK):
                if word is not None and word in block and not self._free.is_set():
                    self.reached.set()
                    self._free.wait()
                    break
                sink.sendall(block)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def stuck(server: str, word: str) -> Iterator[Stuck]:
    """Such a way to a server's URL, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        way = Stuck(door, server, word.encode())
        Thread(target=way.serve, daemon=True).start()
        try:
            yield way
        finally:
            way.let_go()
            door.shutdown(socket.SHUT_RDWR)
