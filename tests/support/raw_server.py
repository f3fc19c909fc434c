"""A TCP server that answers every connection with given bytes: answers that no HTTP library would send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RawServer:
    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self.answer = b""
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@contextmanager
def raw_server() -> Iterator[RawServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = RawServer(listener)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed at the end of the test
            with connection:
                connection.settimeout(10)
                request = b""
                while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                    request += piece
                server.requests.append(request)
                connection.sendall(server.answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
