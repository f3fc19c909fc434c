"""Which processes work with a folder ``var``: those that stay hold a shared lock on a file in it until they end."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_held: dict[Path, int] = {}


def lock_file(var: Path) -> Path:
    return var / "run" / "in_use"


def open_lock(var: Path) -> int:
    path = lock_file(var)
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def mark_in_use(var: Path) -> None:
    """From now until this process and what it forks has ended. The kernel lets go, however that happens."""
    if var not in _held:
        _held[var] = open_lock(var)
        # Who restores a backup holds it alone, for seconds.
        fcntl.flock(_held[var], fcntl.LOCK_SH)


def is_in_use(var: Path) -> bool:
    """Whether any other process has said so."""
    descriptor = open_lock(var)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
