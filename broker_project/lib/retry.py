"""The one rule for trying again: values in, a decision out. The clock and the dice are the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import random
from time import sleep as wait
from typing import TypeVar

from broker_project.lib.errors import OutsideError

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """At most ``max_attempts`` tries; the pauses grow from ``base_seconds`` by ``factor`` up to ``cap_seconds``."""

    max_attempts: int = 3
    base_seconds: float = 1.0
    factor: float = 2.0
    cap_seconds: float = 60.0


@dataclass(frozen=True)
class TryAgain:
    delay_seconds: float


@dataclass(frozen=True)
class GiveUp:
    reason: str


def decide_retry(
    policy: RetryPolicy, attempts_made: int, error: OutsideError, dice: float
) -> TryAgain | GiveUp:
    """What to do after ``attempts_made`` tries, the last of which ended in ``error``. ``dice`` is in [0, 1).

    The pause is between half and the whole of the step, so that many callers do not come back at once. A
    far side that says when to come back is obeyed; if that is further away than the cap, we give up and leave it to
    the next scheduled run instead of holding a worker.
    """
    if error.is_permanent:
        return GiveUp("permanent")
    if attempts_made >= policy.max_attempts:
        return GiveUp("attempts used up")
    step = min(policy.cap_seconds, policy.base_seconds * policy.factor ** (attempts_made - 1))
    delay = step * (0.5 + dice / 2)
    if error.retry_after_seconds is not None:
        if error.retry_after_seconds > policy.cap_seconds:
            return GiveUp("told to come back later than we wait")
        delay = max(delay, error.retry_after_seconds)
    return TryAgain(delay)


def backoff_seconds(policy: RetryPolicy, failures: int, dice: float) -> float:
    """How long to leave something alone after so many failures in a row, when the next time is data on its row."""
    step = min(policy.cap_seconds, policy.base_seconds * policy.factor ** max(0, failures - 1))
    return step * (0.5 + dice / 2)


def call_with_retries(policy: RetryPolicy, call: Callable[[], T], *, is_safe: bool = True) -> T:
    """Run ``call`` by the policy. With ``is_safe=False`` a call that may have happened is not repeated."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return call()
        except OutsideError as error:
            if error.may_have_happened and not is_safe:
                raise
            decision = decide_retry(policy, attempts, error, random())  # noqa: S311 - jitter, not a secret
            if isinstance(decision, GiveUp):
                raise
            wait(decision.delay_seconds)
