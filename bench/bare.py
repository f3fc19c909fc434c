"""The yardstick: the least that an ASGI application can do for the same answer.

``POST /claim`` runs one Lua claim with redis-py. ``POST /wait`` waits for a message on one subscription, then claims.
No Django, no validation, no database. ``BENCH_REDIS_URL`` names the Redis.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError

from bench.serve import reply

CHANNEL = "bench:bare:wake"
QUEUE = "bench:bare:queue"
# Take the head of the queue and lock it: any claim has to do that much.
CLAIM = """
local head = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not head then return false end
if not redis.call('SET', KEYS[2] .. head, ARGV[1], 'NX', 'EX', 600) then return false end
redis.call('ZREM', KEYS[1], head)
return head
"""


def new_client() -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(os.environ["BENCH_REDIS_URL"], decode_responses=True)


class Bare:
    def __init__(self) -> None:
        self.client: redis.asyncio.Redis | None = None
        self.listener: asyncio.Task[None] | None = None
        self.sha = ""
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
        elif scope["method"] == "GET":
            await reply(send, 200, b'{"status":"ok"}')
        else:
            body = json.loads((await receive())["body"])
            if scope["path"] == "/wait":
                woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.waiting.append(woken)
                await woken
            head = await self.claim(body["agent_id"])
            if head is None:
                await reply(send, 204, b"")
            else:
                await reply(send, 200, json.dumps({"issue_id": head}).encode())

    async def lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.client = new_client()
                self.listener = asyncio.create_task(self.listen())
                await send({"type": "lifespan.startup.complete"})
            else:
                assert self.listener is not None
                assert self.client is not None
                self.listener.cancel()
                await self.client.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def claim(self, agent: str) -> str | None:
        assert self.client is not None
        if not self.sha:
            self.sha = str(await self.client.script_load(CLAIM))
        try:
            found = await self.client.evalsha(self.sha, 2, QUEUE, "bench:bare:lock:", agent)
        except NoScriptError:
            self.sha = ""
            return await self.claim(agent)
        return str(found) if found else None

    async def listen(self) -> None:
        client = new_client()
        async with client, client.pubsub() as subscription:
            await subscription.subscribe(CHANNEL)
            async for message in subscription.listen():
                if message["type"] == "message":
                    for _ in range(min(int(message["data"]), len(self.waiting))):
                        woken = self.waiting.popleft()
                        if not woken.done():
                            woken.set_result(None)


application = Bare()
