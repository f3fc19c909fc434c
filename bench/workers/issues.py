"""Fill an installation with issues and agents; build and refresh what Redis holds of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from bench.github import issue_json
from bench.json_lines import Command
from bench.rows import Values, insert_rows
from tasks.github.rows import read_issue
from tasks.models import Agent, Assignment, Issue, Repository
from tasks.offers.projector import rebuild, write_projection
from tasks.services.agents import create_agent
from tasks.services.repositories import configured_repository
from tasks.services.sync import sync_repository

# In the past and a second apart: the order inside a bucket is by time.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def repository() -> Repository:
    found = configured_repository()
    if not found.default_branch:
        Repository.objects.filter(pk=found.pk).update(default_branch="main")
        found.default_branch = "main"
    return found


def make_issues(numbers: Iterable[int], labels: Sequence[str]) -> Iterator[Issue]:
    owner = repository()
    for number in numbers:
        stamp = (BEGINNING + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield read_issue(owner, issue_json(number, list(labels), stamp))


def fill_issues(first: int, count: int, labels: list[str]) -> int:
    """Open issues in the database alone; ``build`` brings them to Redis."""
    insert_rows(Issue, map(values_of, make_issues(range(first, first + count), labels)))
    return count


def values_of(issue: Issue) -> Values:
    return {name: value for name, value in vars(issue).items() if name not in ("_state", "id")}


def build() -> dict[str, Any]:
    """Rebuild everything that Redis holds of the issues."""
    started = time.perf_counter()
    offered = rebuild(repository(), timezone.now())
    return {"offered": offered, "seconds": time.perf_counter() - started}


def fill_agents(prefix: str, count: int, minutes_apart: float) -> int:
    """Agents that came one after the other, the last one now."""
    now = timezone.now()

    def rows() -> Iterator[Values]:
        for position in range(count):
            at = now - timedelta(minutes=minutes_apart * position)
            yield {"name": f"{prefix}{position:05}", "roles": [], "created_at": at, "changed_at": at}

    insert_rows(Agent, rows())
    return count


def make_tokens(prefix: str, count: int) -> list[tuple[str, str]]:
    """New agents: their names and tokens."""
    made = [create_agent(f"{prefix}{n:03}", [], timezone.now()) for n in range(count)]
    return [(agent.name, token) for agent, token in made]


def replace_issues(gone: list[int], first: int, count: int, labels: list[str]) -> int:
    """Close some issues and open others, in the database and in Redis. Returns how many came on offer."""
    owner = repository()
    for start in range(0, len(gone), 500):
        Issue.objects.filter(repository=owner, number__in=gone[start : start + 500]).update(is_open=False)
    numbers = range(first, first + count)
    insert_rows(Issue, map(values_of, make_issues(numbers, labels)))
    return write_projection(owner, [*gone, *numbers], timezone.now())


def sync(force_full: bool) -> dict[str, Any]:
    """Refresh as the poller does."""
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
