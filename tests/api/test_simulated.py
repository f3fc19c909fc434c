"""The simulation against a real run: twenty agents, sixty short issues, a real server and GitHub's stand-in.

What GitHub is asked for must agree to the request. Throughput and waiting depend on the machine, so they are shown
(``-s``), not asserted.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from bench.simulation import DEVELOPMENT, Scenario, simulate
from tests.scale.fleet import Fleet
from tests.support.server import BrokerServer, BrokerWorld

pytestmark = [pytest.mark.slow, pytest.mark.database]
AGENTS, ISSUES, TASK_SECONDS = 20, 60, 1.0


@pytest.fixture
def server(broker_world: BrokerWorld) -> BrokerServer:
    """Sixty issues on offer and nothing else."""
    sandbox = broker_world.sandbox
    state = sandbox.state("github")
    for issue in state["repositories"][0]["issues"]:
        issue |= {"state": "closed", "closed_at": issue["updated_at"]}
    sandbox.load("github", state)
    made = broker_world.start()
    made.query("UPDATE tasks_issue SET is_open = false")
    made.query("UPDATE tasks_pullrequest SET is_open = false")
    made.redis.flushall()
    issues = [
        {"title": f"work {n}", "body": "## 成果物\n- x", "labels": ["P1", "BACKENDCODER"]}
        for n in range(ISSUES)
    ]
    sandbox.control("POST", "github/issues", {"repository": "broker-sandbox/demo", "issues": issues})
    made.poll("issues")
    sandbox.clear_calls()
    return made


def test_twenty_agents_and_sixty_issues(server: BrokerServer) -> None:
    async def work(number: int) -> None:
        await asyncio.sleep(TASK_SECONDS)

    fleet = Fleet([server.url], AGENTS, work)
    began = time.monotonic()
    asyncio.run(fleet.run(ISSUES, 600))
    elapsed = time.monotonic() - began
    calls = server.sandbox.calls("github")
    writes = sum(call["method"] != "GET" for call in calls)

    forecast = simulate(
        Scenario(
            agents=AGENTS,
            backlog=ISSUES,
            arrivals_per_hour=0,
            hours=1,
            task_minutes=TASK_SECONDS / 60,
            task_spread=0,
            review_share=0,
            writes_per_minute=1_000_000,
            requests_per_hour=1_000_000,
            assign_seconds=fleet.mean_wait,
        )
    )
    assert (forecast.completed, sum(fleet.numbers.values())) == (ISSUES, ISSUES)
    assert forecast.writes == writes == ISSUES * DEVELOPMENT.writes
    # No poller ran meanwhile. Tasks that are given at the same moment ask for the base branch once.
    assert forecast.requests - forecast.poll_requests == ISSUES * DEVELOPMENT.requests
    assert writes < len(calls) <= ISSUES * DEVELOPMENT.requests
    predicted = ISSUES / forecast.elapsed_seconds
    print(
        f"tasks a second: predicted {predicted:.2f}, measured {ISSUES / elapsed:.2f},"
        f" ratio {predicted * elapsed / ISSUES:.2f}; mean wait for a task {fleet.mean_wait:.2f} s",
        flush=True,
    )
