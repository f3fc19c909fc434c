"""The load generator: raw HTTP/1.1 on kept connections, in a process of its own.

``run`` sends requests as fast as a number of connections allows. ``hold`` leaves requests waiting; ``collect`` returns
the ones that were answered, with wall-clock times that can be compared with those of Redis.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, cast

import uvloop

from bench import json_lines
from bench.figures import percentile

CONNECT_AT_ONCE = 100
KEPT_BODIES = 20_000

# A request on the wire: path, JSON body, bearer token.
Wanted = dict[str, Any]


def as_bytes(wanted: Wanted) -> bytes:
    body = json.dumps(wanted.get("body") or {}).encode()
    token = wanted.get("token")
    access = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {wanted['path']} HTTP/1.1\r\nHost: 127.0.0.1\r\n{access}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class BadAnswer(Exception):
    """The server hung up, or answered nothing."""


class Connection(asyncio.Protocol):
    """One kept connection with at most one request on its way."""

    def __init__(self, on_answer: Callable[[Connection, int, bytes], None]) -> None:
        self.on_answer = on_answer
        self.buffer = b""
        self.sent_at = 0.0
        self.name = ""
        self.is_lost = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports are no subclass of asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.sent_at = time.perf_counter()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        start = head.find(b"content-length:")
        length = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(self.buffer) < end + 4 + length:
            return
        body, self.buffer = self.buffer[end + 4 : end + 4 + length], b""
        self.on_answer(self, int(head[9:12]), body)


class Generator:
    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.held: list[Connection] = []
        self.answered: list[dict[str, Any]] = []
        self.news = asyncio.Event()

    # As fast as possible

    def run(
        self,
        port: int,
        requests: list[Wanted],
        connections: int,
        seconds: float | None = None,
        count: int | None = None,
        keep_bodies: bool = False,
    ) -> dict[str, Any]:
        """Send the requests in turn, for so many seconds or so many times."""
        return self.loop.run_until_complete(
            self._run(port, [as_bytes(one) for one in requests], connections, seconds, count, keep_bodies)
        )

    async def _run(
        self,
        port: int,
        requests: list[bytes],
        connections: int,
        seconds: float | None,
        count: int | None,
        keep_bodies: bool,
    ) -> dict[str, Any]:
        times: list[float] = []
        statuses: Counter[str] = Counter()
        bodies: list[Any] = []
        supply: Iterator[bytes] = cycle(requests)
        left = count if count is not None else float("inf")
        until = float("inf")
        busy = 0
        done = asyncio.Event()

        def next_request(connection: Connection) -> None:
            nonlocal left, busy
            if left <= 0 or time.perf_counter() >= until:
                busy -= 1
                if busy == 0:
                    done.set()
                return
            left -= 1
            connection.send(next(supply))

        def on_answer(connection: Connection, status: int, body: bytes) -> None:
            times.append(time.perf_counter() - connection.sent_at)
            statuses[str(status)] += 1
            if keep_bodies and len(bodies) < KEPT_BODIES and body:
                bodies.append(json.loads(body))
            next_request(connection)

        opened = await self._open(port, connections, on_answer)
        started = time.perf_counter()
        if seconds is not None:
            until = started + seconds
        busy = len(opened)
        for connection in opened:
            next_request(connection)
        watch = asyncio.create_task(watch_for_loss(opened, done))
        await asyncio.wait_for(done.wait(), 300)
        elapsed = time.perf_counter() - started
        watch.cancel()
        close(opened)
        if any(connection.is_lost for connection in opened) or not times:
            raise BadAnswer(f"the server hung up ({dict(statuses)})")
        return {
            "seconds": elapsed,
            "count": len(times),
            "p50_ms": 1000 * percentile(times, 0.50),
            "p95_ms": 1000 * percentile(times, 0.95),
            "p99_ms": 1000 * percentile(times, 0.99),
            "statuses": dict(statuses),
            "bodies": bodies,
        }

    async def _open(
        self, port: int, number: int, on_answer: Callable[[Connection, int, bytes], None]
    ) -> list[Connection]:
        opened: list[Connection] = []
        for start in range(0, number, CONNECT_AT_ONCE):
            pairs = await asyncio.gather(
                *(
                    self.loop.create_connection(lambda: Connection(on_answer), "127.0.0.1", port)
                    for _ in range(min(CONNECT_AT_ONCE, number - start))
                )
            )
            opened += [protocol for _, protocol in pairs]
        return opened

    # Waiting

    def hold(self, port: int, requests: list[Wanted]) -> int:
        """Send each request on a connection of its own and let it wait. Returns how many were answered at once."""
        self.loop.run_until_complete(self._hold(port, requests))
        return len(self.answered)

    async def _hold(self, port: int, requests: list[Wanted]) -> None:
        def on_answer(connection: Connection, status: int, body: bytes) -> None:
            kept = json.loads(body) if body else {}
            known = {key: kept[key] for key in ("issue_id", "assignment_id", "error") if key in kept}
            self.answered.append({"agent": connection.name, "at": time.time(), "status": status, **known})
            self.news.set()

        for start in range(0, len(requests), CONNECT_AT_ONCE):
            part = requests[start : start + CONNECT_AT_ONCE]
            for connection, wanted in zip(await self._open(port, len(part), on_answer), part, strict=True):
                connection.name = str(wanted["body"].get("agent_id", ""))
                connection.send(as_bytes(wanted))
                self.held.append(connection)

    def collect(self, number: int, seconds: float) -> list[dict[str, Any]]:
        """The next answers: so many, or fewer if the time runs out first."""
        return self.loop.run_until_complete(self._collect(number, seconds))

    async def _collect(self, number: int, seconds: float) -> list[dict[str, Any]]:
        until = self.loop.time() + seconds
        while len(self.answered) < number and (left := until - self.loop.time()) > 0:
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), left)
            except TimeoutError:
                break
        found, self.answered = self.answered[:number], self.answered[number:]
        return found

    def let_go(self) -> int:
        """Close the connections that still wait."""
        number = len(self.held)
        close(self.held)
        self.loop.run_until_complete(asyncio.sleep(0.2))
        self.held, self.answered = [], []
        return number


async def watch_for_loss(opened: list[Connection], done: asyncio.Event) -> None:
    """A connection that the server closed never answers, so end the round instead of waiting for it."""
    while not any(connection.is_lost for connection in opened):
        await asyncio.sleep(0.05)
    done.set()


def close(connections: list[Connection]) -> None:
    for connection in connections:
        if connection.transport is not None and not connection.is_lost:
            connection.transport.close()


if __name__ == "__main__":
    generator = Generator()
    json_lines.serve(
        {
            "run": generator.run,
            "hold": generator.hold,
            "collect": generator.collect,
            "let_go": generator.let_go,
        }
    )
