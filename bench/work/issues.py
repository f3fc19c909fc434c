"""Issues, agents and assignments by the thousand, and the refreshing of their caches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from django.utils import timezone

from bench.github import issue_json
from bench.lines import Command
from bench.work.raw import columns_of, insert_statement, open_database
from tasks.github.rows import read_issue
from tasks.models import Agent, Assignment, Issue, Repository
from tasks.offers.index import rebuild, refresh_issues
from tasks.services.agents import create_agent
from tasks.services.repositories import configured_repository
from tasks.services.sync import sync_repository

BATCH = 2000
# Far in the past, and in steps: the order inside a bucket is by time.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
SAMPLE = 987_654  # a number that stands nowhere else in an issue


def repository() -> Repository:
    found = configured_repository()
    if not found.default_branch:
        Repository.objects.filter(pk=found.pk).update(default_branch="main")
        found.default_branch = "main"
    return found


def make_issues(numbers: Iterable[int], labels: Sequence[str]) -> Iterable[Issue]:
    owner = repository()
    for number in numbers:
        stamp = (BEGINNING + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield read_issue(owner, issue_json(number, list(labels), stamp))


def save_in_batches(model: Any, rows: Iterable[Any]) -> int:
    rest, count = iter(rows), 0
    while batch := list(islice(rest, BATCH)):
        model.objects.bulk_create(batch)
        count += len(batch)
    return count


def fill_issues(first: int, count: int, labels: list[str]) -> int:
    """Open issues that only the database knows of; ``build`` tells the cache. Past Django: there are many."""
    (sample,) = make_issues([SAMPLE], labels)
    values = columns_of(sample)
    statement, names = insert_statement(sample, ["id"])

    def rows() -> Iterable[list[Any]]:
        for number in range(first, first + count):
            changed = {
                name: value.replace(str(SAMPLE), str(number)) if isinstance(value, str) else value
                for name, value in values.items()
            }
            changed["number"] = number
            yield [changed[name] for name in names]

    with closing(open_database()) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany(statement, rows())
        raw.execute("COMMIT")
    return count


def build() -> dict[str, Any]:
    """The whole index and cache anew."""
    started = time.perf_counter()
    offered = rebuild(repository(), timezone.now())
    return {"offered": offered, "seconds": time.perf_counter() - started}


def fill_agents(prefix: str, count: int, minutes_apart: float) -> int:
    """Agents that came one after the other, the last one now."""
    made = save_in_batches(Agent, (Agent(name=f"{prefix}{n:05}", roles=[]) for n in range(count)))
    if minutes_apart:
        now = timezone.now()
        rows = list(Agent.objects.filter(name__startswith=prefix))
        for position, agent in enumerate(rows):
            agent.changed_at = now - timedelta(minutes=minutes_apart * position)
        # An update in bulk does not touch what a save would set by itself.
        Agent.objects.bulk_update(rows, ["changed_at"], batch_size=300)
    return made


def make_tokens(prefix: str, count: int) -> list[tuple[str, str]]:
    """Agents with tokens: their names and the tokens."""
    made = [create_agent(f"{prefix}{n:03}", [], timezone.now()) for n in range(count)]
    return [(agent.name, token) for agent, token in made]


def replace_issues(gone: list[int], first: int, count: int, labels: list[str]) -> int:
    """Close some and open as many others, cache included: the number of open ones stays what it was.

    Returns how many came on offer.
    """
    owner = repository()
    for start in range(0, len(gone), 500):
        Issue.objects.filter(repository=owner, number__in=gone[start : start + 500]).update(is_open=False)
    numbers = range(first, first + count)
    save_in_batches(Issue, make_issues(numbers, labels))
    return refresh_issues(owner, [*gone, *numbers], timezone.now())


def sync(force_full: bool) -> dict[str, Any]:
    """The poller's own way of refreshing."""
    started = time.perf_counter()
    counts = sync_repository(repository(), timezone.now(), lambda text: None, force_full=force_full)
    return {"seconds": time.perf_counter() - started, "counts": dict(counts)}


def assignment_counts() -> dict[str, int]:
    rows = Assignment.objects.values_list("state", "number")
    states: dict[str, int] = {}
    for state, _ in rows:
        states[state] = states.get(state, 0) + 1
    live = [number for state, number in rows if state in ("claiming", "live")]
    return {**states, "issues_assigned_twice": len(live) - len(set(live))}


COMMANDS: dict[str, Command] = {
    "fill_issues": fill_issues,
    "build": build,
    "fill_agents": fill_agents,
    "make_tokens": make_tokens,
    "replace_issues": replace_issues,
    "sync": sync,
    "assignment_counts": assignment_counts,
}
