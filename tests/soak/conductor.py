"""A soak from its beginning to its verdict: work, faults, quiet, and the questions afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import httpx
import psutil
import redis

from broker_project.lib.redis import keys as k
from tests.faults.invariants import broken, broken_at_any_time
from tests.faults.records import moment
from tests.soak.agents import Agent
from tests.soak.breaking import Breaker
from tests.soak.gauges import (
    EternalKeys,
    Gauges,
    eternal_keys,
    keys_of_closed_issues,
    names_with_ttl,
    role_of,
    zombies_among,
)
from tests.soak.ledger import Ledger, forgotten_endings
from tests.soak.people import ADMIN_ACTIONS, People
from tests.soak.plan import Planned
from tests.soak.site import KEYS, LEASE_SECONDS, Site, end_client
from tests.support.broker_process import living

SHIPPED_CLIENTS = 2
PROGRESS_SECONDS = 5.0
LOOK_SECONDS = 10.0  # between two looks at what must hold at any time
AGENTS_END_SECONDS = 60.0
POLLER_SECONDS = 90.0
QUIET_SECONDS = 240.0  # for everything to heal after the last fault
CLOCK_SECONDS = 150.0  # for the cluster's own clock to have started a poller that runs every minute

# Pollers, started far more often than by their schedule, in two lines so that runs get in each other's way.
CLOCKS = (
    (("items", "--all"), ("zombies",), ("feeds", "--force"), ("items", "--all"), ("dispatch",)),
    (("issues",), ("items", "--all"), ("zombies",), ("dispatch",), ("fixtures",)),
)
SETTLING = (
    ("zombies",),
    ("issues", "--force"),
    ("zombies",),
    ("items", "--all"),
    ("dispatch",),
    ("fixtures", "--force"),
)


@dataclass
class Outcome:
    """``broken`` is what must not be: sentences. None of them, and the soak has passed."""

    seconds: float = 0.0
    quiet_seconds: float = 0.0
    broken: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    keys: list[EternalKeys] = field(default_factory=list)
    zombie_processes: int = 0


class Conductor:
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
        self.breaker = Breaker(site, seed)
        self.people = People(site, seed, self.ledger)
        self.seed, self.agent_count = seed, agents
        self.outcome = Outcome()
        self.began = time.monotonic()
        self.is_over = asyncio.Event()
        self.nursery = asyncio.Lock()  # it answers one question at a time
        self.family: dict[int, psutil.Process] = {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    # Until the last fault

    async def run(self) -> Outcome:
        self.began = time.monotonic()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.agent_count)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
            agents = [
                Agent(
                    f"agent-{n}",
                    self.site.url,
                    Random(f"agent-{self.seed}-{n}"),
                    self.ledger,
                    client,
                    LEASE_SECONDS,
                    self.is_over,
                )
                for n in range(self.agent_count)
            ]
            for n in range(SHIPPED_CLIENTS):
                self.site.start_client(f"shipped-{n}")
            lives = [asyncio.create_task(agent.live()) for agent in agents]
            helpers = [asyncio.create_task(one) for one in self.helpers()]
            try:
                await self.break_things(helpers + lives)
            finally:
                self.is_over.set()
                await asyncio.to_thread(self.site.mend)
                await self.end_agents(lives)
                await asyncio.gather(*helpers)
        self.outcome.seconds = self.elapsed
        await self.settle()
        return self.outcome

    def helpers(self) -> list[Any]:
        every = self.every
        return [
            *(self.tick(clock) for clock in CLOCKS),
            every(1.5, self.people.open_issues),
            every(4, self.people.publish_news),
            every(6, self.people.plan_match),
            every(15, self.people.write_foreign_row),
            every(LOOK_SECONDS, self.look),
            every(2, self.read_gauges),
            every(PROGRESS_SECONDS, self.show_progress),
        ]

    async def break_things(self, others: list[asyncio.Task[None]]) -> None:
        """Each fault at its time; a helper that ended ends the soak, with its error."""
        underway: set[asyncio.Task[None]] = set()
        for planned in [*self.plan, None]:
            until = self.seconds if planned is None else planned.at
            while self.elapsed < until:
                await asyncio.sleep(min(0.2, max(0.0, until - self.elapsed)))
                for other in others:
                    if other.done():
                        await other
                        raise AssertionError("something of the soak has ended by itself")
            if planned is not None:
                underway.add(asyncio.create_task(self.carry_out(planned)))
        await asyncio.gather(*underway)

    async def carry_out(self, planned: Planned) -> None:
        hand = self.people.use_admin if planned.name in ADMIN_ACTIONS else None
        try:
            if hand is not None:
                is_done = await asyncio.to_thread(hand, planned.name)
            else:
                is_done = await asyncio.to_thread(self.breaker.carry_out, planned)
        except redis.exceptions.RedisError:
            is_done = False  # another fault had it already
        (self.ledger.faults if is_done else self.ledger.missed)[planned.name] += 1

    async def every(self, seconds: float, act: Callable[[], None]) -> None:
        while not self.is_over.is_set():
            await asyncio.to_thread(act)
            try:
                await asyncio.wait_for(self.is_over.wait(), seconds)
            except TimeoutError:
                continue

    async def tick(self, clock: tuple[tuple[str, ...], ...]) -> None:
        while not self.is_over.is_set():
            for arguments in clock:
                if not self.is_over.is_set():
                    await self.poll(*arguments)
                    await asyncio.sleep(0.3)

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

    def look(self) -> None:
        """What must hold at any time, held."""
        try:
            found = broken_at_any_time(self.site.evidence)
            self.site.evidence.remember_csv()
        except redis.exceptions.RedisError:
            return  # it is down just now; there is a next look
        for text in found:
            self.note_broken(f"after {self.elapsed:.0f} s: {text}")

    def note_broken(self, text: str) -> None:
        if text not in self.outcome.broken:
            self.outcome.broken.append(text)
            self.say(f"BROKEN {text}")

    def read_gauges(self) -> None:
        try:
            family = self.site.broker.family()
        except psutil.NoSuchProcess:
            return
        self.family.update({process.pid: process for process in family})
        self.gauges.read([(role, process) for process in family if (role := role_of(process)) is not None])

    async def end_agents(self, lives: list[asyncio.Task[None]]) -> None:
        """They finish what they have; who cannot is gone, and the sweep is for him."""
        for client in self.site.clients.values():
            await asyncio.to_thread(end_client, client)
        done, late = await asyncio.wait(lives, timeout=AGENTS_END_SECONDS)
        for life in late:
            life.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for life in done:
            life.result()

    # Afterwards

    async def settle(self) -> None:
        """Let leases end and the pollers run; what is still broken at the end of the quiet time is broken."""
        ended_at, begun = datetime.now(UTC), time.monotonic()
        self.say(
            f"[{self.elapsed:6.0f} s] no more faults; the pollers get {QUIET_SECONDS:.0f} s to settle everything"
        )
        await self.wait_until(self.site.is_up, 60, "the web answers again")
        await self.wait_until(lambda: not self.site.poller_locks(), 75, "every poller's lock has ended")
        await asyncio.to_thread(self.site.pass_time)
        found = ["the pollers have not run"]
        while found and time.monotonic() - begun < QUIET_SECONDS:
            for arguments in SETTLING:
                await self.poll(*arguments)
            found = await asyncio.to_thread(broken, self.site.evidence)
        for text in found:
            self.note_broken(text)
        for text in await asyncio.to_thread(forgotten_endings, self.site.records, self.ledger.endings):
            self.note_broken(text)
        for text in self.ledger.surprises:
            self.note_broken(text)
        await self.wait_until(
            lambda: self.began_after("metrics", ended_at),
            CLOCK_SECONDS,
            "the cluster has run a poller by itself",
        )
        self.outcome.quiet_seconds = time.monotonic() - begun
        status, output = await self.manage("keys", "check")
        if status != 0:
            self.note_broken(f"keys check: {output[-1000:]}")
        await asyncio.to_thread(self.take_stock)

    async def wait_until(self, look: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(look):
            if time.monotonic() > deadline:
                self.note_broken(f"did not happen within {seconds:.0f} s: {what}")
                return
            await asyncio.sleep(0.5)

    def began_after(self, poller: str, when: datetime) -> bool:
        last = moment(
            self.site.records.value("SELECT max(started_at) FROM broker_pollerrun WHERE name = ?", poller)
        )
        return last is not None and last > when

    def take_stock(self) -> None:
        """Figures of the end, while everything still runs; then the end itself."""
        self.read_gauges()
        self.outcome.zombie_processes = zombies_among(self.family.values())
        names = names_with_ttl(self.site.store)
        self.outcome.keys = eternal_keys(names, KEYS)
        numbers = self.site.records.rows(
            "SELECT number FROM tasks_issue WHERE is_open UNION SELECT number FROM tasks_pullrequest WHERE is_open"
        )
        for key in keys_of_closed_issues(names, KEYS, {number for (number,) in numbers}):
            self.note_broken(f"{key} is about an issue that is closed, and never ends")
        for row in self.outcome.keys:
            if not row.is_allowed:
                self.note_broken(f"{row.count} keys {row.pattern} never end")
        self.outcome.counts = self.counts()
        self.site.broker.close()
        for left in living(list(self.family.values())):
            self.note_broken(f"still there after the end: {left}")

    def counts(self) -> dict[str, Any]:
        rows, value = self.site.records.rows, self.site.records.value
        return {
            "assignments": dict(rows("SELECT state, count(*) FROM tasks_assignment GROUP BY state")),
            "task types": dict(rows("SELECT task_type, count(*) FROM tasks_assignment GROUP BY task_type")),
            "issues": value("SELECT count(*) FROM tasks_issue"),
            "parked": value("SELECT count(*) FROM tasks_event WHERE what = 'parked'"),
            "items": {
                f"{status}/{reason}": number
                for status, reason, number in rows(
                    "SELECT status, reason, count(*) FROM items GROUP BY status, reason"
                )
            },
            "posts": len(self.site.sandbox.state("mastodon")["statuses"]),
            "matches": dict(rows("SELECT status, count(*) FROM fixture_status GROUP BY status")),
            "zombies in Redis": self.site.store.scard(KEYS.key(k.PROCESSES_ZOMBIES)),
            "keys": self.site.store.dbsize(),
        }

    def show_progress(self) -> None:
        rows = self.site.records.rows
        states: dict[Any, int] = dict(rows("SELECT state, count(*) FROM tasks_assignment GROUP BY state"))
        items: dict[Any, int] = dict(rows("SELECT status, count(*) FROM items GROUP BY status"))
        matches: dict[Any, int] = dict(rows("SELECT status, count(*) FROM fixture_status GROUP BY status"))
        memory = sum(
            life.last.rss for life in self.gauges.lives.values() if life.last and psutil.pid_exists(life.pid)
        )
        self.say(
            f"[{self.elapsed:6.0f} s] tasks {sum(states.values())} given, {states.get('completed', 0)} completed,"
            f" {states.get('lost', 0)} lost; items {items.get(3, 0)} of {sum(items.values())} done;"
            f" matches {matches.get('complete', 0)} of {sum(matches.values())};"
            f" faults {self.ledger.faults.total()}; memory {memory / 2**20:.0f} MB"
        )
