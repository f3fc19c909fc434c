"""The one rule for trying again, as a table."""

from __future__ import annotations

import pytest

from broker_project.lib.errors import Missing, OutsideError, RateLimited, ServerFault
from broker_project.lib.retry import RetryPolicy, backoff_seconds, call_with_retries, retry_delay

POLICY = RetryPolicy(max_attempts=4, base_seconds=2, factor=3, cap_seconds=20)
FAULT = ServerFault("x", "broken")


def told(seconds: float) -> OutsideError:
    return RateLimited("x", "later", retry_after_seconds=seconds)


@pytest.mark.parametrize(
    ("attempts", "error", "dice", "delay"),
    [
        (1, FAULT, 0.0, 1.0),
        (1, FAULT, 0.5, 1.5),
        (2, FAULT, 0.0, 3.0),
        (3, FAULT, 0.0, 9.0),
        (3, FAULT, 0.999, 17.991),
        (4, FAULT, 0.0, None),
        (9, FAULT, 0.0, None),
        (1, Missing("x", "gone"), 0.0, None),
        (4, Missing("x", "gone"), 0.0, None),
        (1, told(0), 0.0, 1.0),
        (1, told(15), 0.0, 15),
        (1, told(20), 0.0, 20),
        (1, told(20.1), 0.0, None),
        (4, told(1), 0.0, None),
    ],
)
def test_how_long_to_wait_after_a_failure(
    attempts: int, error: OutsideError, dice: float, delay: float | None
) -> None:
    expected = None if delay is None else pytest.approx(delay)
    assert retry_delay(POLICY, attempts, error, dice) == expected


@pytest.mark.parametrize(
    ("failures", "dice", "seconds"), [(0, 0, 1), (1, 0, 1), (2, 0, 3), (3, 1, 18), (4, 1, 20), (500, 0, 10)]
)
def test_backoff_grows_up_to_the_cap(failures: int, dice: float, seconds: float) -> None:
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
    ("errors", "calls", "ending"),
    [
        ([], 1, "done"),
        ([FAULT, FAULT], 3, "done"),
        ([FAULT, FAULT, FAULT], 3, ServerFault),
        ([Missing("x", "")], 1, Missing),
        ([told(5)], 1, RateLimited),
    ],
)
def test_calls_are_repeated_by_the_policy(
    errors: list[OutsideError], calls: int, ending: str | type[OutsideError]
) -> None:
    call = Counted(*errors)
    if isinstance(ending, str):
        assert call_with_retries(QUICK, call) == ending
    else:
        with pytest.raises(ending):
            call_with_retries(QUICK, call)
    assert call.calls == calls
