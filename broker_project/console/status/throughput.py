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
from broker_project.lib.short_cache import remembered
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
    stamp = f"{kind.name}:{hours[0].start:%Y%m%d%H}"
    counts = remembered(f"{stamp}:finished", lambda: finished_counts(kind, [*hours, *days], now))
    a_day = dict(zip(days, counts[b.HOURS :], strict=True))
    took = remembered(f"{stamp}:took", lambda: durations(kind, [*hours, *days], now, a_day))
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


def finished_counts(kind: Kind, wanted: Sequence[b.Bucket], now: datetime) -> list[int]:
    """The events in each bucket. What lies in the past is counted once and then remembered."""
    found: dict[b.Bucket, int] = b.known(kind.name, wanted)
    missing = [bucket for bucket in wanted if bucket not in found]
    if missing:
        sums = {
            f"b{i}": Count("pk", filter=Q(at__gte=bucket.start, at__lt=bucket.end))
            for i, bucket in enumerate(missing)
        }
        since = min(bucket.start for bucket in missing)
        counted = kind.finished.filter(at__gte=since).order_by().aggregate(**sums)
        fresh = {bucket: counted[f"b{i}"] for i, bucket in enumerate(missing)}
        b.remember(kind.name, fresh, now)
        found = {**found, **fresh}
    return [found[bucket] for bucket in wanted]


def durations(
    kind: Kind, wanted: Sequence[b.Bucket], now: datetime, a_day: Mapping[b.Bucket, int]
) -> list[Durations]:
    """Median and ninth decile of each bucket, likewise remembered.

    ``a_day`` says how many events to expect. Of more than ``SAMPLE`` every n-th is read: a page stays as
    quick on a busy day.
    """
    name = f"{kind.name}:took"
    found: dict[b.Bucket, Durations] = b.known(name, wanted)
    missing = [bucket for bucket in wanted if bucket not in found]
    if missing:
        since = min(bucket.start for bucket in missing)
        rows = kind.timed.filter(at__gte=since).order_by()
        expected = sum(count for day, count in a_day.items() if day.end > since)
        if expected > SAMPLE:
            rows = rows.annotate(share=F("pk") % math.ceil(expected / SAMPLE)).filter(share=0)
        ended = list(pairs(rows.values_list("at", "since")[: 2 * SAMPLE]))
        fresh = {bucket: spread([seconds for at, seconds in ended if bucket.holds(at)]) for bucket in missing}
        b.remember(name, fresh, now)
        found = {**found, **fresh}
    return [found[bucket] for bucket in wanted]


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
