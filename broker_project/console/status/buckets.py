"""Hours and days of a chart, and the memory of what was worked out for those that are over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.core.cache import cache
from django.utils import timezone
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from broker_project.lib.logs import get_logger

log = get_logger(__name__)

HOURS, DAYS = 24, 7
SETTLED = timedelta(minutes=10)  # longer than a transaction may hold events back
KEPT_SECONDS = 8 * 86400


@dataclass(frozen=True)
class Bucket:
    start: datetime
    end: datetime

    def key(self, name: str) -> str:
        return f"bucket:{name}:{self.start.timestamp():.0f}:{(self.end - self.start).total_seconds():.0f}"

    def holds(self, moment: datetime) -> bool:
        return self.start <= moment < self.end


def hours(now: datetime) -> list[Bucket]:
    """The last 24 hours in local time, the present one last."""
    this_hour = timezone.localtime(now).replace(minute=0, second=0, microsecond=0)
    return between([this_hour + timedelta(hours=i) for i in range(1 - HOURS, 2)])


def days(now: datetime) -> list[Bucket]:
    today = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    return between([today + timedelta(days=i) for i in range(1 - DAYS, 2)])


def between(edges: Sequence[datetime]) -> list[Bucket]:
    return [Bucket(start, end) for start, end in pairwise(edges)]


def known(name: str, buckets: Iterable[Bucket]) -> dict[Bucket, Any]:
    """What is remembered of these; nothing while Redis is away."""
    by_key = {bucket.key(name): bucket for bucket in buckets}
    try:
        found: dict[str, Any] = cache.get_many(by_key)
    except (ConnectionInterrupted, RedisError):
        return {}
    return {by_key[key]: value for key, value in found.items()}


def remember(name: str, values: Mapping[Bucket, Any], now: datetime) -> None:
    """Keep what can no longer change."""
    final = {bucket.key(name): value for bucket, value in values.items() if bucket.end <= now - SETTLED}
    if not final:
        return
    try:
        cache.set_many(final, KEPT_SECONDS)
    except (ConnectionInterrupted, RedisError) as error:
        log.warning("buckets not kept", name=name, error=str(error))
