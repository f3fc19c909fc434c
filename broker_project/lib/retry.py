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


def backoff_seconds(policy: RetryPolicy, failures: int, dice: float) -> float:
    """The pause after so many failures in a row. ``dice`` is in [0, 1).

    Between half and the whole of the step, so that many callers do not come back at once.
    """
    step = min(policy.cap_seconds, policy.base_seconds * policy.factor ** max(0, failures - 1))
    return step * (0.5 + dice / 2)


def retry_delay(policy: RetryPolicy, attempts_made: int, error: OutsideError, dice: float) -> float | None:
    """Seconds to wait after ``attempts_made`` tries, the last of which ended in ``error``. None: give up.

    A far side that says when to come back is obeyed. If that is further away than the cap, it is left to the next
    scheduled run instead of holding a worker.
    """
    if error.is_permanent or attempts_made >= policy.max_attempts:
        return None
    told = error.retry_after_seconds or 0
    return max(backoff_seconds(policy, attempts_made, dice), told) if told <= policy.cap_seconds else None


def call_with_retries(policy: RetryPolicy, call: Callable[[], T]) -> T:
    """Run ``call``, which may be repeated without harm, by the policy."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return call()
        except OutsideError as error:
            delay = retry_delay(policy, attempts, error, random())  # noqa: S311 - jitter, not a secret
            if delay is None:
                raise
            wait(delay)
