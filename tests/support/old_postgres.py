"""A server that speaks just enough of PostgreSQL's protocol to let a client in and say how old it is."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


@contextmanager
def old_postgres(version: str) -> Iterator[int]:
    """The port. Every query is answered with nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, version), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, version: str) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # closed: the test is over
        threading.Thread(target=_serve, args=(client, version), daemon=True).start()


def _serve(client: socket.socket, version: str) -> None:
    # The client has seen enough when it goes, however abruptly.
    with suppress(ConnectionError), client, client.makefile("rb") as stream:
        while (request := _startup(stream.read(4), stream)) in (SSL_REQUEST, GSS_REQUEST):
            client.sendall(b"N")
        if not request:
            return
        settings = {
            "server_version": version,
            "server_encoding": "UTF8",
            "client_encoding": "UTF8",
            "standard_conforming_strings": "on",
            "TimeZone": "UTC",
        }
        answer = _message(b"R", struct.pack("!i", 0))
        for name, value in settings.items():
            answer += _message(b"S", f"{name}\0{value}\0".encode())
        client.sendall(answer + _message(b"Z", b"I"))
        while (kind := stream.read(1)) not in (b"", b"X"):
            stream.read(struct.unpack("!i", stream.read(4))[0] - 4)
            if kind in (b"Q", b"S"):
                client.sendall(_message(b"C", b"SELECT 0\0") + _message(b"Z", b"I"))


def _startup(size: bytes, stream: object) -> int:
    if len(size) < 4:
        return 0
    body: bytes = stream.read(struct.unpack("!i", size)[0] - 4)  # type: ignore[attr-defined]
    code: int = struct.unpack("!i", body[:4])[0]
    return code


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
