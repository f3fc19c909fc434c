"""Django's SQLite backend in which the threads of a process take turns to write.

SQLite has one write lock. A thread that finds it taken sleeps and tries again, longer each time, so many threads sleep
while the lock is free. Here the threads of a process queue for it in memory and are woken in turn; SQLite's own
waiting is left for other processes.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from django.db.backends.sqlite3 import base
from django.db.utils import OperationalError


class _Turn:
    """Whose turn it is to write. A forked child starts without its parent's queue."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self.lock = threading.Lock()


_turn = _Turn()


class DatabaseWrapper(base.DatabaseWrapper):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held: threading.Lock | None = (
            None  # the lock object itself: after a fork the module has a new one
        )

    def _start_transaction_under_autocommit(self) -> None:
        lock = _turn.lock
        # No longer than SQLite would wait for its own lock.
        if not lock.acquire(timeout=float(self.settings_dict["OPTIONS"].get("timeout", 5))):
            raise OperationalError("database is locked")
        self._held = lock
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        except BaseException:
            self._give_turn_back()
            raise

    def _commit(self) -> Any:
        done = super()._commit()  # type: ignore[misc]
        self._give_turn_back()  # after a failed commit the rollback does it
        return done

    def _rollback(self) -> Any:
        try:
            return super()._rollback()  # type: ignore[misc]
        finally:
            self._give_turn_back()

    def _close(self) -> Any:
        try:
            return super()._close()  # type: ignore[misc]
        finally:
            self._give_turn_back()

    def _give_turn_back(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()
