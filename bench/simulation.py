"""What a fleet of agents can expect: waiting times, throughput, and requests to GitHub. ``manage.py simulate`` runs it.

A seeded simulation, event by event, of agents, issues and GitHub's limits. Beside it stand ceilings by plain
arithmetic; the lowest of them is the binding limit. Nothing is read or written. Time is a number of seconds that
begins at 0.

Simplified: every agent fits every issue, all tokens share one budget, the broker's own computing is part of
``assign_seconds``, and an agent that GitHub's limit delays gets its task as soon as the limit allows (in truth it
is answered 502 and asks again).
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

MINUTE, HOUR = 60.0, 3600.0
PAGE = 100  # issues in one answer of a listing


@dataclass(frozen=True)
class Cost:
    """Requests to GitHub; ``writes`` of them change something."""

    requests: int
    writes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.requests + other.requests, self.writes + other.writes)


# Development: base, branch, labels; the end: one label on, two off. Review: comments, labels; at its end the pull
# request and its comments are looked at once more, to know what was reviewed.
ASSIGN_DEVELOPMENT = Cost(requests=3, writes=2)
ASSIGN_REVIEW = Cost(requests=2, writes=1)
END_DEVELOPMENT = Cost(requests=3, writes=3)
END_REVIEW = Cost(requests=5, writes=3)
DEVELOPMENT, REVIEW = ASSIGN_DEVELOPMENT + END_DEVELOPMENT, ASSIGN_REVIEW + END_REVIEW


@dataclass(frozen=True)
class Scenario:
    agents: int = 20
    backlog: int = 100
    arrivals_per_hour: float = 10.0
    hours: float = 8.0
    task_minutes: float = 30.0
    task_spread: float = 0.5  # standard deviation as a part of the mean
    review_share: float = 0.5  # of the development tasks come back as a review
    review_minutes: float = 10.0
    review_delay_minutes: float = 5.0
    poll_seconds: float = 300.0
    has_webhooks: bool = True
    tokens: int = 1
    writes_per_minute: int = 80  # a token
    requests_per_hour: int = 5000  # a token
    assign_seconds: float = 1.0  # from the claim to the answer: GitHub's own time, mostly
    seed: int = 1


class BadScenario(ValueError):
    """A sentence that names the figure."""


BOUNDS: dict[str, tuple[float, float]] = {
    "agents": (1, 100_000),
    "backlog": (0, 1_000_000),
    "arrivals_per_hour": (0, 1_000_000),
    "hours": (0.01, 24 * 31),
    "task_minutes": (0.001, 100_000),
    "task_spread": (0, 5),
    "review_share": (0, 1),
    "review_minutes": (0.001, 100_000),
    "review_delay_minutes": (0, 1440),
    "poll_seconds": (10, 86_400),
    "tokens": (1, 1000),
    "writes_per_minute": (1, 1_000_000),
    "requests_per_hour": (1, 100_000_000),
    "assign_seconds": (0, 600),
}
MAX_TASKS = 2_000_000  # a longer list would keep the machine busy for minutes


def check(scenario: Scenario) -> None:
    """Raise :class:`BadScenario` for an impossible scenario, or one that would take too long."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(scenario, name)
        if not (math.isfinite(value) and low <= value <= high):
            raise BadScenario(f"{name} must be from {low:g} to {high:g}.")
    if scenario.backlog + scenario.arrivals_per_hour * scenario.hours > MAX_TASKS:
        raise BadScenario(f"backlog and arrivals together must be at most {MAX_TASKS} issues.")


class Limit(StrEnum):
    """What limits the throughput of the fleet."""

    WORK = "work"
    AGENTS = "agents"
    WRITES = "writes"
    REQUESTS = "requests"


def ceilings(scenario: Scenario) -> dict[Limit, float]:
    """Tasks an hour, reviews included, that each limit alone would allow."""
    share = scenario.review_share
    per_issue = 1 + share
    minutes = (scenario.task_minutes + share * scenario.review_minutes) / per_issue
    cycle = minutes * MINUTE + scenario.assign_seconds
    writes = (DEVELOPMENT.writes + share * REVIEW.writes) / per_issue
    requests = (DEVELOPMENT.requests + share * REVIEW.requests) / per_issue
    polls = 2 * HOUR / scenario.poll_seconds
    return {
        Limit.WORK: (scenario.arrivals_per_hour + scenario.backlog / scenario.hours) * per_issue,
        Limit.AGENTS: scenario.agents * HOUR / cycle,
        Limit.WRITES: scenario.tokens * scenario.writes_per_minute * 60 / writes,
        Limit.REQUESTS: max(0.0, scenario.tokens * scenario.requests_per_hour - polls) / requests,
    }


