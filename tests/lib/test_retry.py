"""The one rule for trying again, as a table."""

from __future__ import annotations

import pytest

from broker_project.lib.errors import Missing, OutsideError, RateLimited, ServerFault, TimedOut, Unreachable
from broker_project.lib.retry import (
    GiveUp,
    RetryPolicy,
    TryAgain,
    backoff_seconds,
    call_with_retries,
    decide_retry,
)

POLICY = RetryPolicy(max_attempts=4, base_seconds=2, factor=3, cap_seconds=20)
FAULT = ServerFault("x", "broken")


def told(seconds: float) -> OutsideError:
    return RateLimited("x", "later", retry_after_seconds=seconds)


@pytest.mark.parametrize(
    ("attempts", "error", "dice", "decision"),
    [
        (1, FAULT, 0.0, TryAgain(1.0)),
        (1, FAULT, 0.5, TryAgain(1.5)),
        (2, FAULT, 0.0, TryAgain(3.0)),
        (3, FAULT, 0.0, TryAgain(9.0)),
        (3, FAULT, 0.999, TryAgain(17.991)),
        (4, FAULT, 0.0, GiveUp("attempts used up")),
        (9, FAULT, 0.0, GiveUp("attempts used up")),
        (1, Missing("x", "gone"), 0.0, GiveUp("permanent")),
        (4, Missing("x", "gone"), 0.0, GiveUp("permanent")),
        (1, told(0), 0.0, TryAgain(1.0)),
        (1, told(15), 0.0, TryAgain(15)),
        (1, told(20), 0.0, TryAgain(20)),
        (1, told(20.1), 0.0, GiveUp("told to come back later than we wait")),
        (4, told(1), 0.0, GiveUp("attempts used up")),
    ],
)
def test_what_to_do_after_a_failure(
    attempts: int, error: OutsideError, dice: float, decision: TryAgain | GiveUp
) -> None:
    found = decide_retry(POLICY, attempts, error, dice)
    if isinstance(decision, TryAgain):
        assert isinstance(found, TryAgain)
        assert found.delay_seconds == pytest.approx(decision.delay_seconds)
    else:
        assert found == decision


@pytest.mark.parametrize(
    ("failures", "dice", "seconds"), [(0, 0, 1), (1, 0, 1), (2, 0, 3), (3, 1, 18), (4, 1, 20), (500, 0, 10)]
)
def test_how_long_to_leave_something_alone(failures: int, dice: float, seconds: float) -> None:
    assert backoff_seconds(POLICY, failures, dice) == pytest.approx(seconds)


QUICK = RetryPolicy(max_attempts=3, base_seconds=0.001, cap_seconds=0.002)


class Counted:
    def __init__(self, *errors: OutsideError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize(
    ("errors", "is_safe", "calls", "ending"),
    [
        ([], True, 1, "done"),
        ([FAULT, FAULT], True, 3, "done"),
        ([FAULT, FAULT, FAULT], True, 3, ServerFault),
        ([Missing("x", "")], True, 1, Missing),
        ([FAULT], False, 1, ServerFault),
        ([TimedOut("x", "")], False, 1, TimedOut),
        ([RateLimited("x", "")], False, 2, "done"),
        ([Unreachable("x", "", may_have_happened=False)], False, 2, "done"),
        ([told(5)], True, 1, RateLimited),
    ],
)
def test_calling_by_the_policy(
    errors: list[OutsideError], is_safe: bool, calls: int, ending: str | type[OutsideError]
) -> None:
    call = Counted(*errors)
    if isinstance(ending, str):
        assert call_with_retries(QUICK, call, is_safe=is_safe) == ending
    else:
        with pytest.raises(ending):
            call_with_retries(QUICK, call, is_safe=is_safe)
    assert call.calls == calls
