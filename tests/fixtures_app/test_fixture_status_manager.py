from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils.timezone import now

from fixtures.fixture_status_manager import FixtureStatusManager
from fixtures.lifecycle import JST, Rules
from fixtures.match_scheduler import MatchScheduler, kickoff_of
from fixtures.models import Event, FixtureStatus
from fixtures.services.transitions import detect_match

pytestmark = [pytest.mark.django_db, pytest.mark.database]
KICKOFF = dt.datetime(2026, 1, 4, 21, 0, tzinfo=JST)


def test_status_lifecycle() -> None:
    manager = FixtureStatusManager()
    fixture_id = "12345"

    # 初期状態
    assert manager.is_processable(fixture_id) == True  # noqa: E712

    # 処理開始
    manager.mark_processing(fixture_id, now())
    assert manager.get_status(fixture_id) == "processing"

    # 失敗 → 再試行可能
    manager.mark_failed(fixture_id, "API timeout")
    assert manager.is_processable(fixture_id) == True  # noqa: E712

    # 3回失敗 → 再試行不可
    for _ in range(2):
        manager.mark_failed(fixture_id, "error")
    assert manager.is_processable(fixture_id) == False  # noqa: E712


def test_names_that_the_seed_fixes() -> None:
    assert FixtureStatusManager.CSV_PATH == "schedule/fixture_status.csv"
    assert FixtureStatusManager.MAX_RETRY_ATTEMPTS == 3
    assert (MatchScheduler.BEFORE_KICKOFF_MINUTES, MatchScheduler.AFTER_KICKOFF_MINUTES) == (60, 60)


def test_the_table_has_exactly_the_columns_of_the_csv() -> None:
    with connection.cursor() as cursor:
        columns = [
            column.name for column in connection.introspection.get_table_description(cursor, "fixture_status")
        ]
    assert columns == [
        "fixture_id",
        "date",
        "kickoff_jst",
        "status",
        "first_attempt_at",
        "last_attempt_at",
        "attempts",
        "error_message",
    ]


def test_a_row_through_its_life() -> None:
    clock = Ticking(KICKOFF)
    manager = FixtureStatusManager(clock=clock)
    assert manager.get_status("1") is None
    assert manager.mark_processing("1", KICKOFF)
    row = FixtureStatus.objects.get(pk="1")
    assert (row.date, row.kickoff_jst) == ("2026-01-04", "2026-01-04T21:00:00+09:00")
    assert row.first_attempt_at == row.last_attempt_at == "2026-01-04T21:00:00+09:00"
    assert row.attempts == 0

    clock.forward(60)
    assert manager.mark_failed("1", "no answer\nfrom  API")
    row.refresh_from_db()
    assert (row.status, row.attempts, row.error_message) == ("failed", 1, "no answer from API")

    clock.forward(60)
    assert manager.mark_processing("1", KICKOFF)
    clock.forward(60)
    assert manager.mark_complete("1")
    row.refresh_from_db()
    assert (row.status, row.attempts, row.error_message) == ("complete", 1, "")
    assert row.first_attempt_at == "2026-01-04T21:00:00+09:00"
    assert row.last_attempt_at == "2026-01-04T21:03:00+09:00"
    assert not manager.is_processable("1")
    assert not manager.mark_processing("1", KICKOFF)
    assert not manager.mark_failed("1", "too late")
    changes = [(event.what, event.from_status, event.to_status) for event in Event.objects.order_by("id")]
    assert changes == [
        ("detected", "", "pending"),
        ("claimed", "pending", "processing"),
        ("failed", "processing", "failed"),
        ("claimed", "failed", "processing"),
        ("completed", "processing", "complete"),
    ]


def test_what_is_unknown_can_be_neither_completed_nor_failed() -> None:
    manager = FixtureStatusManager()
    assert not manager.mark_complete("unknown")
    assert not manager.mark_failed("unknown", "error")
    assert not FixtureStatus.objects.exists()


def test_every_mark_failed_counts_and_three_are_enough() -> None:
    manager = FixtureStatusManager()
    detect_match("1", KICKOFF, now=KICKOFF, who="test")
    for attempts in (1, 2, 3):
        assert manager.is_processable("1")
        assert manager.mark_failed("1", "error")
        assert FixtureStatus.objects.get(pk="1").attempts == attempts
    assert not manager.is_processable("1")
    assert not manager.mark_processing("1", KICKOFF)


def test_secrets_do_not_reach_the_error_column() -> None:
    manager = FixtureStatusManager()
    manager.mark_processing("1", KICKOFF)
    manager.mark_failed("1", "x-apisports-key: 0123456789abcdef0123456789abcdef refused")
    assert "0123456789abcdef" not in FixtureStatus.objects.get(pk="1").error_message


