"""Waiting for work: a socket and a timer an agent, one Redis subscription a process.

A message on the wake channel wakes as many waiters as there is new work. A look every few seconds covers lost
messages, reviews that have become due, and maintenance.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

import redis.asyncio
from django.db import close_old_connections, connection
from django.utils import timezone
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from broker_project.lib.config.dynamic import apply_debug_flag
from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import async_redis_client, keyspace, script_digest
from broker_project.lib.redis.flags import parse_flag
from tasks.agents_api.waiters import Waiter, Waiters, Woken
from tasks.models import Agent, Repository
from tasks.offers.index import ANY_ROLE, BUCKET, LAST_BUCKET, keys_of
from tasks.repositories import enabled_repositories, kept_repositories

log = get_logger(__name__)
T = TypeVar("T")

WORKERS = 16  # what may block: the database and GitHub
REDIS_CONNECTIONS = 32  # a process; more requests at once take turns
LOOK_SECONDS = (2.0, 4.0)  # between two looks of a process, at random
SEEN_SECONDS = 30.0


class Hub:
    """Everything the lean path shares inside one process and event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Once more: a restarted Redis has closed every connection in the pool. The scripts may be repeated.
        self.client: redis.asyncio.Redis = async_redis_client(
            max_connections=REDIS_CONNECTIONS, retry=Retry(NoBackoff(), 1)
        )
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="broker-work")
        self.waiters = Waiters()
        self.seen: dict[str, datetime] = {}
        self.is_closing = False
        self.tasks: list[asyncio.Task[None]] = []
        self._shared: dict[Callable[[], Any], asyncio.Task[Any]] = {}

    def start(self) -> None:
        self.tasks = [self.loop.create_task(self.listen()), self.loop.create_task(self.look_around())]

    def close(self) -> None:
        """Send every waiter home. The server calls this before it waits for open connections."""
        self.is_closing = True
        self.waiters.wake_all(Woken.CLOSING)

    async def stop(self) -> None:
        self.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.in_thread(self.save_seen)
        await self.client.aclose()
        await asyncio.to_thread(self.pool.shutdown)

    async def run_script(self, script: str, arguments: Sequence[Any]) -> Any:
        """``arguments``: number of keys, keys, the rest. One round trip, unless Redis does not know the script."""
        try:
            return await self.client.evalsha(script_digest(script), *arguments)
        except NoScriptError:
            return await self.client.eval(script, *arguments)

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run what may block in the bounded pool.

        It runs to its end even if the request goes away: a claim that nobody finished would keep its issue locked.
        """
        return await asyncio.shield(self.loop.run_in_executor(self.pool, with_connection, call, *arguments))

    async def in_one_thread(self, call: Callable[[], T]) -> T:
        """The same for what many ask for in the same moment: one thread does it, all get what comes of it.

        Otherwise a fleet that comes at once would fill the pool with threads that wait for one another.
        """
        task = self._shared.get(call)
        if task is None:
            task = self._shared[call] = self.loop.create_task(self.in_thread(call))
            task.add_done_callback(lambda _: self._shared.pop(call, None))
        found: T = await asyncio.shield(task)
        return found

    async def repositories(self) -> list[Repository]:
        kept = kept_repositories()
        return kept if kept is not None else await self.in_one_thread(enabled_repositories)

    async def wait(self, waiter: Waiter, seconds: float) -> Woken:
        """Wait until something wakes this waiter, or so many seconds."""
        if self.is_closing:
            return Woken.CLOSING
        waiter.future = self.loop.create_future()
        self.waiters.add(waiter)
        timer = self.loop.call_later(seconds, waiter.wake, Woken.TIMEOUT)
        try:
            return await waiter.future
        finally:
            timer.cancel()
            self.waiters.discard(waiter)

    def wake_offers(self, offers: Sequence[Sequence[str]]) -> int:
        """Wake one fitting waiter for each offer, the longest waiting first."""
        return sum(self.waiters.wake_one(roles) for roles in offers)

    async def listen(self) -> None:
        """The one subscription. While it is broken, waiters are told, and the looks go on."""
        channel = keyspace().key(k.CHANNEL_WAKE)
        while True:
            client = async_redis_client(socket_timeout=None, health_check_interval=15)
            try:
                async with client.pubsub() as subscription:
                    await subscription.subscribe(channel)
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            self.ring(message["data"])
            except RedisError as error:
                log.warning("subscription broke", error=str(error))
                self.waiters.wake_all(Woken.REDIS)
            finally:
                await client.aclose()
            await asyncio.sleep(random.uniform(0.2, 1.0))  # noqa: S311

    def ring(self, data: str) -> None:
        try:
            message = json.loads(data)
            offers, number = message.get("offers", []), int(message.get("any", 0))
        except (ValueError, TypeError, AttributeError):
            log.warning("wake message not understood", data=data[:200])
            return
        if offers:
            self.wake_offers(offers)
        if number:
            self.waiters.wake(number, Woken.WORK)

    async def look_around(self) -> None:
        last_saved = self.loop.time()
        while True:
            await asyncio.sleep(random.uniform(*LOOK_SECONDS))  # noqa: S311
            try:
                apply_debug_flag()
                if self.waiters:
                    await self.look()
                if self.seen and self.loop.time() - last_saved > SEEN_SECONDS:
                    last_saved = self.loop.time()
                    await self.in_thread(self.save_seen)
            except RedisError as error:
                log.warning("Redis does not answer", error=str(error))
                self.waiters.wake_all(Woken.REDIS)
            except Exception:
                # The next look comes in seconds; a process that stopped looking would strand its waiters.
                log.exception("look failed")

    async def look(self) -> None:
        """One round trip for all waiters: is there anything that one of them could be given?"""
        repositories = await self.repositories()
        roles = sorted({role for wanted in self.waiters.roles() for role in (wanted or (ANY_ROLE,))})
        now = timezone.now()
        pipe = self.client.pipeline(transaction=False)
        pipe.get(keyspace().key(k.FLAG_MAINTENANCE))
        for repository in repositories:
            queue_look(pipe, repository, roles, now)
        flag, *answers = await pipe.execute()
        if parse_flag(flag).is_on:
            self.waiters.wake_all(Woken.MAINTENANCE)
            return
        size = 3 + 2 * len(roles)
        looks = [answers[i : i + size] for i in range(0, len(answers), size)]
        if any(not look[0] or look[2] for look in looks):
            # The index has to be built, or a review has become due: somebody has to ask.
            self.waiters.wake(1, Woken.WORK)
        for role, number in claimable(looks, roles).items():
            self.wake_offers([[role]] * number)

    def note_seen(self, name: str, now: datetime) -> None:
        self.seen[name] = now

    def save_seen(self) -> None:
        seen, self.seen = self.seen, {}
        if seen:
            Agent.objects.filter(name__in=list(seen)).update(last_seen_at=max(seen.values()))


def with_connection(call: Callable[..., T], *arguments: Any) -> T:
    """Call it in a thread of the pool. A broken connection is replaced, as Django does around a request."""
    close_old_connections()
    try:
        return call(*arguments)
    finally:
        if connection.vendor == "sqlite":
            # The pool's threads stay, and opening the file costs more than a query. After an error it is reopened.
            # PostgreSQL's connections go back to their own pool.
            connection.close_at = 0.0 if connection.errors_occurred else None
        close_old_connections()


def queue_look(pipe: Any, repository: Repository, roles: Sequence[str], now: datetime) -> None:
    keys = keys_of(repository)
    pipe.exists(keys.key(k.INDEX_READY))
    pipe.hkeys(keys.key(k.INDEX_OPEN))
    pipe.zcount(keys.key(k.INDEX_WAITING), "-inf", now.timestamp())
    for role in roles:
        pipe.zrange(keys.key(k.INDEX_OFFER, role=role), 0, 49, withscores=True)
        pipe.zcard(keys.key(k.INDEX_FLOAT, role=role))


def claimable(looks: Sequence[Sequence[Any]], roles: Sequence[str]) -> dict[str, int]:
    """How many waiters of each role would find something, by the rule of the gate."""
    from django.conf import settings

    found: dict[str, int] = {}
    best_open = min((int(p) for look in looks for p in look[1]), default=None)
    for position, role in enumerate(roles):
        heads = [score for look in looks for _, score in look[3 + 2 * position]]
        floats = sum(look[4 + 2 * position] for look in looks)
        buckets = [int(score // BUCKET) for score in heads]
        best = best_open if settings.BROKER.priority_gate == "open" else min(buckets, default=None)
        number = floats + sum(
            1 for bucket in buckets if best is not None and bucket == min(best, LAST_BUCKET)
        )
        if number:
            found[role] = number
    return found


Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
