"""A TCP gate in front of a server: counts the requests that pass, does something at the n-th, can be shut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# True: whoever is on this connection hears nothing more; the connection ends.
Action = Callable[[], bool]


@dataclass
class Order:
    """Do ``action`` when the n-th request has arrived (before it is passed on) or when its answer has."""

    number: int
    when: str
    action: Action
    is_done: bool = False


class Gate:
    """Listens on a port of its own. What a client sends in one piece counts as one request (a round trip)."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.count = 0
        self.is_counting = False
        self.order: Order | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = _listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._serve()

    def arm(self, order: Order | None = None) -> None:
        """Begin to count at nought."""
        with self._lock:
            self.count, self.is_counting, self.order = 0, True, order

    def disarm(self) -> int:
        """Stop counting; how many requests there were."""
        with self._lock:
            self.is_counting, self.order = False, None
            return self.count

    def shut(self) -> None:
        """From now on connections are refused; those that are open end."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every open connection."""
        with self._lock:
            sockets = list(self._open)
        for one in sockets:
            _end(one)

    def reopen(self) -> None:
        self._listener = _listen(self.port)
        self._serve()

    def close(self) -> None:
        self.shut()

    def _serve(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target_port))
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
        waiting: list[Order] = []
        back = threading.Thread(target=self._back, args=(client, server, waiting), daemon=True)
        back.start()
        with suppress(OSError):
            while piece := client.recv(1 << 20):
                order = self._counted()
                if order is not None and order.when == "before":
                    order.is_done = True
                    if order.action():
                        break
                elif order is not None:
                    waiting.append(order)
                server.sendall(piece)
        for one in (client, server):
            _end(one)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _back(self, client: socket.socket, server: socket.socket, waiting: list[Order]) -> None:
        with suppress(OSError):
            while piece := server.recv(1 << 20):
                if waiting:
                    order = waiting.pop()
                    order.is_done = True
                    if order.action():
                        break
                client.sendall(piece)
        for one in (client, server):
            _end(one)

    def _counted(self) -> Order | None:
        with self._lock:
            if not self.is_counting:
                return None
            self.count += 1
            order = self.order
            return order if order is not None and order.number == self.count else None


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    return listener


@contextmanager
def gate_to(port: int) -> Iterator[Gate]:
    gate = Gate(port)
    try:
        yield gate
    finally:
        gate.close()
