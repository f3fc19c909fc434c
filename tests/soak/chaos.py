"""The bad hour: one heavy fault after another, and a judge that knows what clients saw, the database and GitHub.

Nothing is hurried by hand while there are faults but the feeds: sweeps come at their schedule, so that an agent which
is locked out stays idle for as long as it would. Afterwards the sweep is run often for some real minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.faults.invariants import LIVE, stray_labels
from tests.soak.conductor import IN_THE_WAY, Conductor, now
from tests.soak.idleness import Recovery, Stretch, idle_stretches, recoveries, times_with_work
from tests.soak.judge import assignments, holds, judge
from tests.soak.plan import Planned
from tests.soak.sightings import REQUEST

PROGRESS_SECONDS = 10.0
# Issues that nobody has had yet: more than are taken until a lost webhook is made up for by the next poll.
BACKLOG_PER_AGENT = 12
WARM_UP_SECONDS = 120.0
RECOVERY_SECONDS = 60.0  # so long the next fault waits for a task to be given
QUIET_SECONDS = 150.0
SWEEP_SECONDS = 5.0
CLOCK_SECONDS = 150.0
OUTLASTING_SECONDS = 10.0  # so much longer than its timeout may a request take
FEEDS = (("feeds", "--force"), ("items", "--all"))
SWEEPS = (("zombies",), ("issues", "--force"))


@dataclass
class Figures:
    """What a chaos run is for, beside its verdict."""

    began_at: float = 0.0  # with the first fault
    ended_at: float = 0.0
    agents: int = 0
    idle: list[Stretch] = field(default_factory=list)  # the longest first
    seconds_with_work: float = 0.0
    recoveries: list[Recovery] = field(default_factory=list)
    unreported: int = 0  # completed by the agent's next request, without a word about it
    outlasting: int = 0  # requests that took more than OUTLASTING_SECONDS longer than their timeout


class Chaos(Conductor):
    manners = "chaos"

    def helpers(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self.tick(FEEDS, SWEEP_SECONDS),
            self.every(1, self.unless_away(self.keep_backlog)),
            self.every(4, self.unless_away(self.people.publish_news)),
            self.every(2, self.read_gauges),
            self.every(PROGRESS_SECONDS, self.show_progress),
        ]

    def keep_backlog(self) -> None:
        self.people.keep_backlog(BACKLOG_PER_AGENT * len(self.crew.names))

    def unless_away(self, act: Callable[[], None]) -> Callable[[], None]:
        """People meet the same faults, and try again."""

        def attempt() -> None:
            with suppress(*IN_THE_WAY):
                act()

        return attempt

    async def break_things(self, others: list[asyncio.Task[None]]) -> None:
        """One at a time. The next one waits until a task was given again, and a moment longer."""
        await self.warm_up(others)
        await self.pause(self.plan[0].at, others)
        self.figures = Figures(began_at=time.time(), agents=len(self.crew.names))
        delay = 0.0
        for planned in self.plan:
            if planned.at + delay > self.seconds:
                break
            await self.pause(planned.at + delay, others)
            self.ledger.scene = f"{self.elapsed:.0f} s, {planned}"
            self.say(f"[{self.elapsed:6.0f} s] {planned}")
            await self.carry_out(planned)
            await self.recovery(others)
            delay = max(delay, self.elapsed - self.planned_end(planned))
        await self.pause(self.seconds, others)
        self.figures.ended_at = time.time()

    async def warm_up(self, others: list[asyncio.Task[None]]) -> None:
        """The clock starts when the backlog is known and there are as many tasks as agents."""
        await self.pause_until(lambda: bool(self.ledger.opened), others)
        await self.poll("issues", "--force")
        await self.pause_until(lambda: len(self.ledger.tasks) >= len(self.crew.names), others)
        self.began = time.monotonic()

    async def pause_until(self, look: Callable[[], bool], others: list[asyncio.Task[None]]) -> None:
        while not look():
            if self.elapsed > WARM_UP_SECONDS:
                raise AssertionError(f"{len(self.ledger.tasks)} tasks given before the first fault")
            await self.pause(self.elapsed + 0.2, others)

    def planned_end(self, planned: Planned) -> float:
        return float(planned.at + planned.facts.get("seconds", 0.0))

    async def recovery(self, others: list[asyncio.Task[None]]) -> None:
        ended, deadline = time.time(), self.elapsed + RECOVERY_SECONDS
        while not self.has_given_since(ended) and self.elapsed < deadline:
            await self.pause(self.elapsed + 0.2, others)

    def has_given_since(self, when: float) -> bool:
        return max(self.ledger.tasks.values(), default=0.0) > when

    async def settle(self) -> None:
        """Some real minutes with sweeps, and then the verdict."""
        self.ledger.scene = "quiet"
        ended_at, begun = now(), time.monotonic()
        self.say(f"[{self.elapsed:6.0f} s] no more faults; all has to be well within {QUIET_SECONDS:.0f} s")
        await self.wait_until(self.site.is_up, 60, "the web answers again")
        while True:
            for arguments in SWEEPS:
                await self.poll(*arguments)
            left = await asyncio.to_thread(self.left_behind)
            if not left or time.monotonic() - begun > QUIET_SECONDS:
                break
            await asyncio.sleep(SWEEP_SECONDS)
        self.outcome.quiet_seconds = time.monotonic() - begun
        verdict = await asyncio.to_thread(judge, self.ledger, self.site.evidence)
        for text in [*left, *verdict.broken]:
            self.note_broken(text)
        await self.wait_for_the_cluster(ended_at, CLOCK_SECONDS)
        await asyncio.to_thread(self.take_figures)
        self.figures.unreported = verdict.unreported
        await asyncio.to_thread(self.end_the_broker)

    def left_behind(self) -> list[str]:
        """Every agent has gone: nobody has anything any more."""
        rows = [row for row in assignments(self.site.records) if row.state in LIVE]
        return [
            *(f"assignment {row.pk} of {row.agent} is still {row.state}" for row in rows),
            *stray_labels(self.site.records, self.site.sandbox),
        ]

    def take_figures(self) -> None:
        figures, ledger = self.figures, self.ledger
        rows = assignments(self.site.records)
        begin, end = figures.began_at, figures.ended_at
        work = times_with_work(ledger.opened, rows, begin, end)
        figures.seconds_with_work = sum(until - since for since, until in work)
        figures.idle = idle_stretches(self.crew.names, holds(ledger.sightings), work, begin, end)
        figures.recoveries = recoveries(ledger.fault_runs, ledger.tasks.values())
        figures.outlasting = sum(
            seen.is_answer and seen.call == REQUEST and seen.seconds > seen.timeout + OUTLASTING_SECONDS
            for seen in ledger.sightings
        )
        records = self.site.records
        self.outcome.counts = {
            "assignments": Counter(row.state for row in rows),
            "issues opened": len(ledger.opened),
            "posts": len(self.site.sandbox.state("mastodon")["statuses"]),
            "items": dict(records.rows("SELECT status, count(*) FROM items GROUP BY status")),
        }

    def show_progress(self) -> None:
        last = max(self.ledger.tasks.values(), default=time.time())
        self.say(
            f"[{self.elapsed:6.0f} s] tasks {len(self.ledger.tasks)} given, the last {time.time() - last:.1f} s ago;"
            f" {len(self.ledger.endings)} endings confirmed; faults {self.ledger.faults.total()}"
        )
