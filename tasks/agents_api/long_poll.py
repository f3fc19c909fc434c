"""Waiting for work: a socket and a timer per agent, one Redis subscription per process.

A message on the wake-up channel wakes as many waiters as there is new work. A check every few seconds covers lost
messages, reviews that have become due, and maintenance.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from itertools import count, islice
from typing import Any, TypeVar

import redis.asyncio
from django.conf import settings
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
from tasks.agents_api.agent_cache import agent_cache
from tasks.models import Repository
from tasks.offers.index import ANY_ROLE, BUCKET, LAST_BUCKET, keys_of
from tasks.repositories import enabled_repositories, kept_repositories
from tasks.services.agents import save_last_seen

log = get_logger(__name__)

T = TypeVar("T")
Roles = tuple[str, ...]

WORKERS = 16  # threads for what may block: the database and GitHub
REDIS_CONNECTIONS = 32  # per process; more calls at once take turns
CHECK_SECONDS = (2.0, 4.0)  # between two checks of a process, chosen at random
SAVE_SEEN_SECONDS = 30.0


class Woken(StrEnum):
    """Why a wait is over."""

    WORK = "work"
    TIMEOUT = "timeout"
    GONE = "gone"  # the client
    CLOSING = "closing"  # the server
    REDIS = "redis"  # the subscription broke
    MAINTENANCE = "maintenance"


class Waiter:
    """One waiting request. Without roles it takes anything."""

    __slots__ = ("future", "is_gone", "roles")

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.is_gone = False
        self.future: asyncio.Future[Woken] | None = None  # a new one for each wait

    def wake(self, why: Woken) -> bool:
        if self.future is None or self.future.done():
            return False
        self.future.set_result(why)
        return True


class Waiters:
    """The waiting requests of this process in the order of arrival, a queue for each combination of roles.

    Few combinations are in use, however many requests wait, so waking one does not search through thousands.
    """

    def __init__(self) -> None:
        self._queues: dict[Roles, OrderedDict[Waiter, int]] = {}  # waiter → when it arrived
        self._arrivals = count()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, waiter: Waiter) -> None:
        self._queues.setdefault(waiter.roles, OrderedDict())[waiter] = next(self._arrivals)

    def discard(self, waiter: Waiter) -> None:
        queue = self._queues.get(waiter.roles)
        if queue is None or queue.pop(waiter, None) is None:
            return
        if not queue:
            del self._queues[waiter.roles]

    def roles(self) -> Iterator[Roles]:
        """The combinations of roles in use."""
        return iter(self._queues)

    def wake_one(self, offered: Sequence[str]) -> bool:
        """Wake the longest waiting of those to whom one of the offered roles is useful."""
        queues = [
            queue
            for wanted, queue in self._queues.items()
            if not wanted or not set(wanted).isdisjoint(offered)
        ]
        while fitting := [queue for queue in queues if queue]:
            _, waiter = min(next((arrived, waiter) for waiter, arrived in queue.items()) for queue in fitting)
            self.discard(waiter)
            if waiter.wake(Woken.WORK):
                return True
        return False

    def wake(self, number: int, why: Woken) -> None:
        """Wake so many, the longest waiting first, whatever their roles."""
        everybody = sorted(
            (arrived, waiter) for queue in self._queues.values() for waiter, arrived in queue.items()
        )
        for _, waiter in islice(everybody, number):
            self.discard(waiter)
            waiter.wake(why)

    def wake_all(self, why: Woken) -> None:
        self.wake(len(self), why)


class Hub:
    """What the agents' calls share inside one process: waiters, threads, the Redis client."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        # One retry: a restarted Redis has closed every connection in the pool. The scripts may be repeated.
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
        self.tasks = [self.loop.create_task(self.listen()), self.loop.create_task(self.check_regularly())]

    def close(self) -> None:
        """Answer every waiting request. Called before the server waits for open connections."""
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

    # For one call

    async def run_script(self, script: str, arguments: Sequence[Any]) -> Any:
        """``arguments``: number of keys, keys, the rest. One round trip, unless Redis does not know the script yet."""
        try:
            return await self.client.evalsha(script_digest(script), *arguments)
        except NoScriptError:
            return await self.client.eval(script, *arguments)

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run what may block in the bounded pool.

        It runs to its end even if the request goes away: a claim that nobody finishes would keep its issue locked.
        """
        return await asyncio.shield(self.loop.run_in_executor(self.pool, with_connection, call, *arguments))

    async def in_one_thread(self, call: Callable[[], T]) -> T:
        """The same, but concurrent calls share one thread and its result.

        Otherwise a fleet that arrives at once would fill the pool with threads that wait for one another.
        """
        task = self._shared.get(call)
        if task is None:
            task = self._shared[call] = self.loop.create_task(self.in_thread(call))
            task.add_done_callback(lambda _: self._shared.pop(call, None))
        found: T = await asyncio.shield(task)
        return found

    async def refresh_agents(self) -> None:
        if agent_cache.is_stale:
            await self.in_one_thread(agent_cache.refresh)

    async def repositories(self) -> list[Repository]:
        kept = kept_repositories()
        return kept if kept is not None else await self.in_one_thread(enabled_repositories)

    async def wait(self, waiter: Waiter, seconds: float) -> Woken:
        """Wait until something wakes this waiter, at most so many seconds."""
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

    def note_seen(self, name: str, now: datetime) -> None:
        self.seen[name] = now

    def save_seen(self) -> None:
        seen, self.seen = self.seen, {}
        save_last_seen(seen)

    # Waking

    def wake_offers(self, offers: Sequence[Sequence[str]]) -> int:
        """Wake one fitting waiter for each offer, the longest waiting first."""
        return sum(self.waiters.wake_one(roles) for roles in offers)

    async def listen(self) -> None:
        """The one subscription. While it is broken, waiting requests are answered so, and the checks go on."""
        channel = keyspace().key(k.CHANNEL_WAKE)
        while True:
            client = async_redis_client(socket_timeout=None, health_check_interval=15)
            try:
                async with client.pubsub() as subscription:
                    await subscription.subscribe(channel)
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            self.receive_wake_up(message["data"])
            except RedisError as error:
                log.warning("subscription broke", error=str(error))
                self.waiters.wake_all(Woken.REDIS)
            finally:
                await client.aclose()
            await asyncio.sleep(random.uniform(0.2, 1.0))  # noqa: S311

    def receive_wake_up(self, data: str) -> None:
        try:
            message = json.loads(data)
            offers, number = message.get("offers", []), int(message.get("any", 0))
        except (ValueError, TypeError, AttributeError):
            log.warning("wake-up message not understood", data=data[:200])
            return
        if offers:
            self.wake_offers(offers)
        if number:
            self.waiters.wake(number, Woken.WORK)

    async def check_regularly(self) -> None:
        last_saved_at = self.loop.time()
        while True:
            await asyncio.sleep(random.uniform(*CHECK_SECONDS))  # noqa: S311
            try:
                apply_debug_flag()
                if self.waiters:
                    await self.check_offers()
                if self.seen and self.loop.time() - last_saved_at > SAVE_SEEN_SECONDS:
                    last_saved_at = self.loop.time()
                    await self.in_thread(self.save_seen)
            except RedisError as error:
                log.warning("Redis does not answer", error=str(error))
                self.waiters.wake_all(Woken.REDIS)
            except Exception:
                # The next check comes in seconds. Without checks the waiters would be stranded.
                log.exception("check failed")

    async def check_offers(self) -> None:
        """One round trip for all waiters: is there anything that one of them could be given?"""
        repositories = await self.repositories()
        roles = sorted({role for wanted in self.waiters.roles() for role in (wanted or (ANY_ROLE,))})
        now = timezone.now()
        pipe = self.client.pipeline(transaction=False)
        pipe.get(keyspace().key(k.FLAG_MAINTENANCE))
        for repository in repositories:
            queue_offer_reads(pipe, repository, roles, now)
        flag, *found = await pipe.execute()
        if parse_flag(flag).is_on:
            self.waiters.wake_all(Woken.MAINTENANCE)
            return
        size = 3 + 2 * len(roles)
        reads = [found[i : i + size] for i in range(0, len(found), size)]
        if any(not read[0] or read[2] for read in reads):
            # The index has to be built, or a review has become due: one request has to claim.
            self.waiters.wake(1, Woken.WORK)
        for role, number in claimable(reads, roles).items():
            self.wake_offers([[role]] * number)


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


def queue_offer_reads(pipe: Any, repository: Repository, roles: Sequence[str], now: datetime) -> None:
    keys = keys_of(repository)
    pipe.exists(keys.key(k.INDEX_READY))
    pipe.hkeys(keys.key(k.INDEX_OPEN))
    pipe.zcount(keys.key(k.INDEX_WAITING), "-inf", now.timestamp())
    for role in roles:
        pipe.zrange(keys.key(k.INDEX_OFFER, role=role), 0, 49, withscores=True)
        pipe.zcard(keys.key(k.INDEX_FLOAT, role=role))


def claimable(reads: Sequence[Sequence[Any]], roles: Sequence[str]) -> dict[str, int]:
    """How many waiters of each role would find something, by the rule of the priority gate."""
    found: dict[str, int] = {}
    best_open = min((int(priority) for read in reads for priority in read[1]), default=None)
    for position, role in enumerate(roles):
        scores = [score for read in reads for _, score in read[3 + 2 * position]]
        floating = sum(read[4 + 2 * position] for read in reads)
        buckets = [int(score // BUCKET) for score in scores]
        best = best_open if settings.BROKER.priority_gate == "open" else min(buckets, default=None)
        number = floating + sum(
            1 for bucket in buckets if best is not None and bucket == min(best, LAST_BUCKET)
        )
        if number:
            found[role] = number
    return found