def test_processing_is_exclusive_while_fresh_and_retaken_when_stale() -> None:
    clock = Ticking(KICKOFF)
    first, second = FixtureStatusManager(clock=clock), FixtureStatusManager(clock=clock)
    assert first.mark_processing("1", KICKOFF)
    clock.forward(29 * 60)
    assert not second.is_processable("1")
    assert not second.mark_processing("1", KICKOFF)
    clock.forward(60)
    assert second.is_processable("1")
    assert second.mark_processing("1", KICKOFF)
    row = FixtureStatus.objects.get(pk="1")
    assert (row.status, row.attempts) == ("processing", 1)

    # The first one wakes up: it is told, and changes nothing.
    assert not first.mark_complete("1")
    assert not first.mark_failed("1", "late")
    row.refresh_from_db()
    assert (row.status, row.attempts) == ("processing", 1)
    assert second.mark_complete("1")


def test_a_dead_run_on_the_last_attempt_leaves_nothing_to_take() -> None:
    clock = Ticking(KICKOFF)
    manager = FixtureStatusManager(clock=clock)
    for _ in range(2):
        manager.mark_processing("1", KICKOFF)
        manager.mark_failed("1", "error")
    manager.mark_processing("1", KICKOFF)
    clock.forward(31 * 60)
    assert not manager.is_processable("1")


def test_the_database_refuses_words_that_are_no_status() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        FixtureStatus.objects.create(fixture_id="1", date="2026-01-04", kickoff_jst="x", status="done")


@dataclass
class SomeMatch:
    id: str
    kickoff_at_utc: dt.datetime


def test_two_stage_filter_at_nine_in_the_evening() -> None:
    clock = Ticking(dt.datetime(2026, 1, 4, 21, 0, tzinfo=JST))
    manager, scheduler = FixtureStatusManager(clock=clock), MatchScheduler(clock=clock)
    hours = {
        str(hour): SomeMatch(str(hour), dt.datetime(2026, 1, 4, hour, tzinfo=JST).astimezone(dt.UTC))
        for hour in (19, 20, 21, 22, 23)
    }
    manager.mark_processing("21", hours["21"].kickoff_at_utc)
    manager.mark_complete("21")
    found = scheduler.filter_processable_matches(list(hours.values()), manager)
    assert [match.id for match in found] == ["20", "22"]


def run_workflow(
    all_matches: list[SomeMatch], clock: Ticking, generate: Callable[[list[SomeMatch]], None]
) -> list[SomeMatch]:
    """The workflow as seed 003 writes it."""
    status_manager = FixtureStatusManager(clock=clock)
    scheduler = MatchScheduler(clock=clock)
    matches = scheduler.filter_processable_matches(all_matches, status_manager)
    for match in matches:
        status_manager.mark_processing(match.id, match.kickoff_at_utc)
    try:
        generate(matches)
        for match in matches:
            status_manager.mark_complete(match.id)
    except Exception as e:
        for match in matches:
            status_manager.mark_failed(match.id, str(e))
        raise
    return matches


def test_the_seeds_workflow_retries_what_failed_and_skips_what_is_complete() -> None:
    clock = Ticking(KICKOFF)
    matches = [SomeMatch("1", KICKOFF), SomeMatch("2", KICKOFF + dt.timedelta(hours=5))]

    def fail(matches: list[SomeMatch]) -> None:
        raise TimeoutError("API timeout")

    with pytest.raises(TimeoutError):
        run_workflow(matches, clock, fail)
    row = FixtureStatus.objects.get()
    assert (row.fixture_id, row.status, row.attempts, row.error_message) == ("1", "failed", 1, "API timeout")
    clock.forward(60)
    assert [match.id for match in run_workflow(matches, clock, lambda matches: None)] == ["1"]
    row.refresh_from_db()
    assert (row.status, row.attempts, row.error_message) == ("complete", 1, "")
    assert run_workflow(matches, clock, lambda matches: None) == []


def test_a_time_without_a_zone_is_what_its_name_says() -> None:
    assert kickoff_of(SomeMatch("1", dt.datetime(2026, 1, 4, 12))) == dt.datetime(2026, 1, 4, 21, tzinfo=JST)


def test_the_settings_decide_over_the_defaults() -> None:
    manager = FixtureStatusManager(rules=Rules(max_attempts=1))
    manager.mark_processing("1", KICKOFF)
    manager.mark_failed("1", "error")
    assert manager.MAX_RETRY_ATTEMPTS == 1
    assert not manager.is_processable("1")


class Ticking:
    def __init__(self, at: dt.datetime) -> None:
        self.at = at

    def forward(self, seconds: int) -> None:
        self.at += dt.timedelta(seconds=seconds)

    def __call__(self) -> dt.datetime:
        return self.at
