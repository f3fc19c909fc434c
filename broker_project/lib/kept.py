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
Clock = Callable[[], float]
EXPIRED = float("-inf")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    value: T
    fresh_until: float
    usable_until: float  # by those who find that somebody is reading it again


class Kept(Generic[T]):
    """A value that is read again once it is older than ``seconds``.

    ``read`` gets the value before, or None. One caller reads at a time. The others meanwhile use the old value for up
    to ``usable_seconds`` more (by default as long again), and wait for the new one after that: a value that nobody
    asked for in an hour is too old for anybody. An error of ``read`` goes to the caller and changes nothing.
    """

    def __init__(
        self,
        read: Callable[[T | None], T],
        seconds: float,
        *,
        usable_seconds: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._usable_seconds = seconds if usable_seconds is None else usable_seconds
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

    def get(self) -> T:
        """The value, read again first if it is stale."""
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
            changes = self._changes
            value = self._read(entry.value if entry is not None else None)
            if changes == self._changes:
                fresh_until = self._clock() + self._seconds
                self._entry = _Entry(value, fresh_until, fresh_until + self._usable_seconds)
            return value
        finally:
            reading.release()

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
        """As after a start."""
        self._changes += 1
        self._entry = None

    def _after_fork(self) -> None:
        self._reading = threading.Lock()  # the thread that held the lock is not in this process


_instances: weakref.WeakSet[Kept[Any]] = weakref.WeakSet()


def forget_all() -> None:
    """Forget every kept value of this process. For tests: what the values were read from is gone."""
    for kept in list(_instances):
        kept.forget()


def _release_after_fork() -> None:
    for kept in list(_instances):
        kept._after_fork()


os.register_at_fork(after_in_child=_release_after_fork)
