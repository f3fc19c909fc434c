"""A part of the broker as a child process: started, watched, started again with growing pauses."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.processes import describe_ending, kill_group, start_bound_process, wait_until_gone
from broker_project.ops.supervisor.terminal import Terminal

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0  # whoever lives this long has recovered
MANY_ENDINGS = 5


def pause_before_restart(quick_endings: int) -> float:
    """Seconds to wait after the n-th ending in quick succession: 0.5, 1, 2 … 30."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(quick_endings - 1, 10))


@dataclass
class Child:
    """``environment`` is asked at every start: an address may have changed since the last."""

    name: str
    command: Sequence[str]
    environment: Callable[[], dict[str, str]]
    terminal: Terminal
    pass_fds: Sequence[int] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    quick_endings: int = field(default=0, init=False)
    start_again_at: float = field(default=0.0, init=False)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        kind = self.name.split("-")[0]
        given = self.environment()
        env = {**os.environ, **given, "BROKER_PART": kind, "BROKER_SUPERVISED": "1", "PYTHONUNBUFFERED": "1"}
        try:
            self.process = start_bound_process(
                self.command, cwd=BASE_DIR, env=env, output=subprocess.PIPE, pass_fds=self.pass_fds
            )
        except OSError as error:
            self._plan_restart(f"could not be started: {error.strerror}")
            return
        self.started_at = time.monotonic()
        assert self.process.stdout is not None
        self.terminal.follow(self.name, self.process.stdout)

    def watch(self) -> None:
        """Start it again if it has ended and its pause is over. To be called often."""
        if self.process is None:
            if time.monotonic() >= self.start_again_at:
                self.start()
            return
        returncode = self.process.poll()
        if returncode is None:
            return
        # What it forked may still be there: a cluster's sentinel, for one.
        kill_group(self.process)
        if time.monotonic() - self.started_at >= STEADY_SECONDS:
            self.quick_endings = 0
        self._plan_restart(f"ended ({describe_ending(returncode)})")

    def _plan_restart(self, what: str) -> None:
        self.process = None
        self.quick_endings += 1
        pause = pause_before_restart(self.quick_endings)
        self.start_again_at = time.monotonic() + pause
        if self.quick_endings == MANY_ENDINGS:
            self.terminal.say(
                f"{self.name} {what}, {MANY_ENDINGS} times now in quick succession; its lines above say why. "
                f"It is tried again with pauses of up to {LONGEST_PAUSE_SECONDS:.0f} s."
            )
        else:
            self.terminal.say(f"{self.name} {what}; starting it again in {pause:g} s")

    def restart_now(self) -> None:
        """End it with everything that it forked, and start it at once."""
        if self.process is not None:
            kill_group(self.process)
            self.process.wait()
            self.process = None
        self.start()

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def has_ended(self, until: float) -> bool:
        """Wait until a monotonic time; whether it has ended by then."""
        return self.process is None or wait_until_gone(self.process, until)

    def kill(self) -> None:
        """Whatever is left of it, its forks included."""
        if self.process is not None:
            kill_group(self.process)
            self.process.wait()
