"""What a soak and a chaos run share: agents at work, people around them, and faults at their times."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import httpx
import psutil
import psycopg
import redis

from tests.faults.records import moment
from tests.soak.breaking import Breaker
from tests.soak.crew import Crew
from tests.soak.gauges import EternalKeys, Gauges, role_of
from tests.soak.ledger import FaultRun, Ledger
from tests.soak.people import ADMIN_ACTIONS, People
from tests.soak.plan import Planned
from tests.soak.site import Site, end_client
from tests.support.broker_process import living

AGENTS_END_SECONDS = 60.0
POLLER_SECONDS = 90.0
# Somebody met a fault that was meant for the broker, or came to break what is broken already.
IN_THE_WAY = (redis.exceptions.RedisError, psycopg.Error, sqlite3.Error, httpx.HTTPError)


@dataclass
class Outcome:
    """``broken`` is what must not be: sentences. None of them, and all is well."""

    seconds: float = 0.0
    quiet_seconds: float = 0.0
    broken: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    keys: list[EternalKeys] = field(default_factory=list)
    zombie_processes: int = 0


class Conductor(ABC):
    """One run. Whoever inherits says what goes on meanwhile, and judges at the end."""

    manners: ClassVar[str]  # of the agents
    shipped_clients: ClassVar[int] = 0

    def __init__(
        self,
        site: Site,
        plan: list[Planned],
        *,
        seed: int,
        seconds: float,
        agents: int,
        say: Callable[[str], None],
    ) -> None:
        self.site, self.plan, self.seconds, self.say = site, plan, seconds, say
        self.ledger, self.gauges = Ledger(), Gauges()
        self.crew = Crew(site.folder, site.url, seed, agents, self.manners, self.ledger)
        self.breaker = Breaker(site, self.crew, seed)
        self.people = People(site, seed, self.ledger)
        self.outcome = Outcome()
        self.began = time.monotonic()
        self.is_over = asyncio.Event()
        self.nursery = asyncio.Lock()  # it answers one question at a time
        self.family: dict[int, psutil.Process] = {}

    @abstractmethod
    def helpers(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on beside the agents and the faults, until ``is_over``."""

    @abstractmethod
    async def break_things(self, others: list[asyncio.Task[None]]) -> None:
        """Carry out the plan, until the time is over; :meth:`pause` watches the others meanwhile."""

    @abstractmethod
    async def settle(self) -> None:
        """After the last fault: what is still wrong once all is quiet is noted as broken."""

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    async def run(self) -> Outcome:
        self.began = time.monotonic()
        for number in range(self.shipped_clients):
            self.site.start_client(f"shipped-{number}")
        lives = self.crew.start()
        helpers = [asyncio.create_task(one) for one in self.helpers()]
        try:
            await self.break_things(helpers + lives)
        finally:
            self.is_over.set()
            await asyncio.to_thread(self.site.mend)
            for client in self.site.clients.values():
                await asyncio.to_thread(end_client, client)
            await self.crew.end(lives, AGENTS_END_SECONDS)
            await asyncio.gather(*helpers)
        self.outcome.seconds = self.elapsed
        await self.settle()
        return self.outcome

    async def pause(self, until: float, others: list[asyncio.Task[None]]) -> None:
        """Until so many seconds after the beginning. A helper that ended ends the run, with its error."""
        while self.elapsed < until:
            await asyncio.sleep(min(0.2, max(0.0, until - self.elapsed)))
            for other in others:
                if other.done():
                    await other
                    raise AssertionError("something of the run has ended by itself")

    async def carry_out(self, planned: Planned) -> None:
        began = time.time()
        try:
            if planned.name in ADMIN_ACTIONS:
                is_done = await asyncio.to_thread(self.people.use_admin, planned.name)
            else:
                is_done = await asyncio.to_thread(self.breaker.carry_out, planned)
        except IN_THE_WAY:
            is_done = False
        (self.ledger.faults if is_done else self.ledger.missed)[planned.name] += 1
        if is_done:
            self.ledger.fault_runs.append(FaultRun(planned.name, planned.facts, began, time.time()))

    # What helpers are made of

    async def every(self, seconds: float, act: Callable[[], None]) -> None:
        while not self.is_over.is_set():
            await asyncio.to_thread(act)
            try:
                await asyncio.wait_for(self.is_over.wait(), seconds)
            except TimeoutError:
                continue

    async def tick(self, clock: tuple[tuple[str, ...], ...], pause_seconds: float) -> None:
        """Run these pollers one after another, again and again."""
        while not self.is_over.is_set():
            for arguments in clock:
                if not self.is_over.is_set():
                    await self.poll(*arguments)
                    await asyncio.sleep(pause_seconds)

    async def poll(self, *arguments: str) -> None:
        status, output = await self.manage("poll", *arguments)
        if status is None:
            self.ledger.surprise(f"poll {arguments[0]} took more than {POLLER_SECONDS:.0f} s")
        else:
            self.ledger.polled(arguments[0], status, output)

    async def manage(self, *arguments: str) -> tuple[int | None, str]:
        """A command in a process of its own: how it ended, and what it printed."""
        async with self.nursery:
            process = await asyncio.to_thread(self.site.start_command, *arguments)
        self.breaker.pollers.append(process)
        deadline = time.monotonic() + POLLER_SECONDS
        status = None
        while status is None and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            async with self.nursery:
                status = await asyncio.to_thread(process.wait, 0)
        self.breaker.pollers.remove(process)
        if status is None:
            async with self.nursery:
                await asyncio.to_thread(process.kill)
        return status, process.output

    def read_gauges(self) -> None:
        try:
            family = self.site.broker.family()
        except psutil.NoSuchProcess:
            return
        self.family.update({process.pid: process for process in family})
        self.gauges.read([(role, process) for process in family if (role := role_of(process)) is not None])

    # What verdicts are made of

    def note_broken(self, text: str) -> None:
        if text not in self.outcome.broken:
            self.outcome.broken.append(text)
            self.say(f"BROKEN {text}")

    async def wait_until(self, look: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(look):
            if time.monotonic() > deadline:
                self.note_broken(f"did not happen within {seconds:.0f} s: {what}")
                return
            await asyncio.sleep(0.5)

    def has_begun_since(self, poller: str, when: datetime) -> bool:
        last = moment(
            self.site.records.value("SELECT max(started_at) FROM broker_pollerrun WHERE name = ?", poller)
        )
        return last is not None and last > when

    async def wait_for_the_cluster(self, since: datetime, seconds: float) -> None:
        """A poller that runs every minute has been started by the cluster's own clock."""
        await self.wait_until(
            lambda: self.has_begun_since("metrics", since), seconds, "the cluster has run a poller by itself"
        )

    def end_the_broker(self) -> None:
        """Nothing that it ever started may be left."""
        self.site.broker.close()
        for left in living(list(self.family.values())):
            self.note_broken(f"still there after the end: {left}")


def now() -> datetime:
    return datetime.now(UTC)
