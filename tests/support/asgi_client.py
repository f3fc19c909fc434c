"""The real ASGI application inside the test process, with its lifespan, behind an HTTP client for any thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from django.conf import LazySettings

from broker_project.asgi import Application

T = TypeVar("T")
CALL_SECONDS = 120


class AsgiClient:
    """Calls one application that runs on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._application = Application()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asgi", daemon=True)
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def start(self) -> None:
        self._thread.start()
        self._on_loop(self._start())

    def stop(self) -> None:
        self._on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        lifespan = self._application({"type": "lifespan"}, self._messages.get, self._replies.put)
        self._lifespan = asyncio.create_task(lifespan)
        await self._lifespan_event("lifespan.startup")
        transport = httpx.ASGITransport(self._application)  # type: ignore[arg-type]
        self._http = httpx.AsyncClient(transport=transport, base_url="http://testserver")

    async def _stop(self) -> None:
        await self._http.aclose()
        await self._lifespan_event("lifespan.shutdown")
        await self._lifespan

    async def _lifespan_event(self, name: str) -> None:
        await self._messages.put({"type": name})
        assert await self._replies.get() == {"type": f"{name}.complete"}

    def _on_loop(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_SECONDS)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        answer: httpx.Response = self._on_loop(self._http.request(method, path, timeout=CALL_SECONDS, **more))
        return answer

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, json: Any = None, **more: Any) -> httpx.Response:
        return self.request("POST", path, json=json, **more)


@contextmanager
def running_application() -> Iterator[AsgiClient]:
    client = AsgiClient()
    client.start()
    try:
        yield client
    finally:
        client.stop()


class _Collect(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.statements.append(str(record.sql))  # type: ignore[attr-defined]


def statements_during(settings: LazySettings, call: Callable[[], T]) -> tuple[T, list[str]]:
    """What a call returns, and the SQL of all threads meanwhile. Django logs it while DEBUG is on."""
    handler, logger = _Collect(), logging.getLogger("django.db.backends")
    debug, level = settings.DEBUG, logger.level
    settings.DEBUG = True
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        found = call()
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        settings.DEBUG = debug
    return found, handler.statements
