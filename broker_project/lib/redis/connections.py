"""Connections to what a Redis URL names: one server, or whichever server its sentinels call master now.

A new connection asks the sentinels; one that meets a former master is dropped and made again. While they
choose a new master there is none, and callers see a Redis that is away.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from django_redis.pool import ConnectionFactory

from broker_project.lib.redis.urls import is_sentinel, parse_sentinel


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


def async_pool(url: str, **options: Any) -> redis.asyncio.BlockingConnectionPool:
    """A pool for the running loop, whose users take turns (``max_connections``, ``timeout``)."""
    if not is_sentinel(url):
        return redis.asyncio.BlockingConnectionPool.from_url(url, **options)
    address = parse_sentinel(url)
    asked = redis.asyncio.sentinel.Sentinel(address.sentinels, sentinel_kwargs=address.sentinel_options())  # type: ignore[no-untyped-call]
    return BlockingSentinelPool(  # type: ignore[no-untyped-call]
        address.service, asked, **{**address.server_options(), **options}
    )


class BlockingSentinelPool(
    redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool
):
    """Connections to the master; who finds all of them in use waits."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # the end, and not just a new master
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


class CacheConnections(ConnectionFactory[Any, Any, Any]):  # type: ignore[misc]
    """django-redis' factory, for both kinds of URL. It keeps one pool a URL and process."""

    def get_connection_pool(self, params: dict[str, Any]) -> Any:
        given = dict(params)
        if not is_sentinel(given["url"]):
            return super().get_connection_pool(given)
        return sentinel_pool(given.pop("url"), **{**given, **self.pool_cls_kwargs})
