"""A proxy in front of Redis that counts round trips. Only for counting: nothing is timed through it.

A round trip begins with the first bytes that a client sends after an answer. Redis' own counter of reads does not tell:
a pipeline of ten kilobytes may arrive in two reads and is one round trip. So the proxy parses the stream: bytes that
continue a command, or come between MULTI and EXEC, belong to the round trip that has begun.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

import hiredis

CHUNK = 1 << 16


class Side:
    """One half of a proxied connection."""

    def __init__(self, own: socket.socket, is_client: bool) -> None:
        self.own = own
        self.is_client = is_client
        self.other: Side | None = None
        # For the client's half:
        self.is_waiting = False  # for the answer of the server
        self.is_in_multi = False
        self.reader = hiredis.Reader()

    @property
    def is_inside(self) -> bool:
        """Whether the next bytes belong to a round trip that has begun."""
        return self.is_waiting or self.is_in_multi or bool(self.reader.has_data())

    def parse(self, data: bytes) -> None:
        self.reader.feed(data)
        while (command := self.reader.gets()) is not False:
            word = bytes(command[0]).upper() if isinstance(command, list) and command else b""
            if word == b"MULTI":
                self.is_in_multi = True
            elif word in (b"EXEC", b"DISCARD"):
                self.is_in_multi = False


class RoundTripCounter(threading.Thread):
    """Listens on ``port``; ``count`` grows by one with every round trip."""

    def __init__(self, redis_port: int) -> None:
        super().__init__(name="bench-round-trips", daemon=True)
        self.redis_port = redis_port
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._is_stopping = False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        self._is_stopping = True
        self.join(5)

    def run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        while not self._is_stopping:
            ready = [key.data for key, _ in self._selector.select(0.1)]
            if None in ready:
                self._accept()
            sides = [side for side in ready if side is not None]
            # Clients first: the second read of a request is then seen before the answer to the first.
            for side in sorted(sides, key=lambda one: not one.is_client):
                self._pass_on(side)
        for key in list(self._selector.get_map().values()):
            with contextlib.suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self.redis_port))
        ends = Side(client, True), Side(server, False)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for side in ends:
            side.own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(side.own, selectors.EVENT_READ, side)

    def _pass_on(self, side: Side) -> None:
        assert side.other is not None
        try:
            data = side.own.recv(CHUNK)
            if data:
                side.other.own.sendall(data)
        except OSError:
            data = b""
        if not data:
            for one in (side, side.other):
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(one.own)
                one.own.close()
            return
        client = side if side.is_client else side.other
        if side.is_client:
            if not client.is_inside:
                self.count += 1
            client.parse(data)
        client.is_waiting = side.is_client
