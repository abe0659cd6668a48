"""Stands between a client and the server, to inject a fault: what a request says is not passed on from some word on, or what is
answered comes in drops."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from urllib.parse import urlsplit

_BLOCK = 65536

#: Between two drops.
DROP_SECONDS = 0.05


class Stuck:
    """A way to the server on which nothing moves any more once a request names something, until ``let_go``.

    Attributes:
        url: of its endpoint.
        reached: a request named it.
    """

    def __init__(self, door: socket.socket, server: str, word: bytes | None, drop: int | None = None) -> None:
        self.url = f"http://127.0.0.1:{door.getsockname()[1]}"
        self.reached = Event()
        self._door = door
        self._server = (urlsplit(server).hostname, urlsplit(server).port)
        self._word = word
        self._drop = drop
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
                Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        if self._drop is None:
            self._pass_on(server, client, None)
            return
        with suppress(OSError):
            while drop := server.recv(self._drop):
                client.sendall(drop)
                self._free.wait(DROP_SECONDS)

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
    with _open(server, word.encode(), None) as way:
        yield way


@contextmanager
def dripping(server: str, drop: int) -> Iterator[Stuck]:
    """A way to a server's URL by which so many bytes of an answer come at a time, one after ``DROP_SECONDS`` the other."""
    with _open(server, None, drop) as way:
        yield way


@contextmanager
def _open(server: str, word: bytes | None, drop: int | None) -> Iterator[Stuck]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        way = Stuck(door, server, word, drop)
        Thread(target=way.serve, daemon=True).start()
        try:
            yield way
        finally:
            way.let_go()
            door.shutdown(socket.SHUT_RDWR)
