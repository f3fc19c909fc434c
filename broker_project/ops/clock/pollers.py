"""The pollers: one table, and the one way to run any of them.

A run is single-flight (the lock in Redis of a killed holder expires within the poller's interval), does nothing under
maintenance or while paused, and records how it ended. What a poller does is in its app's ``pollers.py``.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from django.db import DatabaseError
from django.utils import timezone
from django.utils.module_loading import import_string
from django.utils.translation import gettext_noop
from redis.exceptions import RedisError

from broker_project.lib.config.dynamic import POLL_INTERVAL_SECONDS, load_snapshot, value_of
from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.locks import LockHeld, held_lock, new_owner
from broker_project.models import Poller, PollerRun

log = get_logger(__name__)

LOCK_SECONDS = 60  # renewed while the run goes on; never longer than the interval
ABANDONED_AFTER = dt.timedelta(hours=1)  # longer than any run that is not single-flight


@dataclass(frozen=True)
class PollOptions:
    """What the command line can ask for; a scheduled run has none of it."""

    force: bool = False
    all: bool = False
    dry_run: bool = False
    debug: bool = False
    date: dt.date | None = None
    by: str = "schedule"
    report: Callable[[str], None] = field(default=lambda text: None)  # progress, in words


Counts = Mapping[str, int]


@dataclass(frozen=True)
class PollerSpec:
    name: str
    function: str  # dotted path; called with PollOptions, returns counts
    purpose: str
    every_seconds: int
    cron: str = ""  # instead of an interval; local time
    is_single_flight: bool = True

    @property
    def schedule(self) -> str:
        if self.cron:
            return f"{self.cron} (Asia/Tokyo)"
        if self.every_seconds % 60:
            return f"every {self.every_seconds} s"
        return f"every {self.every_seconds // 60} min"


def poller_table() -> dict[str, PollerSpec]:
    minute, hour = 60, 3600
    issues_every = value_of(POLL_INTERVAL_SECONDS)
    rows = [
        PollerSpec(
            "issues",
            "tasks.pollers.poll_issues",
            gettext_noop("sync open issues and review times"),
            issues_every,
        ),
        PollerSpec(
            "zombies", "tasks.pollers.sweep_zombies", gettext_noop("free what lost its agent"), 5 * minute
        ),
        PollerSpec(
            "feeds", "feeds.pollers.poll_feeds", gettext_noop("fetch the feeds that are due"), 15 * minute
        ),
        # Every item is claimed by its own row, so any number of these may run side by side.
        PollerSpec(
            "items",
            "feeds.pollers.poll_items",
            gettext_noop("screen, summarise and post"),
            5 * minute,
            is_single_flight=False,
        ),
        PollerSpec(
            "fixtures",
            "fixtures.pollers.poll_fixtures",
            gettext_noop("discover matches, write guides"),
            3 * hour,
            "0 */3 * * *",
        ),
        PollerSpec(
            "dispatch",
            "fixtures.pollers.poll_dispatch",
            gettext_noop("write the guides that are due"),
            5 * minute,
        ),
        PollerSpec(
            "metrics",
            "broker_project.ops.housekeeping.poll_metrics",
            gettext_noop("CPU, memory and hourly statistics"),
            minute,
        ),
        PollerSpec(
            "cleanup",
            "broker_project.ops.housekeeping.poll_cleanup",
            gettext_noop("remove what is out of date"),
            24 * hour,
            "30 4 * * *",
        ),
    ]
    return {row.name: row for row in rows}


@dataclass(frozen=True)
class PollResult:
    outcome: PollerRun.Outcome
    counts: Counts
    message: str = ""


def run_poller(name: str, options: PollOptions | None = None) -> PollResult:
    """Run one poller once. Failures are recorded and returned, not raised."""
    spec = poller_table()[name]
    options = options or PollOptions()
    try:
        return _run_in_turn(spec, options)
    except (
        RedisError,
        DatabaseError,
    ) as error:  # from the lock or the record; errors of the run itself are in its result
        return _not_run(spec, options, error)


def _run_in_turn(spec: PollerSpec, options: PollOptions) -> PollResult:
    name = spec.name
    if not options.force:
        if load_snapshot().maintenance.is_on:
            return PollResult(PollerRun.Outcome.MAINTENANCE, {}, "maintenance: pollers stand still")
        if Poller.objects.filter(name=name, paused_at__isnull=False).exists():
            return PollResult(PollerRun.Outcome.PAUSED, {}, f"{name} is paused")
    if not spec.is_single_flight:
        return _run(spec, options)
    key = keyspace().key(k.LOCK_PROCESS, name=name)
    try:
        with held_lock(
            redis_client(), key, new_owner(f"{name}:{os.getpid()}"), min(LOCK_SECONDS, spec.every_seconds)
        ):
            return _run(spec, options)
    except LockHeld:
        return PollResult(PollerRun.Outcome.BUSY, {}, f"{name} is already running")


def _not_run(spec: PollerSpec, options: PollOptions, error: Exception) -> PollResult:
    """Redis or the database failed before the run began; on record if the database works."""
    message = redact(f"{type(error).__name__}: {error}")
    log.error("poller not run", poller=spec.name, error=message)
    now = timezone.now()
    if isinstance(error, RedisError):
        outcome = PollerRun.Outcome.FAILED
        PollerRun.objects.create(
            name=spec.name, by=options.by, started_at=now, finished_at=now, outcome=outcome, error=message
        )
    return PollResult(PollerRun.Outcome.FAILED, {}, message)


def _close_abandoned(spec: PollerSpec, now: dt.datetime) -> None:
    """Mark runs whose process was killed. Called by the next run, which has the lock."""
    begun_before = now if spec.is_single_flight else now - ABANDONED_AFTER
    PollerRun.objects.filter(
        name=spec.name, outcome=PollerRun.Outcome.RUNNING, started_at__lt=begun_before
    ).update(outcome=PollerRun.Outcome.FAILED, finished_at=now, error="the process ended before the run did")


def _run(spec: PollerSpec, options: PollOptions) -> PollResult:
    now = timezone.now()
    _close_abandoned(spec, now)
    run = PollerRun.objects.create(name=spec.name, by=options.by, started_at=now)

    def report(text: str) -> None:
        said = redact(text, 200)
        PollerRun.objects.filter(pk=run.pk).update(progress=said)
        options.report(said)

    try:
        counts: Counts = import_string(spec.function)(replace(options, report=report))
        result = PollResult(PollerRun.Outcome.DONE, counts)
    except Exception as error:
        if isinstance(error, OutsideError):  # not our fault: a sentence is enough
            log.error("poller failed", poller=spec.name, error=redact(str(error)))
        else:
            log.exception("poller failed", poller=spec.name)
        result = PollResult(PollerRun.Outcome.FAILED, {}, redact(f"{type(error).__name__}: {error}"))
    PollerRun.objects.filter(pk=run.pk).update(
        finished_at=timezone.now(), outcome=result.outcome, counts=dict(result.counts), error=result.message
    )
    log.info("poller ran", poller=spec.name, outcome=str(result.outcome), **result.counts)
    return result


def run_scheduled(name: str, by: str = "schedule") -> dict[str, int]:
    """django-q2's entry point."""
    return dict(run_poller(name, PollOptions(by=by)).counts)
