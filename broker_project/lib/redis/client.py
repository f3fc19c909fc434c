"""Connections to Redis, and the keyspace of the configured repository.

A URL names one server, or sentinels that know which server is the master. A new connection asks the sentinels; one
that meets a former master is dropped and made again. While they elect a master there is none, and callers see a Redis
that is away.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha1
from typing import Any, cast

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from django.conf import settings
from django_redis import get_redis_connection

from broker_project.lib.redis.keyspace import Keyspace
from broker_project.lib.redis.urls import is_sentinel, parse_sentinel

CONNECT_SECONDS = 3
ANSWER_SECONDS = 5
TURN_SECONDS = 20

RedisDown = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
)


def redis_client() -> redis.Redis:
    """The shared synchronous client; answers are text. Safe to call from any thread."""
    return cast(redis.Redis, get_redis_connection("keys"))


def raw_client() -> redis.Redis:
    """The same with answers in bytes: a key or a value of others may be anything."""
    return cast(redis.Redis, get_redis_connection("default"))


@lru_cache(maxsize=16)
def script_digest(script: str) -> str:
    """What Redis calls a script that it has seen."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


def run_script(client: redis.Redis, script: str, number_of_keys: int, *words: str | int | float) -> Any:
    """Keys, then arguments. The text is sent only to a Redis that does not know the script (yet, or any more)."""
    try:
        return client.evalsha(script_digest(script), number_of_keys, *words)
    except redis.exceptions.NoScriptError:
        return client.eval(script, number_of_keys, *words)


def keyspace() -> Keyspace:
    found: Keyspace = settings.BROKER_KEYSPACE
    return found


def connect(url: str, **options: Any) -> redis.Redis:
    """A synchronous client with a pool of its own; the caller closes it."""
    if not is_sentinel(url):
        return redis.Redis.from_url(url, **options)
    return redis.Redis.from_pool(sentinel_pool(url, **options))


def sentinel_pool(url: str, **options: Any) -> redis.sentinel.SentinelConnectionPool:
    address = parse_sentinel(url)
    asked = redis.sentinel.Sentinel(address.sentinels, sentinel_kwargs=address.sentinel_options())  # type: ignore[no-untyped-call]
    return redis.sentinel.SentinelConnectionPool(  # type: ignore[no-untyped-call]
        address.service, asked, **{**address.server_options(), **options}
    )


def async_redis_client(*, max_connections: int = 4, **options: Any) -> redis.asyncio.Redis:
    """A new asynchronous client for the running loop; the caller closes it.

    A caller that finds all its connections in use waits for one: a thousand agents at once are served in turn.
    """
    given = {
        "max_connections": max_connections,
        "timeout": TURN_SECONDS,
        "decode_responses": True,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        **options,
    }
    url = settings.REDIS_URL
    if not is_sentinel(url):
        return redis.asyncio.Redis.from_pool(redis.asyncio.BlockingConnectionPool.from_url(url, **given))
    address = parse_sentinel(url)
    asked = redis.asyncio.sentinel.Sentinel(address.sentinels, sentinel_kwargs=address.sentinel_options())  # type: ignore[no-untyped-call]
    pool = BlockingSentinelPool(address.service, asked, **{**address.server_options(), **given})  # type: ignore[no-untyped-call]
    return redis.asyncio.Redis.from_pool(pool)


class BlockingSentinelPool(
    redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool
):
    """Connections to the master; a caller that finds all of them in use waits."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # closing for good, not just for a new master
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()
