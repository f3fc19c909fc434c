"""What the pollers ``metrics`` and ``cleanup`` do: samples of this machine, statistics, removal of what is too old."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import import_module
from types import ModuleType

import psutil
from django.apps import apps
from django.utils import timezone
from django_q.models import Task

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, raw_client, redis_client
from broker_project.models import PollerRun, StatusEvent
from broker_project.ops.clock.pollers import Counts, PollOptions
from broker_project.ops.clock.schedules import sync_schedules
from broker_project.ops.redis_console.scanning import cleanup_keys

# Each offers ``record_statistics(now) -> int`` and ``remove_old_rows(now) -> int``: how many hours or rows.
SOURCES = ("tasks.services.housekeeping",)

MEMORY_SAMPLES = 1440  # a day of minutes
SAMPLE_SECONDS = 300
EVENTS_KEPT = timedelta(days=180)
RUNS_KEPT = timedelta(days=14)


def poll_metrics(options: PollOptions) -> Counts:
    """Samples and statistics; and schedules follow an interval that was changed in Redis."""
    now = timezone.now()
    sync_schedules()
    hours = sum(source.record_statistics(now) for source in sources())
    return {"samples": record_samples(now), "hours": hours}


def poll_cleanup(options: PollOptions) -> Counts:
    now = timezone.now()
    rows = remove_old_history(now) + sum(source.remove_old_rows(now) for source in sources())
    return {"keys_removed": sum(cleanup_keys(raw_client()).values()), "rows_removed": rows}


def sources() -> Iterator[ModuleType]:
    return (import_module(name) for name in SOURCES)


def record_samples(now: datetime) -> int:
    """CPU use now, and one more memory sample; both of this machine."""
    keys = keyspace()
    memory = psutil.virtual_memory()
    sample = {
        "timestamp": now.isoformat(),
        "used": memory.used,
        "total": memory.total,
        "percent": memory.percent,
    }
    pipe = redis_client().pipeline(transaction=True)
    pipe.set(keys.key(k.METRICS_CPU), str(psutil.cpu_percent(interval=0.2)), ex=SAMPLE_SECONDS)
    pipe.lpush(keys.key(k.METRICS_MEMORY), json.dumps(sample))
    pipe.ltrim(keys.key(k.METRICS_MEMORY), 0, MEMORY_SAMPLES - 1)
    pipe.execute()
    return 2


def remove_old_history(now: datetime) -> int:
    """Old events of every app, old runs of pollers and their failures. Returns how many rows went."""
    removed: int = PollerRun.objects.filter(started_at__lt=now - RUNS_KEPT).delete()[0]
    removed += Task.objects.filter(stopped__lt=now - RUNS_KEPT).delete()[0]
    for model in apps.get_models():
        if issubclass(model, StatusEvent):
            removed += model._default_manager.filter(at__lt=now - EVENTS_KEPT).delete()[0]
    return removed
