"""What the pollers ``metrics`` and ``cleanup`` ask of this app: statistics of assignments, old deliveries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from statistics import quantiles

from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import redis_client
from tasks.models import Assignment, WebhookDelivery
from tasks.offers.index import keys_of
from tasks.services.repositories import repositories_to_poll

HOURS_KEPT = 168
DELIVERIES_KEPT = timedelta(days=7)


def percentiles(seconds: list[float]) -> dict[str, float | int]:
    if not seconds:
        return {"count": 0}
    cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    return {
        "count": len(seconds),
        "p50": round(cuts[49], 3),
        "p95": round(cuts[94], 3),
        "p99": round(cuts[98], 3),
        "max": round(max(seconds), 3),
    }


def lengths(spans: Iterable[tuple[datetime | None, datetime | None]]) -> list[float]:
    return [(end - start).total_seconds() for start, end in spans if start is not None and end is not None]


def record_statistics(now: datetime) -> int:
    """Time to assign and to complete in this hour and the one before, from the rows."""
    this_hour = timezone.localtime(now).replace(minute=0, second=0, microsecond=0)
    repositories = repositories_to_poll()
    for repository in repositories:
        key = keys_of(repository).key(k.STATS_PERFORMANCE_HOURLY)
        pipe = redis_client().pipeline(transaction=True)
        for start in (this_hour - timedelta(hours=1), this_hour):
            end = start + timedelta(hours=1)
            rows = Assignment.objects.filter(repository=repository)
            assigned = rows.filter(started_at__gte=start, started_at__lt=end).values_list(
                "created_at", "started_at"
            )
            done = rows.filter(ended_at__gte=start, ended_at__lt=end, started_at__isnull=False)
            document = {
                "assign": percentiles(lengths(assigned)),
                "complete": percentiles(lengths(done.values_list("started_at", "ended_at"))),
            }
            pipe.hset(key, start.strftime("%Y-%m-%dT%H"), json.dumps(document))
        pipe.hkeys(key)
        hours = sorted(pipe.execute()[-1])
        if len(hours) > HOURS_KEPT:
            redis_client().hdel(key, *hours[:-HOURS_KEPT])
    return 2 * len(repositories)


def remove_old_rows(now: datetime) -> int:
    """Webhook deliveries that GitHub no longer repeats."""
    return WebhookDelivery.objects.filter(received_at__lt=now - DELIVERIES_KEPT).delete()[0]
