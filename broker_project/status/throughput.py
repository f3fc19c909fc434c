"""How much was finished, hour by hour and day by day, from the events of each kind of work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.core.cache import cache
from django.db.models import Count, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from broker_project.lib import keyspace as k
from broker_project.lib.logs import get_logger
from broker_project.lib.short_cache import remembered
from broker_project.lib.stores import keyspace, redis_client
from broker_project.status.charts import Bars
from feeds.models import ItemEvent
from fixtures.models import Event as MatchEvent
from tasks.models import Event as TaskEvent

log = get_logger(__name__)

HOURS, DAYS = 24, 7
SETTLED = timedelta(minutes=10)  # longer than a transaction may hold events back
BUCKET_SECONDS = 8 * 86400


def hour_edges(now: datetime) -> list[datetime]:
    """The beginnings of the last 24 hours in local time, and the end of the present one."""
    this_hour = timezone.localtime(now).replace(minute=0, second=0, microsecond=0)
    return [this_hour + timedelta(hours=i) for i in range(1 - HOURS, 2)]


def day_edges(now: datetime) -> list[datetime]:
    today = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    return [today + timedelta(days=i) for i in range(1 - DAYS, 2)]


def finished_tasks() -> QuerySet[Any]:
    return TaskEvent.objects.filter(what="completed")


def finished_items() -> QuerySet[Any]:
    return ItemEvent.objects.filter(to_status="processed").exclude(from_status="processed")


def finished_matches() -> QuerySet[Any]:
    return MatchEvent.objects.filter(to_status="complete").exclude(from_status="complete")


def per_bucket(name: str, events: QuerySet[Any], edges: Sequence[datetime], now: datetime) -> list[int]:
    """The events between each two edges. What lies in the past is counted once and then remembered."""
    pairs = list(pairwise(edges))
    keys = [f"bucket:{name}:{a.timestamp():.0f}:{(b - a).total_seconds():.0f}" for a, b in pairs]
    try:
        known: dict[str, int] = cache.get_many(keys)
    except (ConnectionInterrupted, RedisError):
        known = {}
    missing = [i for i, key in enumerate(keys) if key not in known]
    counts = {f"b{i}": Count("pk", filter=Q(at__gte=pairs[i][0], at__lt=pairs[i][1])) for i in missing}
    since = pairs[missing[0]][0] if missing else edges[-1]
    found = events.filter(at__gte=since).order_by().aggregate(**counts) if missing else {}
    final = {keys[i]: found[f"b{i}"] for i in missing if pairs[i][1] <= now - SETTLED}
    try:
        cache.set_many(final, BUCKET_SECONDS)
    except (ConnectionInterrupted, RedisError) as error:
        log.warning("buckets not kept", name=name, error=str(error))
    return [known[key] if key in known else found[f"b{i}"] for i, key in enumerate(keys)]


def finished_bars(name: str, events: QuerySet[Any], now: datetime) -> tuple[Bars, Bars]:
    """The last 24 hours and the last 7 days."""
    hours, days = hour_edges(now), day_edges(now)
    by_hour = remembered(f"{name}:{hours[0]:%Y%m%d%H}", lambda: per_bucket(name, events, hours, now))
    by_day = remembered(f"{name}:{days[0]:%Y%m%d}", lambda: per_bucket(name, events, days, now))
    return (
        Bars(_("Finished in the last 24 hours"), by_hour, [f"{edge:%H:00}" for edge in hours[:-1]]),
        Bars(_("Finished in the last 7 days"), by_day, [f"{edge:%m-%d}" for edge in days[:-1]], every=1),
    )


def task_minutes(now: datetime) -> Bars | None:
    """The median minutes of a task by hour, from the statistics that the metrics poller keeps in Redis."""
    hours = hour_edges(now)[:-1]
    fields = [f"{edge:%Y-%m-%dT%H}" for edge in hours]
    try:
        stored: list[str | None] = redis_client().hmget(  # type: ignore[assignment]
            keyspace().key(k.STATS_PERFORMANCE_HOURLY), fields
        )
    except RedisError:
        return None
    values = [median_minutes(text) for text in stored]
    if not any(values):
        return None
    labels = [f"{edge:%H:00}" for edge in hours]
    return Bars(_("Median minutes of a task"), values, labels, unit=_("min"))


def median_minutes(text: str | None) -> float:
    try:
        return round(float(json.loads(text or "{}").get("complete", {}).get("p50", 0)) / 60, 1)
    except (ValueError, TypeError, AttributeError):
        return 0.0
