"""Two web processes and two clusters on PostgreSQL and one Redis, and a fleet of agents that empties a backlog.

What counts is the history that they leave. ``make scale`` runs it with 200 agents and 2,000 issues.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import psutil
import pytest

from tests.scale.fleet import Fleet
from tests.scale.site import Site
from tests.support.broker_process import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.xdist_group("scale")]
AGENTS = int(os.environ.get("SCALE_AGENTS", "30"))
ISSUES = int(os.environ.get("SCALE_ISSUES", "150"))
LIMIT_SECONDS = 1800
SINGLE_FLIGHT = ("issues", "zombies", "metrics")
QUEUED_ROUNDS = 3
TIMES = 8


def connections(pid: int, port: int) -> int:
    found = psutil.Process(pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in found)


def all_wait(site: Site) -> bool:
    """Every agent has a connection open. Nothing is on offer yet, so it waits there."""
    open_now = 0
    for server in site.servers:
        assert server.process is not None
        open_now += connections(server.process.pid, server.port)
    return open_now >= AGENTS


async def run_fleet(site: Site, fleet: Fleet) -> list[int]:
    running = asyncio.create_task(fleet.run(ISSUES, LIMIT_SECONDS))
    await asyncio.to_thread(wait_for, lambda: all_wait(site) or running.done(), "the agents wait")
    numbers = await asyncio.to_thread(site.open_issues, ISSUES)
    # The clusters find the issues and wake the agents; so many runs at once meet each other's locks.
    for share in range(QUEUED_ROUNDS):
        while not running.done() and len(fleet.numbers) < ISSUES * share // QUEUED_ROUNDS:
            await asyncio.sleep(0.2)
        await asyncio.to_thread(site.queue_pollers, TIMES, *SINGLE_FLIGHT)
    await running
    return numbers


def test_a_fleet_empties_a_backlog(site: Site) -> None:
    for number in (0, 1):
        site.start_cluster(number)

    async def no_work(number: int) -> None:
        return None

    fleet = Fleet([server.url for server in site.servers], AGENTS, no_work)
    site.sandbox.clear_calls()
    numbers = asyncio.run(run_fleet(site, fleet))
    print(dict(fleet.statuses), dict(fleet.served_by), flush=True)

    check_agents(site, fleet, numbers)
    aborted = check_assignments(site, numbers)
    check_events(site, numbers)
    check_github(site, numbers, aborted)
    check_pollers(site)


def check_agents(site: Site, fleet: Fleet, numbers: list[int]) -> None:
    """Every agent was woken, both servers served, each issue was completed once as the agents saw it."""
    assert len(fleet.served) == AGENTS
    assert all(fleet.served_by[server.url] for server in site.servers)
    assert fleet.numbers == Counter(numbers)


def check_assignments(site: Site, numbers: list[int]) -> set[int]:
    """None lost, none twice; nobody had two at a time. The numbers whose first try GitHub refused."""
    rows = site.query(
        "SELECT a.id, a.number, a.state, a.created_at, a.ended_at, g.name FROM tasks_assignment a"
        " JOIN tasks_agent g ON g.id = a.agent_id ORDER BY a.id"
    )
    assert Counter(row["number"] for row in rows if row["state"] == "completed") == Counter(numbers)
    # A fleet stopped in the middle of its last waits may leave nothing else behind but tries that were undone.
    assert {row["state"] for row in rows} <= {"completed", "aborted"}
    assert not any(overlaps(of_one) for of_one in grouped(rows, "number").values())
    assert not any(overlaps(of_one) for of_one in grouped(rows, "name").values())
    return {row["number"] for row in rows if row["state"] == "aborted"}


def grouped(rows: list[dict[str, Any]], column: str) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row[column]].append(row)
    return found


def overlaps(rows: list[dict[str, Any]], begin: str = "created_at", end: str = "ended_at") -> bool:
    ordered = sorted(rows, key=lambda row: row[begin])
    return any(before[end] is None or before[end] > after[begin] for before, after in pairwise(ordered))


def check_events(site: Site, numbers: list[int]) -> None:
    events = site.query("SELECT number, what FROM tasks_event WHERE what IN ('assigned', 'completed')")
    found = Counter((row["number"], row["what"]) for row in events)
    assert found == Counter((number, what) for number in numbers for what in ("assigned", "completed"))


def check_github(site: Site, numbers: list[int], aborted: set[int]) -> None:
    """One branch an issue, labels put on and taken off once, and in the end the labels that people expect."""
    repository = site.sandbox.state("github")["repositories"][0]
    assert {f"feature/issue-{number}" for number in numbers} <= set(repository["branches"])
    labels = {issue["number"]: set(issue["labels"]) for issue in repository["issues"]}
    assert [labels[number] for number in numbers] == [{"p1", "backendcoder", "needs-review"}] * len(numbers)
    calls: Counter[tuple[str, int]] = Counter()
    for call in site.sandbox.calls("github", limit=500_000):
        if match := re.search(r"/issues/(\d+)/labels(/[^/]+)?$", call["path"]):
            calls[call["method"], int(match[1])] += 1
    # On: in-progress with the agent's id, later needs-review. Off: the first two.
    found = Counter((calls["POST", number], calls["DELETE", number]) for number in set(numbers) - aborted)
    assert set(found) == {(2, 2)}, found


def check_pollers(site: Site) -> None:
    """Runs of one poller never overlap, although both clusters were asked for many at once."""
    rows = site.query("SELECT name, started_at, finished_at, outcome, error, by FROM broker_pollerrun")
    for name in SINGLE_FLIGHT:
        runs = [row for row in rows if row["name"] == name]
        assert runs
        assert not overlaps(runs, "started_at", "finished_at"), name
        assert {row["outcome"] for row in runs} <= {"done", "running"}, runs
    waiting = site.query("SELECT count(*) AS tasks FROM django_q_ormq")[0]["tasks"]
    asked = QUEUED_ROUNDS * TIMES * len(SINGLE_FLIGHT)
    ran = len([row for row in rows if row["by"] == "test"])
    assert asked - waiting - ran > 0, "no two runs ever met: this proves nothing"
    assert site.has_worked(0)
    assert site.has_worked(1)
