"""The simulation against plain arithmetic, and the command that runs it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from bench.simulation import (
    DEVELOPMENT,
    END_DEVELOPMENT,
    REVIEW,
    BadScenario,
    Budget,
    Cost,
    Limit,
    Scenario,
    binding_limit,
    ceilings,
    check,
    simulate,
)

PLAIN = Scenario(
    agents=10,
    backlog=100,
    arrivals_per_hour=0,
    hours=8,
    task_minutes=60,
    task_spread=0,
    review_share=0,
    assign_seconds=0,
    writes_per_minute=1_000_000,
    requests_per_hour=1_000_000,
)


def test_the_same_scenario_gives_the_same_forecast() -> None:
    assert simulate(Scenario()) == simulate(Scenario())
    assert simulate(Scenario()) != simulate(Scenario(seed=2))


def test_busy_agents_agree_with_arithmetic() -> None:
    found = simulate(PLAIN)
    assert (found.completed, found.left_over, found.tasks_per_hour) == (80, 10, 10.0)
    assert (found.busy_share, found.agent_wait.longest) == (1.0, 0.0)
    # Ten at a time, an hour each: the last ten to begin waited eight hours.
    assert found.issue_wait.longest == 8 * 3600
    assert found.binding is Limit.AGENTS


def test_the_forecast_ends_when_the_work_is_done() -> None:
    found = simulate(replace(PLAIN, backlog=25))
    assert (found.completed, found.elapsed_seconds, found.left_over) == (25, 3 * 3600.0, 0)
    assert found.writes == 25 * DEVELOPMENT.writes
    assert found.requests - found.poll_requests == 25 * DEVELOPMENT.requests
    # The first listing, and after each round of ten one page of changes; each time the pull requests, too.
    assert found.poll_requests == 4 * 2


def test_completed_tasks_come_back_as_reviews() -> None:
    found = simulate(replace(PLAIN, backlog=20, review_share=1, review_minutes=30, review_delay_minutes=5))
    assert (found.completed, found.reviews) == (40, 20)
    assert found.writes == 20 * (DEVELOPMENT.writes + REVIEW.writes)


def test_an_issue_waits_for_the_poll_without_webhooks() -> None:
    quiet = replace(PLAIN, agents=1000, backlog=0, arrivals_per_hour=60, task_minutes=1, poll_seconds=600)
    told, polled = simulate(quiet), simulate(replace(quiet, has_webhooks=False))
    assert told.issue_wait.longest == 0
    assert 0 < polled.issue_wait.p50 < polled.issue_wait.longest <= 600
    # The mean of a uniform wait; a thousand arrivals bring it near.
    assert polled.issue_wait.mean == pytest.approx(300, rel=0.2)


def test_githubs_writes_a_minute_delay_a_large_fleet() -> None:
    crowd = replace(PLAIN, agents=200, backlog=200, task_minutes=600, hours=1, writes_per_minute=80)
    found = simulate(crowd)
    # Forty assignments a minute of two writes each: the last forty come after four minutes.
    assert found.peak_writes_a_minute == 80
    assert found.agent_wait.longest == 240


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"backlog": 1}, Limit.WORK),
        ({"agents": 10}, Limit.AGENTS),
        ({"agents": 10_000, "backlog": 100_000, "writes_per_minute": 80}, Limit.WRITES),
        (
            {"agents": 10_000, "backlog": 100_000, "writes_per_minute": 80, "requests_per_hour": 5000},
            Limit.REQUESTS,
        ),
    ],
)
def test_the_binding_limit(changes: dict[str, Any], limit: Limit) -> None:
    assert binding_limit(replace(PLAIN, **changes)) is limit


def test_ceilings_by_githubs_limits() -> None:
    """A token's 80 writes a minute are 960 development tasks an hour; its 5,000 requests are fewer."""
    found = ceilings(replace(PLAIN, writes_per_minute=80, requests_per_hour=5000, poll_seconds=3600))
    assert found[Limit.WRITES] == 960
    assert found[Limit.REQUESTS] == pytest.approx(4998 / 6)
    doubled = ceilings(replace(PLAIN, writes_per_minute=80, requests_per_hour=5000, tokens=2))
    assert doubled[Limit.WRITES] == 1920


def test_the_budget_is_never_exceeded() -> None:
    budget = Budget(writes_per_minute=10, requests_per_hour=100)
    times: list[float] = []
    for number in range(60):
        at = budget.take(Cost(3, 3), number * 0.5)
        times += [at] * 3
    for at in times:
        assert sum(at <= other < at + 60 for other in times) <= 10
    assert max(budget.by_hour.values()) <= 100
    assert times == sorted(times)


def test_a_cost_above_the_limit_does_not_block_for_ever() -> None:
    budget = Budget(writes_per_minute=2, requests_per_hour=2)
    assert budget.take(END_DEVELOPMENT, 5.0) == 5.0
    assert budget.take(END_DEVELOPMENT, 5.0) == 3600.0


def test_rounding_does_not_keep_the_budget_in_a_loop() -> None:
    """0.1 + 60 - 60 is less than 0.1 in floating point."""
    budget = Budget(writes_per_minute=2, requests_per_hour=1000)
    found = [budget.take(Cost(1, 1), 0.1 * number) for number in range(20)]
    assert found == sorted(found)
    assert found[-1] > 9 * 60


@pytest.mark.parametrize(
    "changes",
    [
        {"agents": 0},
        {"hours": 0},
        {"task_minutes": -1},
        {"task_minutes": math.nan},
        {"review_share": 1.1},
        {"backlog": -1},
        {"tokens": 0},
        {"arrivals_per_hour": math.inf},
        {"hours": 700, "arrivals_per_hour": 900_000},
    ],
)
def test_impossible_scenarios_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadScenario, match="must be"):
        check(replace(Scenario(), **changes))


# The command


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("simulate", *arguments, stdout=out)
    return out.getvalue()


def test_the_table_in_both_languages() -> None:
    english, japanese = run("--language", "en"), run()
    assert "The binding limit: the work: there is no more to do." in english
    assert "効いている上限" in japanese
    assert english.count("\n") == japanese.count("\n")
    assert not any(words in japanese for words in ("tasks", "agents", "requests"))


def test_json_output() -> None:
    document = json.loads(run("--json", "--agents", "7", "--no-webhooks"))
    assert (document["scenario"]["agents"], document["scenario"]["has_webhooks"]) == (7, False)
    assert document["forecast"]["binding"] in {limit.value for limit in Limit}
    assert set(document["forecast"]["ceilings"]) == {limit.value for limit in Limit}


def test_the_command_refuses_an_impossible_scenario_with_a_sentence() -> None:
    with pytest.raises(CommandError, match="--review-share must be from 0 to 1"):
        run("--review-share", "2")
