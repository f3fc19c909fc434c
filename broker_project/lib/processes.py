"""Child processes that cannot outlive the process that started them, however that one ends.

On Linux the kernel ends them (PR_SET_PDEATHSIG). Elsewhere a guard process between parent and child watches its own
parent's id and kills the child's process group when that changes. The guard is this file, run as a script, so it
imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

IS_LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
GUARD_SECONDS = 0.5
# Loaded before any fork: nothing may be imported between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def die_with_parent(parent_pid: int) -> None:
    """Called in a fresh child: it is killed when the thread that forked it ends. Linux only."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the parent ended between the fork and the line above, no signal will come.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def let_no_fork_outlive_us() -> None:
    """From now on every fork of this process, and every fork of those, dies with its parent."""
    if not IS_LINUX:
        return
    forking_pid = [os.getpid()]

    def remember() -> None:
        forking_pid[0] = os.getpid()

    os.register_at_fork(before=remember, after_in_child=lambda: die_with_parent(forking_pid[0]))


def start_bound_process(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    output: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process, as the leader of a session and process group of its own.

    So Ctrl-C in the terminal reaches only us, and ``kill_group`` reaches whatever the program forks. Call this from a
    thread that lives as long as the child should: the kernel's signal is bound to the thread, not to the process.
    """
    parent_pid = os.getpid()
    if not IS_LINUX:
        command = [sys.executable, "-I", __file__, str(parent_pid), *command]
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
        preexec_fn=lambda: die_with_parent(parent_pid),
    )


def kill_group(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
    """Signal the whole process group. A group that has ended already is fine."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        # What macOS raises for a group of zombies only.
        return


def describe_ending(returncode: int) -> str:
    """``exit status 1`` or ``killed by SIGKILL``."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def guard(parent_pid: int, command: Sequence[str]) -> int:
    """Run a command in our own group until it ends or our parent does; pass SIGTERM and SIGINT on to it."""
    child = subprocess.Popen(list(command), close_fds=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: child.send_signal(received))
    while True:
        try:
            return child.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent_pid:
                os.killpg(os.getpgrp(), signal.SIGKILL)


def wait_until_gone(process: subprocess.Popen[bytes], until: float) -> bool:
    """Wait until the monotonic time ``until``; whether the process has ended by then."""
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


if __name__ == "__main__":
    status = guard(int(sys.argv[1]), sys.argv[2:])
    if status < 0:
        # End the way the child did, for whoever reads our exit status.
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
