"""Figures of pages that many people look at: quick ones are always fresh, slow ones are kept for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from django.core.cache import cache
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from broker_project.lib.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")
QUICK_SECONDS = 0.03
KEPT_PER_SECOND = 100  # a figure that takes 0.1 s is kept for 10 s
MAX_KEPT_SECONDS = 60


def remembered(name: str, compute: Callable[[], T]) -> T:
    """What ``compute`` says, kept in proportion to what it costs. Works without Redis, then always fresh."""
    key = f"figure:{name}"
    try:
        found: T | None = cache.get(key)
    except (ConnectionInterrupted, RedisError):
        return compute()
    if found is not None:
        return found
    started = time.perf_counter()
    value = compute()
    cost = time.perf_counter() - started
    if cost >= QUICK_SECONDS:
        try:
            cache.set(key, value, min(MAX_KEPT_SECONDS, max(1, round(cost * KEPT_PER_SECOND))))
        except (ConnectionInterrupted, RedisError) as error:
            log.warning("figure not kept", figure=name, error=str(error))
    return value
