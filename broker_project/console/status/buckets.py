"""Hours and days of a chart, and what can no longer change of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Generic, TypeVar

from django.utils import timezone

V = TypeVar("V")
HOURS, DAYS = 24, 7
SETTLED = timedelta(minutes=10)  # longer than a transaction may hold events back


@dataclass(frozen=True)
class Bucket:
    start: datetime
    end: datetime

    def holds(self, moment: datetime) -> bool:
        return self.start <= moment < self.end


@dataclass(frozen=True)
class Counted(Generic[V]):
    """A figure of each bucket as it was at a moment."""

    at: datetime
    values: Mapping[Bucket, V] = field(default_factory=dict)

    def settled(self, wanted: Sequence[Bucket]) -> dict[Bucket, V]:
        """Those of the wanted ones that were over long enough by then to stay as they are."""
        return {
            bucket: self.values[bucket]
            for bucket in wanted
            if bucket in self.values and bucket.end <= self.at - SETTLED
        }


def hours(now: datetime) -> list[Bucket]:
    """The last 24 hours in local time, the present one last."""
    this_hour = timezone.localtime(now).replace(minute=0, second=0, microsecond=0)
    return between([this_hour + timedelta(hours=i) for i in range(1 - HOURS, 2)])


def days(now: datetime) -> list[Bucket]:
    today = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    return between([today + timedelta(days=i) for i in range(1 - DAYS, 2)])


def between(edges: Sequence[datetime]) -> list[Bucket]:
    return [Bucket(start, end) for start, end in pairwise(edges)]
