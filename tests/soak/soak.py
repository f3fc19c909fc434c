"""The soak: many faults at once while everything works, and every invariant holds afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import psutil
import redis

from broker_project.lib.redis import keys as k
from tests.faults.invariants import broken, broken_at_any_time
from tests.soak.conductor import Conductor, now
from tests.soak.gauges import eternal_keys, keys_of_closed_issues, names_with_ttl, zombies_among
from tests.soak.ledger import forgotten_endings
from tests.soak.site import KEYS

PROGRESS_SECONDS = 5.0
LOOK_SECONDS = 10.0  # between two looks at what must hold at any time
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


class Soak(Conductor):
    manners = "soak"
    shipped_clients = 2

    def helpers(self) -> list[Coroutine[Any, Any, None]]:
        every = self.every
        return [
            *(self.tick(clock, 0.3) for clock in CLOCKS),
            every(1.5, self.people.open_issues),
            every(4, self.people.publish_news),
            every(6, self.people.plan_match),
            every(15, self.people.write_foreign_row),
            every(LOOK_SECONDS, self.look),
            every(2, self.read_gauges),
            every(PROGRESS_SECONDS, self.show_progress),
        ]

    async def break_things(self, others: list[asyncio.Task[None]]) -> None:
        """Each fault at its time, whatever else is broken then."""
        underway: set[asyncio.Task[None]] = set()
        for planned in self.plan:
            await self.pause(planned.at, others)
            underway.add(asyncio.create_task(self.carry_out(planned)))
        await self.pause(self.seconds, others)
        await asyncio.gather(*underway)

    def look(self) -> None:
        """What must hold at any time, held."""
        try:
            found = broken_at_any_time(self.site.evidence)
            self.site.evidence.remember_csv()
        except redis.exceptions.RedisError:
            return  # it is down just now; there is a next look
        for text in found:
            self.note_broken(f"after {self.elapsed:.0f} s: {text}")

    async def settle(self) -> None:
        """Let leases end and the pollers run; what is still broken at the end of the quiet time is broken."""
        ended_at, begun = now(), time.monotonic()
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
        await self.wait_for_the_cluster(ended_at, CLOCK_SECONDS)
        self.outcome.quiet_seconds = time.monotonic() - begun
        status, output = await self.manage("keys", "check")
        if status != 0:
            self.note_broken(f"keys check: {output[-1000:]}")
        await asyncio.to_thread(self.take_stock)

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
        self.end_the_broker()

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
