"""The repositories that work comes from, kept in memory for a few seconds: a request costs no query."""

from __future__ import annotations

import threading
import time

from tasks.models import Repository
from tasks.services.repositories import repositories_to_poll

FRESH_SECONDS = 5.0

_lock = threading.Lock()
_kept: tuple[float, list[Repository]] = (float("-inf"), [])


def kept_repositories() -> list[Repository] | None:
    """What is in memory, if it is fresh. Never blocks."""
    return _kept[1] if time.monotonic() - _kept[0] < FRESH_SECONDS and _kept[1] else None


def enabled_repositories() -> list[Repository]:
    """Enabled repositories, the configured one first. Blocks on the database at most every few seconds."""
    global _kept
    if (kept := kept_repositories()) is not None:
        return kept
    with _lock:
        if (kept := kept_repositories()) is not None:
            return kept
        _kept = (time.monotonic(), repositories_to_poll())
        return _kept[1]


def forget_repositories() -> None:
    global _kept
    _kept = (float("-inf"), [])
