"""A TCP proxy in front of Redis that swallows answers: the command arrives, what it said does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class LossyProxy:
    """Forwards everything. While ``losses`` is above nought, a request that contains ``needle`` is
    forwarded, its answer dropped, and the connection closed."""

    def __init__(self, port: int, needle: bytes) -> None:
        self.target, self.needle = port, needle
        self.losses = 0
        self.lost = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.handle, args=(client,), daemon=True).start()

    def handle(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server, suppress(OSError):
            while request := client.recv(65536):
                server.sendall(request)
                answer = server.recv(65536)
                if self.losses and self.needle in request:
                    self.losses -= 1
                    self.lost += 1
                    return
                client.sendall(answer)


@contextmanager
def lossy_proxy(port: int, needle: bytes) -> Iterator[LossyProxy]:
    proxy = LossyProxy(port, needle)
    run: Callable[[], None] = proxy.serve
    threading.Thread(target=run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.server.close()
