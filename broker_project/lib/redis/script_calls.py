"""Calls of Lua scripts from an event loop: those of the same moment go to Redis in one write and come back in one.

A fleet that asks at once costs redis-py's way through pool, retry and time-out once a crowd, not once a call. A lone
call goes as it always did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError, RedisError


@lru_cache(maxsize=64)
def name_of(script: str) -> str:
    """What Redis calls a script that it has seen."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


Call = tuple[str, Sequence[Any], "asyncio.Future[Any]"]


class ScriptCalls:
    """Belongs to one event loop. The scripts must bear to be run twice: an answer may be lost on its way."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Call] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, script: str, arguments: Sequence[Any]) -> Any:
        """``arguments``: number of keys, keys, the rest. Raises RedisError."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((script, arguments, future))
        if len(self._waiting) == 1:
            self._loop.call_soon(self._send)
        return await future

    def _send(self) -> None:
        calls, self._waiting = self._waiting, []
        task = self._loop.create_task(self._answer(calls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, calls: Sequence[Call]) -> None:
        try:
            answers = await self._ask(calls)
        except RedisError as error:
            answers = [error] * len(calls)
        except asyncio.CancelledError:  # the loop ends
            for _, _, future in calls:
                future.cancel()
            raise
        for (_, _, future), answer in zip(calls, answers, strict=True):
            if future.done():  # nobody waits for it any more
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _ask(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [await self._ask_one(calls[0])]
        pipe = self._client.pipeline(transaction=False)
        for script, arguments, _ in calls:
            pipe.evalsha(name_of(script), *arguments)
        answers = await pipe.execute(raise_on_error=False)
        return [
            await self._ask_one(call) if isinstance(answer, NoScriptError) else answer
            for call, answer in zip(calls, answers, strict=True)
        ]

    async def _ask_one(self, call: Call) -> Any:
        script, arguments, _ = call
        try:
            return await self._client.evalsha(name_of(script), *arguments)
        except NoScriptError:
            return await self._client.eval(script, *arguments)
