from __future__ import annotations

import datetime as dt

import pytest

from fixtures.lifecycle import (
    JST,
    MatchState,
    Reason,
    Rules,
    Schedule,
    Status,
    Step,
    as_jst,
    decide_step,
    from_jst_text,
    is_processable,
    jst_text,
)

NOW = dt.datetime(2026, 1, 4, 21, 0, tzinfo=JST)
RULES = Rules()
MINUTE = dt.timedelta(minutes=1)


def state(status: str | None, attempts: int = 0, minutes_ago: float | None = 5) -> MatchState | None:
    if status is None:
        return None
    last = None if minutes_ago is None else NOW - minutes_ago * MINUTE
    return MatchState(Status(status), attempts, last)


WINDOW = [  # minutes from now to kickoff, step, reason
    (60, "take", "in_window"),  # both ends belong to it
    (-60, "take", "in_window"),
    (0, "take", "in_window"),
    (60.02, "leave", "too_early"),
    (-60.02, "take", "catch_up"),
    (-1440, "take", "catch_up"),
    (-1440.02, "leave", "too_late"),
]


@pytest.mark.parametrize(("minutes", "step", "reason"), WINDOW)
@pytest.mark.parametrize("status", [None, "pending"])
def test_the_window(minutes: float, step: str, reason: str, status: str | None) -> None:
    decision = decide_step(state(status), NOW + minutes * MINUTE, Schedule.PLANNED, NOW, RULES)
    assert (decision.step, decision.reason) == (Step(step), Reason(reason))


STATUSES = [  # status, attempts, minutes since the last attempt, minutes to kickoff, step, reason
    ("complete", 1, 5, 0, "leave", "complete"),
    ("complete", 0, None, 0, "leave", "complete"),
    ("failed", 1, 5, 0, "take", "in_window"),
    ("failed", 2, 5, -300, "take", "catch_up"),
    ("failed", 3, 5, 0, "leave", "attempts_used_up"),
    ("failed", 9, 5, 0, "leave", "attempts_used_up"),
    ("processing", 0, 29.9, 0, "leave", "being_processed"),
    ("processing", 0, 30, 0, "take", "in_window"),
    ("processing", 0, None, 0, "take", "in_window"),
    ("processing", 1, 31, -300, "take", "catch_up"),
    ("processing", 2, 31, 0, "fail", "attempts_used_up"),
    ("processing", 0, 31, -2000, "fail", "too_late"),
    ("processing", 0, 31, 300, "fail", "too_early"),
]


@pytest.mark.parametrize(("status", "attempts", "ago", "minutes", "step", "reason"), STATUSES)
def test_the_status(
    status: str, attempts: int, ago: float | None, minutes: float, step: str, reason: str
) -> None:
    decision = decide_step(state(status, attempts, ago), NOW + minutes * MINUTE, Schedule.PLANNED, NOW, RULES)
    assert (decision.step, decision.reason) == (Step(step), Reason(reason))


@pytest.mark.parametrize("schedule", [member for member in Schedule if member is not Schedule.PLANNED])
def test_what_is_not_on_is_never_taken(schedule: Schedule) -> None:
    for asked in (False, True):
        decision = decide_step(None, NOW, schedule, NOW, RULES, ignore_window=asked, ignore_status=asked)
        assert (decision.step, decision.reason) == (Step.LEAVE, Reason.NOT_ON)


def test_an_operator_who_names_a_day_is_bound_by_the_status_but_not_the_window() -> None:
    long_ago = NOW - dt.timedelta(days=90)
    asked = decide_step(state("pending"), long_ago, Schedule.PLANNED, NOW, RULES, ignore_window=True)
    done = decide_step(state("complete"), long_ago, Schedule.PLANNED, NOW, RULES, ignore_window=True)
    debug = decide_step(
        state("complete"), long_ago, Schedule.PLANNED, NOW, RULES, ignore_window=True, ignore_status=True
    )
    assert [asked.step, done.step, debug.step] == [Step.TAKE, Step.LEAVE, Step.TAKE]


@pytest.mark.parametrize(
    ("status", "attempts", "ago", "expected"),
    [
        (None, 0, None, True),
        ("pending", 0, None, True),
        ("processing", 0, 1, False),
        ("processing", 1, 30, True),
        ("processing", 2, 30, False),
        ("complete", 0, 1, False),
        ("failed", 2, 1, True),
        ("failed", 3, 1, False),
    ],
)
def test_processable(status: str | None, attempts: int, ago: float | None, expected: bool) -> None:
    assert is_processable(state(status, attempts, ago), NOW, RULES) is expected


def test_every_kickoff_meets_a_dispatcher_and_the_three_hour_tick_alone_would_not() -> None:
    midnight = dt.datetime(2026, 1, 4, tzinfo=JST)
    kickoffs = [midnight + dt.timedelta(minutes=15 * quarter) for quarter in range(96)]

    def seen(every: int) -> int:
        looks = [midnight + dt.timedelta(minutes=every * number) for number in range(-60, 2000 // every + 60)]
        return sum(any(RULES.is_in_window(kickoff, look) for look in looks) for kickoff in kickoffs)

    assert seen(5) == 96
    assert seen(180) == 72  # three quarters of an hour out of every three hours are never looked at


def test_times_are_japanese_text_that_sorts() -> None:
    utc = dt.datetime(2026, 1, 4, 12, 0, 0, 999, tzinfo=dt.UTC)
    assert jst_text(utc) == "2026-01-04T21:00:00+09:00"
    assert jst_text(dt.datetime(2026, 1, 4, 21)) == "2026-01-04T21:00:00+09:00"
    assert as_jst(dt.datetime(2026, 1, 4, 21)) == NOW
    assert from_jst_text("2026-01-04T21:00:00+09:00") == NOW
    assert from_jst_text(None) is None
