"""Throughput and duration: from events, worked out once where they are over, bounded on a busy day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from broker_project.console.status import buckets, throughput
from broker_project.console.status.charts import Bars
from broker_project.lib.kept import forget_all
from feeds.models import Item, ItemEvent
from fixtures.lifecycle import jst_text
from fixtures.models import Event as MatchEvent
from fixtures.models import FixtureStatus
from tasks.models import Agent, Assignment, Event, Repository

pytestmark = [pytest.mark.django_db, pytest.mark.database]
NOW = timezone.now().replace(minute=30, second=0, microsecond=0)


@pytest.fixture(autouse=True)
def _in_japanese() -> Iterator[None]:
    with translation.override("ja"):
        yield


def completed(minutes: float, ago: timedelta = timedelta(0)) -> None:
    """A task that took so long and was completed then."""
    at = NOW - ago
    repository, _made = Repository.objects.get_or_create(full_name="o/n", defaults={"namespace": "poppo"})
    number = Assignment.objects.count() + 1
    row = Assignment.objects.create(
        agent=Agent.objects.create(name=f"a{number}"),
        repository=repository,
        number=number,
        task_type="development",
        state="completed",
        created_at=at - timedelta(minutes=minutes),
        last_heartbeat_at=at,
        ended_at=at,
    )
    Event.objects.create(repository=repository, number=number, what="completed", at=at, assignment=row)


def posted(count: int, **took: Any) -> None:
    items = Item.objects.bulk_create(
        Item(
            url=f"https://example.org/{i}",
            title="t",
            published_at=NOW,
            created_at=NOW - timedelta(**took),
            last_checked_at=NOW,
            status=3,
            reason=0,
        )
        for i in range(count)
    )
    ItemEvent.objects.bulk_create(
        ItemEvent(item=item, what="posted", from_status="pending", to_status="processed", at=NOW)
        for item in items
    )


def test_a_task_takes_from_assigned_to_completed() -> None:
    for minutes in (10, 20, 60):
        completed(minutes)
    completed(5, ago=timedelta(days=3))
    charts = throughput.charts(throughput.tasks(), NOW)
    assert charts.took_hours.values[-1] == 20
    assert charts.took_hours.upper[-1] == 60
    assert charts.took_hours.unit == "分"
    assert charts.took_days.values[3] == 5
    assert charts.finished_days.values[3] == 1
    assert charts.finished_hours.total == 3


def test_an_item_takes_from_found_to_posted_and_what_was_given_up_does_not_count() -> None:
    posted(3, seconds=40)
    given_up = Item.objects.create(
        url="https://example.org/x", title="t", published_at=NOW, created_at=NOW, last_checked_at=NOW
    )
    ItemEvent.objects.create(item=given_up, what="no", from_status="deferred", to_status="processed", at=NOW)
    charts = throughput.charts(throughput.items(), NOW)
    assert (charts.took_hours.values[-1], charts.took_hours.unit) == (40, "秒")
    assert charts.finished_hours.total == 4


def test_a_match_takes_from_its_first_attempt_to_its_guide() -> None:
    FixtureStatus.objects.create(
        fixture_id="7",
        date="2026-01-01",
        kickoff_jst=jst_text(NOW),
        status="complete",
        first_attempt_at=jst_text(NOW - timedelta(hours=3)),
    )
    for fixture_id in ("7", "of others"):
        MatchEvent.objects.create(
            fixture_id=fixture_id, what="completed", from_status="processing", to_status="complete", at=NOW
        )
    charts = throughput.charts(throughput.matches(), NOW)
    assert (charts.took_hours.values[-1], charts.took_hours.unit) == (3, "時間")
    assert charts.finished_hours.total == 2


def test_what_is_over_is_worked_out_once() -> None:
    completed(30, ago=timedelta(days=2))
    completed(30)
    kind, wanted = throughput.tasks(), [*buckets.hours(NOW), *buckets.days(NOW)]
    counts = throughput.finished_counts(kind, wanted, NOW, None)
    took = throughput.durations_of(kind, wanted, NOW, {}, None)
    Event.objects.all().delete()
    counts = throughput.finished_counts(kind, wanted, NOW, counts)
    took = throughput.durations_of(kind, wanted, NOW, {}, took)
    [day] = [bucket for bucket in buckets.days(NOW) if bucket.holds(NOW - timedelta(days=2))]
    assert (counts.values[day], took.values[day]) == (1, (1800.0, 1800.0, 1))
    # The present hour may still change.
    hour = buckets.hours(NOW)[-1]
    assert (counts.values[hour], took.values[hour]) == (0, throughput.NOTHING)


def test_the_last_ten_minutes_of_an_hour_are_not_settled_when_it_ends() -> None:
    kind, wanted = throughput.tasks(), buckets.hours(NOW)
    hour = wanted[-2]
    for minutes_later, expected in ((9, 1), (10, 0)):
        seen = throughput.finished_counts(kind, wanted, hour.end + timedelta(minutes=minutes_later), None)
        completed(1, ago=NOW - hour.end + timedelta(seconds=1))
        assert throughput.finished_counts(kind, wanted, NOW, seen).values[hour] == expected
        Event.objects.all().delete()


def test_an_hour_that_has_just_begun_is_empty_until_the_charts_are_worked_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker_project.lib.kept.QUICK_SECONDS", 0.0)
    monkeypatch.setattr("broker_project.lib.kept.KEPT_PER_SECOND", 10_000)
    completed(15)
    charts = throughput.charts(throughput.tasks(), NOW)
    later = throughput.charts(throughput.tasks(), NOW + timedelta(hours=1))
    assert charts.finished_hours.values[-2:] == [0, 1]
    assert later.finished_hours.values[-2:] == [1, 0]


def test_a_busy_day_costs_as_many_queries_and_a_bounded_number_of_rows() -> None:
    posted(10, minutes=7)
    with CaptureQueriesContext(connection) as few:
        throughput.charts(throughput.items(), NOW)
    Item.objects.all().delete()
    forget_all()  # a slow machine may have kept the figures
    posted(2 * throughput.SAMPLE + 1, minutes=7)
    with CaptureQueriesContext(connection) as many:
        charts = throughput.charts(throughput.items(), NOW)
    assert len(many) == len(few) == 2
    assert charts.took_hours.values[-1] == 7
    [read] = [query["sql"] for query in many if "since" in query["sql"]]
    assert "% 3" in read or "%% 3" in read
    assert f"LIMIT {2 * throughput.SAMPLE}" in read


@pytest.mark.parametrize(
    ("seconds", "values", "unit"),
    [(30, 30, "秒"), (119, 119, "秒"), (600, 10, "分"), (7200, 2, "時間"), (0, 0.1, "秒")],
)
def test_the_unit_suits_the_longest(seconds: float, values: float, unit: str) -> None:
    bars = throughput.took_bars("x", [throughput.NOTHING, (seconds, seconds, 1)], ["a", "b"], 1)
    assert (bars.values, bars.unit) == ([0, values], unit)
    assert bars.headline == f"{values} {unit}"


def test_a_chart_without_anything_says_so() -> None:
    empty = Bars("x", [0, 0], ["a", "b"], unit="min", upper=[0, 0])
    assert empty.headline == "–"
    assert 'class="nothing"' in empty.svg()
    assert 'class="upper"' not in empty.svg()
    full = Bars("x", [1, 2], ["a", "b"], unit="min", upper=[1.5, 4], newest=2)
    assert full.svg().count('class="upper"') == 2
    assert "style" not in full.svg()
