"""The ASGI application: request-task and heartbeat go to the agents' entry, everything else to Django."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")

_django = get_asgi_application()

# After Django is set up: these import models.
from broker_project.lib.redis.startup import start_embedded_redis_for_this_process  # noqa: E402
from broker_project.lib.var_folder_lock import hold_var_folder  # noqa: E402
from broker_project.ops.body_limit import BodyTooLarge, check_declared_length, limit_bytes_of, limited  # noqa: E402
from tasks.agents_api import answers  # noqa: E402
from tasks.agents_api.entry import AgentEntry, send_answer  # noqa: E402
from tasks.agents_api.long_poll import Hub  # noqa: E402


class Application:
    """One per process. The entry lives as long as the server's lifespan."""

    def __init__(self) -> None:
        self.entry: AgentEntry | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if self.entry is not None and AgentEntry.matches(scope):
                await self.entry(scope, receive, send)
            else:
                await call_django(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.lifespan(receive, send)

    async def lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                hold_var_folder(settings.BROKER.var)
                await asyncio.to_thread(start_embedded_redis_for_this_process)
                hub = Hub()
                hub.start()
                self.entry = AgentEntry(hub)
                close_on_signals(hub.close)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self.entry is not None:
                    await self.entry.hub.stop()
                    self.entry = None
                await send({"type": "lifespan.shutdown.complete"})
                return


async def call_django(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Django's answer; or, if the server stops waiting for it, an answer to come back later.

    Django, once cancelled, waits for its thread and keeps the whole loop waiting with it. So it is not cancelled: it
    finishes, or ends with the process. Either is fine.
    """
    has_begun = is_over = False

    async def send_unless_over(message: dict[str, Any]) -> None:
        nonlocal has_begun
        if not is_over:
            has_begun = True
            await send(message)

    work = asyncio.ensure_future(call_django_with_limit(scope, receive, send_unless_over))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        if has_begun:
            raise
        is_over = True
        await send_answer(send, answers.stopping())


async def call_django_with_limit(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """413 if the body is larger than its address takes."""
    limit_bytes = limit_bytes_of(scope["path"])
    try:
        check_declared_length(scope, limit_bytes)
        await _django(scope, limited(receive, limit_bytes), send)
    except BodyTooLarge:
        # Django reads the whole body before it answers, so nothing has been sent yet.
        await send_answer(send, answers.too_large(limit_bytes), closes_connection=True)


def close_on_signals(close: Callable[[], None]) -> None:
    """Answer waiting agents as soon as the server is told to stop.

    The server waits for open connections before it ends the lifespan. Without this they would keep it for minutes.
    """
    loop = asyncio.get_running_loop()

    def wrap(number: int) -> None:
        before = signal.getsignal(number)

        def handler(received: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(close)
            if callable(before):
                before(received, frame)

        if callable(before):
            signal.signal(number, handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            wrap(number)
        except ValueError:
            return  # not the main thread: whoever runs us there ends us by the lifespan


application = Application()
