"""Which processes use a folder ``var``: long-running ones hold a shared lock on a file in it until they end."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_held: dict[Path, int] = {}


def hold_var_folder(var: Path) -> None:
    """From now until this process and its forks have ended. The kernel releases the lock, however that happens."""
    if var not in _held:
        _held[var] = _open(var)
        fcntl.flock(_held[var], fcntl.LOCK_SH)  # waits some seconds for whoever restores a backup


def is_var_folder_held(var: Path) -> bool:
    """Whether another process uses it."""
    descriptor = _open(var)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open(var: Path) -> int:
    path = var / "run" / "in_use"
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
