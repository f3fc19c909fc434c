"""A TCP server that answers every connection with given bytes: answers that no HTTP library would send."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class RawServer:
    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self.answer = b""
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def read_request(connection: socket.socket) -> bytes:
    """The whole request: closing with a part of it unread would reset the connection under our answer."""
    request = b""
    while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
        request += piece
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", request)
    whole = request.find(b"\r\n\r\n") + 4 + (int(length.group(1)) if length else 0)
    while len(request) < whole and (piece := connection.recv(65536)):
        request += piece
    return request


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
                server.requests.append(read_request(connection))
                # A client that has seen enough hangs up in the middle.
                with suppress(ConnectionError):
                    connection.sendall(server.answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
