"""Who waits for work in this process: in the order of their coming, a line for each list of roles in use.

Few such lists are in use, however many wait: neither one new task nor thousands look at thousands of waiters.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import count, islice

Roles = tuple[str, ...]


class Woken(StrEnum):
    WORK = "work"
    TIMEOUT = "timeout"
    GONE = "gone"  # the client
    CLOSING = "closing"  # the server
    REDIS = "redis"  # the subscription broke
    MAINTENANCE = "maintenance"


class Waiter:
    """One waiting request. The future is made anew for each wait. Without roles it takes anything."""

    __slots__ = ("future", "is_gone", "roles")

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.is_gone = False
        self.future: asyncio.Future[Woken] | None = None

    def wake(self, why: Woken) -> bool:
        if self.future is None or self.future.done():
            return False
        self.future.set_result(why)
        return True


class Waiters:
    def __init__(self) -> None:
        self._lines: dict[Roles, OrderedDict[Waiter, int]] = {}  # waiter → when it came
        self._coming = count()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, waiter: Waiter) -> None:
        self._lines.setdefault(waiter.roles, OrderedDict())[waiter] = next(self._coming)

    def discard(self, waiter: Waiter) -> None:
        line = self._lines.get(waiter.roles)
        if line is None or line.pop(waiter, None) is None:
            return
        if not line:
            del self._lines[waiter.roles]

    def roles(self) -> Iterator[Roles]:
        """The lists of roles in use."""
        return iter(self._lines)

    def wake_one(self, offered: Sequence[str]) -> bool:
        """Wake who has waited longest of those whom one of these roles fits."""
        lines = [
            line for wanted, line in self._lines.items() if not wanted or not set(wanted).isdisjoint(offered)
        ]
        while fitting := [line for line in lines if line]:
            _, waiter = min(next((came, waiter) for waiter, came in line.items()) for line in fitting)
            self.discard(waiter)
            if waiter.wake(Woken.WORK):
                return True
        return False

    def wake(self, number: int, why: Woken) -> None:
        """Wake so many, the longest waiting first, whatever their roles."""
        everybody = sorted((came, waiter) for line in self._lines.values() for waiter, came in line.items())
        for _, waiter in islice(everybody, number):
            self.discard(waiter)
            waiter.wake(why)

    def wake_all(self, why: Woken) -> None:
        self.wake(len(self), why)
