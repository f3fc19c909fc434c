"""Processes that stand still for a while, with everything under them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def stopped(process: psutil.Process | int) -> Iterator[bool]:
    """SIGSTOP for it and its children, the parent first so that none is added; SIGCONT at the end.

    False if it has gone already. Who was killed meanwhile is left alone.
    """
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(process) if isinstance(process, int) else process
        leader.send_signal(signal.SIGSTOP)
        found = [leader, *leader.children(recursive=True)]
        for one in found[1:]:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGSTOP)
    try:
        yield bool(found)
    finally:
        for one in reversed(found):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)