def binding_limit(scenario: Scenario) -> Limit:
    found = ceilings(scenario)
    return min(found, key=lambda limit: found[limit])


class Budget:
    """GitHub's two limits: writes in any sixty seconds, requests in each hour. First come, first served."""

    def __init__(self, writes_per_minute: int, requests_per_hour: int) -> None:
        self.writes_per_minute, self.requests_per_hour = writes_per_minute, requests_per_hour
        self.recent: deque[float] = deque()  # times of the writes of the last minute
        self.by_minute: dict[int, int] = {}
        self.by_hour: dict[int, int] = {}
        self.poll_requests = 0
        self.free_at = 0.0

    def take(self, cost: Cost, now: float) -> float:
        """Spend as soon as the limits allow; when that is."""
        at = max(now, self.free_at)
        while True:
            hour = int(at // HOUR)
            if self.by_hour.get(hour, 0) + cost.requests > self.requests_per_hour and self.by_hour.get(hour):
                at = (hour + 1) * HOUR
                continue
            while self.recent and self.recent[0] <= at - MINUTE:
                self.recent.popleft()
            if self.recent and len(self.recent) + cost.writes > self.writes_per_minute:
                # Removed here: by rounding, `at` may fall just short of the minute, and the loop would not end.
                at = max(at, self.recent.popleft() + MINUTE)
                continue
            break
        self.free_at = at
        self.recent.extend([at] * cost.writes)
        self.by_minute[int(at // MINUTE)] = self.by_minute.get(int(at // MINUTE), 0) + cost.writes
        self._count(cost.requests, at)
        return at

    def poll(self, requests: int, at: float) -> None:
        """Requests of a poller, which nobody waits for."""
        self.poll_requests += requests
        self._count(requests, at)

    def _count(self, requests: int, at: float) -> None:
        hour = int(at // HOUR)
        self.by_hour[hour] = self.by_hour.get(hour, 0) + requests


@dataclass(frozen=True)
class Waits:
    """Seconds."""

    mean: float
    p50: float
    p95: float
    longest: float


def waits_of(values: Sequence[float]) -> Waits:
    if not values:
        return Waits(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)

    def share(part: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]

    return Waits(sum(ordered) / len(ordered), share(0.5), share(0.95), ordered[-1])


@dataclass(frozen=True)
class Forecast:
    completed: int  # development tasks and reviews
    reviews: int
    tasks_per_hour: float
    elapsed_seconds: float  # until the work was done, or the time was up
    left_over: int  # issues and reviews nobody had begun by then
    busy_share: float  # of the agents' time
    agent_wait: Waits  # from asking to being given a task
    issue_wait: Waits  # from being opened to being given
    writes: int
    requests: int
    poll_requests: int  # of these; the rest belongs to tasks
    peak_writes_a_minute: int
    peak_requests_an_hour: int
    ceilings: dict[str, float]  # tasks an hour
    binding: Limit

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(order=True)
class Event:
    at: float
    order: int
    what: str = field(compare=False)
    job: Job | None = field(compare=False, default=None)
    agent: int = field(compare=False, default=-1)


@dataclass
class Job:
    opened_at: float
    is_review: bool = False


def simulate(scenario: Scenario) -> Forecast:
    """The same scenario gives the same forecast."""
    check(scenario)
    return _Run(scenario).play()


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)  # noqa: S311 - a simulation, no secret
        self.end_at = scenario.hours * HOUR
        self.budget = Budget(
            scenario.tokens * scenario.writes_per_minute, scenario.tokens * scenario.requests_per_hour
        )
        self.heap: list[Event] = []
        self.orders = count()
        self.jobs: deque[Job] = deque()
        self.idle: deque[tuple[float, int]] = deque((0.0, agent) for agent in range(scenario.agents))
        self.agent_waits: list[float] = []
        self.issue_waits: list[float] = []
        self.busy_seconds = 0.0
        self.completed = self.reviews = self.changes = self.at_work = 0
        self.last_at = 0.0

    def push(self, at: float, what: str, job: Job | None = None, agent: int = -1) -> None:
        if at <= self.end_at:
            heapq.heappush(self.heap, Event(at, next(self.orders), what, job, agent))

    def play(self) -> Forecast:
        scenario = self.scenario
        self.jobs.extend(Job(0.0) for _ in range(scenario.backlog))
        self.budget.poll(math.ceil(scenario.backlog / PAGE) + 1, 0.0)
        at = 0.0
        while scenario.arrivals_per_hour and (at := at + self.gap()) <= self.end_at:
            self.push(self.known_at(at), "known", Job(at))
        self.push(scenario.poll_seconds, "poll")
        self.hand_out(0.0)
        handlers = {"known": self.on_known, "poll": self.on_poll, "end": self.on_end}
        while self.heap:
            event = heapq.heappop(self.heap)
            handlers[event.what](event)
        return self.forecast()

    def gap(self) -> float:
        return self.random.expovariate(self.scenario.arrivals_per_hour / HOUR)

    def known_at(self, at: float) -> float:
        """At once by a webhook, else with the next poll."""
        if self.scenario.has_webhooks:
            return at
        return math.ceil(at / self.scenario.poll_seconds) * self.scenario.poll_seconds

    def on_known(self, event: Event) -> None:
        assert event.job is not None
        self.jobs.append(event.job)
        self.changes += 1
        self.hand_out(event.at)

    def on_poll(self, event: Event) -> None:
        """An unchanged answer costs nothing; else the changed issues, page by page, and the pull requests."""
        if self.changes:
            self.budget.poll(math.ceil(self.changes / PAGE) + 1, event.at)
            self.changes = 0
        if self.heap or self.jobs or self.at_work:
            self.push(event.at + self.scenario.poll_seconds, "poll")

    def on_end(self, event: Event) -> None:
        job = event.job
        assert job is not None
        self.at_work -= 1
        self.completed += 1
        self.reviews += job.is_review
        self.changes += 1
        self.last_at = event.at
        # The end is recorded at once. Its labels follow as the limits allow, and nobody waits for them.
        self.budget.take(END_REVIEW if job.is_review else END_DEVELOPMENT, event.at)
        if not job.is_review and self.random.random() < self.scenario.review_share:
            due_at = event.at + self.scenario.review_delay_minutes * MINUTE
            self.push(due_at, "known", Job(due_at, is_review=True))
        self.idle.append((event.at, event.agent))
        self.hand_out(event.at)

    def hand_out(self, now: float) -> None:
        while self.idle and self.jobs:
            job, (asked_at, agent) = self.jobs.popleft(), self.idle.popleft()
            cost = ASSIGN_REVIEW if job.is_review else ASSIGN_DEVELOPMENT
            given_at = self.budget.take(cost, now) + self.scenario.assign_seconds
            seconds = self.length(job)
            if given_at <= self.end_at:
                self.agent_waits.append(given_at - asked_at)
                self.issue_waits.append(given_at - job.opened_at)
                self.busy_seconds += min(seconds, self.end_at - given_at)
                self.at_work += 1
            else:
                self.jobs.append(job)
                return
            self.push(given_at + seconds, "end", job, agent)

    def length(self, job: Job) -> float:
        """Log-normal: never negative, with a long tail, as work is."""
        scenario = self.scenario
        mean = (scenario.review_minutes if job.is_review else scenario.task_minutes) * MINUTE
        if not scenario.task_spread:
            return mean
        sigma = math.sqrt(math.log(1 + scenario.task_spread**2))
        return self.random.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)

    def forecast(self) -> Forecast:
        is_all_done = not self.jobs and not self.at_work and not self.scenario.arrivals_per_hour
        elapsed = self.last_at if is_all_done and self.last_at else self.end_at
        hours = elapsed / HOUR
        # Labels that are written after the end are not counted.
        writes = [number for minute, number in self.budget.by_minute.items() if minute * MINUTE < self.end_at]
        requests = [number for hour, number in self.budget.by_hour.items() if hour * HOUR < self.end_at]
        return Forecast(
            completed=self.completed,
            reviews=self.reviews,
            tasks_per_hour=self.completed / hours,
            elapsed_seconds=elapsed,
            left_over=len(self.jobs),
            busy_share=min(1.0, self.busy_seconds / (self.scenario.agents * elapsed)),
            agent_wait=waits_of(self.agent_waits),
            issue_wait=waits_of(self.issue_waits),
            writes=sum(writes),
            requests=sum(requests),
            poll_requests=self.budget.poll_requests,
            peak_writes_a_minute=max(writes, default=0),
            peak_requests_an_hour=max(requests, default=0),
            ceilings={limit.value: value for limit, value in ceilings(self.scenario).items()},
            binding=binding_limit(self.scenario),
        )
