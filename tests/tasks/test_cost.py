"""What a request costs, counted, with few issues and with many. Counts, never times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from tasks.agents_api.agent_cache import agent_cache
from tasks.models import Agent, Issue
from tasks.offers.projector import rebuild
from tests.support.asgi_client import statements_during
from tests.tasks.world import BODY, World

pytestmark = pytest.mark.database


def fill(world: World, number: int, *labels: str) -> None:
    """Open issues that only the database knows of; the index is built from there."""
    now = timezone.now()
    Issue.objects.bulk_create(
        Issue(
            repository=world.repository,
            number=10_000 + n,
            title=f"issue {n}",
            body=BODY,
            labels=list(labels),
            opened_at=now,
            updated_at=now,
            raw={"number": 10_000 + n, "labels": [{"name": label} for label in labels]},
            priority=0,
        )
        for n in range(number)
    )
    rebuild(world.repository, now)


def statements_of(settings: LazySettings, call: Callable[[], object]) -> list[str]:
    """The first words of what one successful call asks the database; transactions apart."""
    found, statements = statements_during(settings, call)
    assert found
    words = [statement.split()[0] for statement in statements]
    return [word for word in words if word in {"SELECT", "INSERT", "UPDATE", "DELETE"}]


def redis_cost(world: World, call: Any) -> tuple[int, dict[str, int]]:
    """Round trips, and commands by name, of one call on warm caches."""
    call()
    return redis_cost_once(world, call)


def redis_cost_once(world: World, call: Any) -> tuple[int, dict[str, int]]:

    def calls() -> dict[str, int]:
        stats: dict[str, dict[str, int]] = world.store.info("commandstats")
        return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}

    before, reads = calls(), int(world.store.info("stats")["total_reads_processed"])
    call()
    # Two readings of ours lie in between: the second "commandstats" and this one.
    trips = int(world.store.info("stats")["total_reads_processed"]) - reads - 1
    after = calls()
    spent = {
        name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)
    }
    return trips, {name: count for name, count in spent.items() if name not in {"info"}}


def test_an_empty_request_is_one_round_trip_whatever_the_number_of_issues(world: World) -> None:
    costs = []
    for number in (10, 1000):
        Issue.objects.all().delete()
        fill(world, number, "P0", "UIUX")
        costs.append(redis_cost(world, lambda: world.ask(roles=["BACKENDCODER"])))
    assert costs[0] == costs[1]
    trips, commands = costs[0]
    assert trips == 1, commands


def test_an_empty_request_asks_the_database_nothing(world: World, settings: LazySettings) -> None:
    fill(world, 10, "P0", "UIUX")
    world.ask(roles=["BACKENDCODER"])
    answer, statements = statements_during(settings, lambda: world.ask(roles=["BACKENDCODER"]))
    assert answer.status_code == 204
    assert statements == []


@pytest.mark.parametrize("number", [5, 500])
def test_an_assignment_costs_the_same_with_more_issues(
    world: World, settings: LazySettings, number: int
) -> None:
    fill(world, number, "P1", "UIUX")
    first, second, *others = (world.open_issue("P0", "BACKENDCODER") for _ in range(5))
    world.sync()
    assert world.given("agent-1")["issue_id"] == first
    # The issue; for an agent never seen before its own row; the row; the row goes live; the event; then what the
    # projector reads: the issue and its attempts.
    assert statements_of(settings, lambda: world.given("agent-2")["issue_id"] == second) == [
        "SELECT",
        "SELECT",
        "INSERT",
        "INSERT",
        "UPDATE",
        "INSERT",
        "SELECT",
        "SELECT",
    ]
    # Every few seconds one of them also reads what all share: settings, and GitHub's budget.
    costs = [redis_cost_once(world, lambda n=n: world.given(f"agent-{n}")["issue_id"] == n) for n in others]
    assert min(trips for trips, _commands in costs) <= 3, costs


def test_a_known_agent_is_assigned_with_six_queries(world: World, settings: LazySettings) -> None:
    first, second = (world.open_issue("P0", "BACKENDCODER") for _ in range(2))
    world.sync()
    Agent.objects.create(name="agent-2")
    assert world.given("agent-1")["issue_id"] == first
    agent_cache.clear()
    agent_cache.refresh()
    assert statements_of(settings, lambda: world.given("agent-2")["issue_id"] == second) == [
        "SELECT",
        "INSERT",
        "UPDATE",
        "INSERT",
        "SELECT",
        "SELECT",
    ]
