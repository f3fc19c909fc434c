"""Connections to Redis, and the keyspace of the configured repository."""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.asyncio
from django.conf import settings
from django_redis import get_redis_connection

from broker_project.lib.redis.connections import async_pool
from broker_project.lib.redis.keyspace import Keyspace

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


def async_redis_client(*, max_connections: int = 4, **options: Any) -> redis.asyncio.Redis:
    """A new asynchronous client for the running loop; the caller closes it.

    Who finds all its connections in use waits for one: a thousand agents that come at once are served in turn.
    """
    pool = async_pool(
        settings.REDIS_URL,
        max_connections=max_connections,
        timeout=TURN_SECONDS,
        decode_responses=True,
        socket_connect_timeout=CONNECT_SECONDS,
        **{"socket_timeout": ANSWER_SECONDS, **options},
    )
    return redis.asyncio.Redis.from_pool(pool)


def keyspace() -> Keyspace:
    found: Keyspace = settings.BROKER_KEYSPACE
    return found
