from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from feeds.lifecycle import (
    RULES,
    ItemState,
    Outcome,
    Reason,
    Status,
    WrongState,
    after,
    can_retry,
    can_skip,
)

THEN = datetime(2026, 5, 1, tzinfo=UTC)
NOW = THEN + timedelta(hours=1)

# outcome, status before, (status, reason, counter) after; before: reason 2, counter 1; the limit is 3
CASES = [
    (Outcome.YES, 0, (2, 2, 1)),
    (Outcome.YES, 1, (2, 2, 1)),
    (Outcome.NO, 0, (1, 1, 2)),
    (Outcome.NO, 1, (1, 1, 2)),
    (Outcome.WAIT, 0, (1, 2, 2)),
    (Outcome.WAIT, 1, (1, 2, 2)),
    (Outcome.FETCH_FAILED, 0, (1, 3, 2)),
    (Outcome.FETCH_FAILED, 1, (1, 3, 2)),
    (Outcome.FETCH_FAILED, 2, (1, 3, 2)),
    (Outcome.ALL_TOO_LARGE, 0, (1, 4, 2)),
    (Outcome.ALL_TOO_LARGE, 1, (1, 4, 2)),
    (Outcome.ALL_TOO_LARGE, 2, (1, 4, 2)),
    (Outcome.API_FAILED, 0, (1, 5, 2)),
    (Outcome.API_FAILED, 1, (1, 5, 2)),
    (Outcome.API_FAILED, 2, (1, 5, 2)),
    (Outcome.CRASHED, 0, (0, 2, 2)),
    (Outcome.CRASHED, 1, (1, 2, 2)),
    (Outcome.CRASHED, 2, (2, 2, 2)),
    (Outcome.DRAFTED, 2, (2, 2, 1)),
    (Outcome.POSTED, 2, (3, 0, 1)),
]


def state(status: int, retry_count: int = 1) -> ItemState:
    return ItemState(Status(status), Reason.PAGE_NOT_READY, retry_count, THEN)


@pytest.mark.parametrize(("outcome", "before", "expected"), CASES)
def test_what_follows(outcome: Outcome, before: int, expected: tuple[int, int, int]) -> None:
    found = after(state(before), outcome, now=NOW, max_retries=3)
    assert (found.status, found.reason, found.retry_count) == expected
    assert found.last_checked_at == NOW


def test_the_table_of_cases_is_whole() -> None:
    allowed = {(outcome, status) for outcome, rule in RULES.items() for status in rule[0]}
    assert {(outcome, Status(status)) for outcome, status, _ in CASES} == allowed
    assert set(RULES) == set(Outcome)


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("status", list(Status))
def test_nothing_else_happens(outcome: Outcome, status: Status) -> None:
    if status not in RULES[outcome][0]:
        with pytest.raises(WrongState):
            after(state(status), outcome, now=NOW, max_retries=3)


@pytest.mark.parametrize("outcome", [each for each, rule in RULES.items() if rule[3]])
def test_the_limit_is_exceeded_by_the_fourth(outcome: Outcome) -> None:
    before = Status.UNPROCESSED
    third = after(state(before, 2), outcome, now=NOW, max_retries=3)
    assert third.retry_count == 3
    assert third.status is not Status.PROCESSED
    fourth = after(state(before, 3), outcome, now=NOW, max_retries=3)
    assert (fourth.status, fourth.reason, fourth.retry_count) == (3, 6, 4)


def test_without_retries_the_first_failure_is_the_last() -> None:
    found = after(state(0, 0), Outcome.NO, now=NOW, max_retries=0)
    assert (found.status, found.reason) == (Status.PROCESSED, Reason.RETRY_LIMIT_EXCEEDED)


def test_success_adds_nothing_even_at_the_limit() -> None:
    assert after(state(0, 3), Outcome.YES, now=NOW, max_retries=3).status is Status.PENDING
    assert after(state(2, 3), Outcome.POSTED, now=NOW, max_retries=3).reason is Reason.NONE


def test_numbers_are_the_seeds() -> None:
    assert [status.value for status in Status] == [0, 1, 2, 3]
    assert [reason.value for reason in Reason] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("status", "reason", "retry", "skip"),
    [
        (0, None, True, True),
        (1, 3, True, True),
        (2, None, False, True),
        (3, 6, True, False),
        (3, 0, False, False),
        (3, 1, False, False),
    ],
)
def test_what_an_admin_may_do(status: int, reason: int | None, retry: bool, skip: bool) -> None:
    known = None if reason is None else Reason(reason)
    assert can_retry(Status(status), known) is retry
    assert can_skip(Status(status)) is skip
