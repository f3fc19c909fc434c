"""django-q2's schedules, derived from the table of pollers."""

from __future__ import annotations

from datetime import datetime, timedelta

from croniter import croniter
from django.utils import timezone
from django_q.models import Schedule

from broker_project.ops.clock.pollers import PollerSpec, poller_table

ENTRY_POINT = "broker_project.ops.clock.pollers.run_scheduled"
SLACK = timedelta(minutes=2)  # how much further ahead than its interval a run may be scheduled


def next_run_at(spec: PollerSpec, now: datetime) -> datetime:
    if not spec.cron:
        return now
    found: datetime = croniter(spec.cron, timezone.localtime(now)).get_next(datetime)
    return found


def recall_schedules(now: datetime) -> list[str]:
    """Reschedule runs that are further away than their interval: the clock was ahead when they were scheduled.

    Otherwise correcting the clock by an hour would stop every poller for that hour. Returns their names.
    """
    table, recalled = poller_table(), []
    for name, next_run in Schedule.objects.filter(func=ENTRY_POINT).values_list("name", "next_run"):
        spec = table.get(name)
        if spec is None or next_run <= now + timedelta(seconds=spec.every_seconds) + SLACK:
            continue
        # Only if it has not moved: the scheduler may have run it meanwhile.
        if Schedule.objects.filter(name=name, next_run=next_run).update(next_run=next_run_at(spec, now)):
            recalled.append(name)
    return recalled


def sync_schedules() -> list[str]:
    """One schedule per poller, changed only where the table changed: a restart does not postpone a run."""
    now, table, lines = timezone.now(), poller_table(), []
    for spec in table.values():
        timing = {
            # django-q2 counts intervals in minutes; a shorter or odd one is the nearest minute.
            "schedule_type": Schedule.CRON if spec.cron else Schedule.MINUTES,
            "minutes": None if spec.cron else max(1, round(spec.every_seconds / 60)),
            "cron": spec.cron or None,
        }
        wanted = {"func": ENTRY_POINT, "args": repr((spec.name,)), "repeats": -1, **timing}
        first = {"next_run": next_run_at(spec, now)}
        schedule, is_new = Schedule.objects.get_or_create(name=spec.name, defaults={**wanted, **first})
        changed = {field for field, value in wanted.items() if getattr(schedule, field) != value}
        if changed:
            moved = first if changed & timing.keys() else {}
            Schedule.objects.filter(name=spec.name).update(**wanted, **moved)
        word = "made" if is_new else "updated" if changed else "unchanged"
        lines.append(f"{spec.name}: {word}, {spec.schedule}")
    lines += [f"{name}: brought back" for name in recall_schedules(now)]
    gone = Schedule.objects.filter(func=ENTRY_POINT).exclude(name__in=table)
    lines += [f"{name}: removed" for name in gone.values_list("name", flat=True)]
    gone.delete()
    return lines
