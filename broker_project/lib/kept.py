"""Values that a process keeps for some seconds, so that a request costs no query and no round trip of its own."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Read = Callable[[T | None], T]  # given the value before, or None
Clock = Callable[[], float]

EXPIRED = float("-inf")
QUICK_SECONDS = 0.03
KEPT_PER_SECOND = 100
MAX_KEPT_SECONDS = 60.0


def in_proportion(cost_seconds: float) -> float:
    """How long a figure is kept: not at all if it is quick, 10 s if it takes 0.1 s."""
    return 0.0 if cost_seconds < QUICK_SECONDS else min(MAX_KEPT_SECONDS, cost_seconds * KEPT_PER_SECOND)


@dataclass(frozen=True)
class _Entry(Generic[T]):
    value: T
    fresh_until: float
    usable_until: float  # by callers that find somebody else reading it again


class Kept(Generic[T]):
    """A value that is read again once it is older than ``seconds``, which may depend on what reading it cost.

    One caller reads at a time. The others meanwhile use the old value for up to ``usable_seconds`` more (by default as
    long again), and wait for the new one after that: a value that nobody asked for in an hour is too old for anybody.
    An error of ``read`` goes to the caller and changes nothing.
    """

    def __init__(
        self,
        read: Read[T],
        seconds: float | Callable[[float], float],
        *,
        usable_seconds: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._usable_seconds = usable_seconds
        self._clock = clock
        self._reading = threading.Lock()
        self._changes = (
            0  # calls of expire() and forget(); a read that began before one of them does not count
        )
        self._entry: _Entry[T] | None = None
        _instances.add(self)

    @property
    def is_stale(self) -> bool:
        entry = self._entry
        return entry is None or self._clock() >= entry.fresh_until

    @property
    def is_usable(self) -> bool:
        """Whether the value will do while it is being read again."""
        entry = self._entry
        return entry is not None and self._clock() < entry.usable_until

    @property
    def latest(self) -> T | None:
        """What is in memory, however old. Never blocks."""
        entry = self._entry
        return entry.value if entry is not None else None

    def get(self, read: Read[T] | None = None) -> T:
        """The value, read again first if it is stale. ``read`` replaces the reader of the constructor."""
        entry = self._entry
        if entry is not None and self._clock() < entry.fresh_until:
            return entry.value
        reading = self._reading
        is_usable = entry is not None and self._clock() < entry.usable_until
        if not reading.acquire(blocking=not is_usable):
            assert entry is not None
            return entry.value
        try:
            entry = self._entry
            if entry is not None and self._clock() < entry.fresh_until:
                return entry.value  # read by whoever we waited for
            return self._read_now(read or self._read, entry)
        finally:
            reading.release()

    def _read_now(self, read: Read[T], entry: _Entry[T] | None) -> T:
        changes, began_at = self._changes, self._clock()
        value = read(entry.value if entry is not None else None)
        if changes == self._changes:
            now = self._clock()
            seconds = self._seconds(now - began_at) if callable(self._seconds) else self._seconds
            usable_seconds = seconds if self._usable_seconds is None else self._usable_seconds
            self._entry = _Entry(value, now + seconds, now + seconds + usable_seconds)
        return value

    def refresh_aside(self) -> None:
        """Read again in a thread of its own unless somebody is reading: for callers that must not wait."""
        if not self._reading.locked():
            threading.Thread(target=self.get, name="kept-value", daemon=True).start()

    def expire(self) -> None:
        """Read again before the next use. For those who have changed what the value is read from."""
        self._changes += 1
        if self._entry is not None:
            self._entry = replace(self._entry, fresh_until=EXPIRED, usable_until=EXPIRED)

    def forget(self) -> None:
        """Drop the value, as after a start."""
        self._changes += 1
        self._entry = None

    def _after_fork(self) -> None:
        self._reading = threading.Lock()  # the thread that held the lock is not in this process


_instances: weakref.WeakSet[Kept[Any]] = weakref.WeakSet()
_figures: dict[str, Kept[Any]] = {}


def figure(name: str, compute: Read[T]) -> T:
    """A figure of a page: what ``compute`` says, kept in proportion to what it costs. A quick one is always fresh.

    ``compute`` gets what it said before, of which it may reuse what can no longer change.
    """
    kept = _figures.get(name) or _figures.setdefault(name, Kept(compute, in_proportion))
    found: T = kept.get(compute)
    return found


def forget_all() -> None:
    """Forget every kept value of this process. For tests: what the values were read from is gone."""
    for kept in list(_instances):
        kept.forget()


def _release_after_fork() -> None:
    for kept in list(_instances):
        kept._after_fork()


os.register_at_fork(after_in_child=_release_after_fork)
