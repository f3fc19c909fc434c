"""The ASGI application: the agents' hot calls on a lean path, everything else through stock Django."""

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
from broker_project.lib.in_use import mark_in_use  # noqa: E402
from broker_project.lib.redis.startup import start_embedded_redis_for_this_process  # noqa: E402
from broker_project.ops.body_limit import call_capped  # noqa: E402
from tasks.agents_api.entry import HotPath, reply  # noqa: E402
from tasks.agents_api.long_poll import Hub  # noqa: E402
from tasks.agents_api.task_request import stopping_answer  # noqa: E402


class Application:
    """One per process. The hub lives as long as the server's lifespan."""

    def __init__(self) -> None:
        self.hot: HotPath | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if self.hot is not None and HotPath.matches(scope):
                await self.hot(scope, receive, send)
            else:
                await call_django(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.lifespan(receive, send)

    async def lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                mark_in_use(settings.BROKER.var)
                await asyncio.to_thread(start_embedded_redis_for_this_process)
                hub = Hub()
                hub.start()
                self.hot = HotPath(hub)
                close_on_signals(hub.close)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self.hot is not None:
                    await self.hot.hub.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def call_django(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Django's answer; or, when the server's patience ends while it stops, a word to come back.

    Django, once cancelled, waits for its thread and keeps the whole loop waiting with it. So it is left alone: what it
    does is done to its end, or cut off with the process, and either is fine.
    """
    has_begun = is_over = False

    async def watched(message: dict[str, Any]) -> None:
        nonlocal has_begun
        if not is_over:
            has_begun = True
            await send(message)

    work = asyncio.ensure_future(call_capped(_django, scope, receive, watched))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        if has_begun:
            raise
        is_over = True
        await reply(send, stopping_answer())


def close_on_signals(close: Callable[[], None]) -> None:
    """Send waiting agents home as soon as the server is told to stop.

    The server waits for open connections before it ends the lifespan; without this they would keep it for minutes.
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
