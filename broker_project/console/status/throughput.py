"""How much was finished and how long it took, hour by hour and day by day, from the events of each kind of work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import CharField, Count, F, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext as _

from broker_project.console.status import buckets as b
from broker_project.console.status.charts import Bars
from broker_project.lib.kept import figure
from feeds.models import ItemEvent
from fixtures.lifecycle import from_jst_text
from fixtures.models import Event as MatchEvent
from fixtures.models import FixtureStatus
from tasks.models import Event as TaskEvent

SAMPLE = 4000  # durations read at once; of more, an even share
Durations = tuple[float, float, int]  # median and ninth decile in seconds, and of how many
NOTHING: Durations = (0.0, 0.0, 0)
UNITS = ((90 * 60.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))  # from how long on, seconds, name


@dataclass(frozen=True)
class Kind:
    """A kind of work: the events that end a piece of it, and those of them that say how long it took."""

    name: str
    finished: QuerySet[Any]
    timed: QuerySet[Any]  # with an annotation ``since``
    took: str  # the time it took, in a word or two
    explanation: str


def tasks() -> Kind:
    finished = TaskEvent.objects.filter(what="completed")
    timed = finished.filter(assignment__isnull=False).annotate(since=F("assignment__created_at"))
    return Kind("tasks", finished, timed, _("Time to complete"), _("from assigned to completed"))


def items() -> Kind:
    finished = ItemEvent.objects.filter(to_status="processed").exclude(from_status="processed")
    timed = ItemEvent.objects.filter(what="posted").annotate(since=F("item__created_at"))
    return Kind("items", finished, timed, _("Time to post"), _("from found to posted"))


def matches() -> Kind:
    # Guides are written before kickoff, so the first attempt is what the waiting begins with.
    finished = MatchEvent.objects.filter(to_status="complete").exclude(from_status="complete")
    row = FixtureStatus.objects.filter(pk=OuterRef("fixture_id")).values("first_attempt_at")
    timed = finished.annotate(since=Subquery(row, output_field=CharField()))
    return Kind("matches", finished, timed, _("Time to write"), _("from the first attempt to the guide"))


@dataclass(frozen=True)
class Charts:
    """What one kind of work shows: finished and how long it took, each by hour and by day."""

    finished_hours: Bars
    finished_days: Bars
    took_hours: Bars
    took_days: Bars
    took: str
    explanation: str


def charts(kind: Kind, now: datetime) -> Charts:
    hours, days = b.hours(now), b.days(now)
    wanted = [*hours, *days]
    finished = figure(f"{kind.name}:finished", lambda last: finished_counts(kind, wanted, now, last)).values
    a_day = {day: finished.get(day, 0) for day in days}
    durations = figure(f"{kind.name}:took", lambda last: durations_of(kind, wanted, now, a_day, last)).values
    # What was kept a moment ago does not know an hour that has just begun.
    counts = [finished.get(bucket, 0) for bucket in wanted]
    took = [durations.get(bucket, NOTHING) for bucket in wanted]
    hour_names = [f"{bucket.start:%H:00}" for bucket in hours]
    day_names = [f"{bucket.start:%m-%d}" for bucket in days]
    last_hours, last_days = _("24 h"), _("7 days")
    done = _("Finished")
    return Charts(
        Bars(f"{done}, {last_hours}", counts[: b.HOURS], hour_names),
        Bars(f"{done}, {last_days}", counts[b.HOURS :], day_names, every=2),
        took_bars(f"{kind.took}, {last_hours}", took[: b.HOURS], hour_names, 6),
        took_bars(f"{kind.took}, {last_days}", took[b.HOURS :], day_names, 2),
        kind.took,
        kind.explanation,
    )


def finished_counts(
    kind: Kind, wanted: Sequence[b.Bucket], now: datetime, last: b.Counted[int] | None
) -> b.Counted[int]:
    """The events in each bucket. What is over is counted once."""
    found = last.settled(wanted) if last else {}
    missing = [bucket for bucket in wanted if bucket not in found]
    if missing:
        sums = {
            f"b{i}": Count("pk", filter=Q(at__gte=bucket.start, at__lt=bucket.end))
            for i, bucket in enumerate(missing)
        }
        since = min(bucket.start for bucket in missing)
        counted = kind.finished.filter(at__gte=since).order_by().aggregate(**sums)
        found |= {bucket: counted[f"b{i}"] for i, bucket in enumerate(missing)}
    return b.Counted(now, found)


def durations_of(
    kind: Kind,
    wanted: Sequence[b.Bucket],
    now: datetime,
    a_day: Mapping[b.Bucket, int],
    last: b.Counted[Durations] | None,
) -> b.Counted[Durations]:
    """Median and ninth decile of each bucket, likewise worked out once.

    ``a_day`` says how many events to expect. Of more than ``SAMPLE`` every n-th is read: a page stays as
    quick on a busy day.
    """
    found = last.settled(wanted) if last else {}
    missing = [bucket for bucket in wanted if bucket not in found]
    if missing:
        since = min(bucket.start for bucket in missing)
        rows = kind.timed.filter(at__gte=since).order_by()
        expected = sum(count for day, count in a_day.items() if day.end > since)
        if expected > SAMPLE:
            rows = rows.annotate(share=F("pk") % math.ceil(expected / SAMPLE)).filter(share=0)
        ended = list(pairs(rows.values_list("at", "since")[: 2 * SAMPLE]))
        for bucket in missing:
            found[bucket] = spread([seconds for at, seconds in ended if bucket.holds(at)])
    return b.Counted(now, found)


def pairs(rows: Iterable[tuple[datetime, datetime | str | None]]) -> Iterable[tuple[datetime, float]]:
    """When each ended and how many seconds it took; what has no beginning is left out."""
    for at, since in rows:
        began = from_jst_text(since) if isinstance(since, str) else since
        if began is not None:
            yield at, max(0.0, (at - began).total_seconds())


def spread(seconds: list[float]) -> Durations:
    if not seconds:
        return NOTHING
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[math.ceil(last * 0.9)], len(ordered)


def took_bars(title: str, took: Sequence[Durations], labels: Sequence[str], every: int) -> Bars:
    """Medians as bars in the unit that suits the longest of them."""
    longest = max(entry[0] for entry in took)
    divisor, unit = next((size, name) for limit, size, name in UNITS if longest >= limit)
    newest = next((entry[0] for entry in reversed(took) if entry[2]), 0.0)

    def shown(seconds: float) -> float:
        # Work that took no time at all is not the same as none: the bar stays visible.
        return max(0.1, round(seconds / divisor, 1))

    return Bars(
        title,
        [shown(entry[0]) if entry[2] else 0 for entry in took],
        labels,
        unit={"h": _("h"), "min": _("min"), "s": _("s")}[unit],
        every=every,
        upper=[shown(entry[1]) if entry[2] else 0 for entry in took],
        newest=shown(newest),
    )
