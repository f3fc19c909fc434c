"""The agents of a soak as processes: started, listened to, and started again after they were killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.processes import die_with_parent
from tests.soak.ledger import Ledger
from tests.soak.sightings import Sighting
from tests.soak.site import LEASE_SECONDS

LINE_BYTES = 1 << 20
# SIGTERM ends an agent by itself only while it is still starting.
EXPECTED_ENDINGS = (0, -signal.SIGKILL, -signal.SIGTERM)


class Crew:
    def __init__(self, folder: Path, url: str, seed: int, count: int, manners: str, ledger: Ledger) -> None:
        self.folder, self.url, self.seed, self.manners, self.ledger = folder, url, seed, manners, ledger
        self.names = [f"agent-{number}" for number in range(count)]
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.is_ending = False

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._keep(name)) for name in self.names]

    async def _keep(self, name: str) -> None:
        """One agent until the end; whoever was killed comes back and knows nothing of before."""
        births = 0
        while not self.is_ending:
            births += 1
            status = await self._live(name, births)
            if status not in EXPECTED_ENDINGS:
                raise AssertionError(f"{name} ended with {status}; see {self.log}")

    @property
    def log(self) -> Path:
        return self.folder / "agents.log"

    async def _live(self, name: str, births: int) -> int:
        parent = os.getpid()
        with self.log.open("ab") as log:
            process = self.processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.soak.agents", name, "--url", self.url),
                *("--seed", f"{name}-{self.seed}-{births}", "--manners", self.manners),
                *("--lease-seconds", str(LEASE_SECONDS)),
                cwd=BASE_DIR,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES,
                preexec_fn=lambda: die_with_parent(parent),
            )
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed agent may be half
                self.ledger.see(Sighting.from_line(line))
        return await process.wait()

    def alive(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.returncode is None]

    def kill_one(self, random: Random) -> bool:
        """May be called from another thread."""
        alive = self.alive()
        if not alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.processes[random.choice(alive)].pid, signal.SIGKILL)
            return True
        return False

    async def end(self, lives: list[asyncio.Task[None]], seconds: float) -> None:
        """They finish what they have; who cannot is killed, and the sweep is for him."""
        self.is_ending = True
        for name in self.alive():
            with suppress(ProcessLookupError):
                self.processes[name].send_signal(signal.SIGTERM)
        _, late = await asyncio.wait(lives, timeout=seconds)
        if late:
            for name in self.alive():
                with suppress(ProcessLookupError):
                    self.processes[name].kill()
        for life in lives:
            await life
