"""A claim becomes an assignment, alone or beside others, or everything is undone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import LazySettings
from django.db import DatabaseError, OperationalError, connection, connections
from django.utils import timezone

from broker_project.lib.errors import OutsideError
from broker_project.lib.redis import keys as k
from tasks.agents_api.long_poll import WORKERS, Hub
from tasks.github.client import forget_clients
from tasks.lifecycle import TaskType
from tasks.models import Agent, Assignment, Event, Issue
from tasks.offers.index import CLAIM, ClaimRequest, claim_arguments
from tasks.reasons import Reason, ReasonCode
from tasks.services.assignment import AgentBusy, Assigned, Claim, Skipped, assign_claim
from tests.tasks.world import World

DEV = ("P0", "BACKENDCODER")


def claim(world: World, agent: str) -> Claim:
    """What Redis gives an agent, as the server passes it on."""
    request = ClaimRequest(agent, (), token=agent, is_first_check=True)
    found: Any = world.store.eval(CLAIM, *claim_arguments(request, [world.repository], timezone.now()))
    assert found[0] == "task", found
    return Claim(world.repository, int(found[2]), TaskType(json.loads(found[3])["t"]), agent)


def claims(world: World, number: int) -> list[Claim]:
    """So many issues, each claimed by another agent."""
    for _ in range(number):
        world.open_issue(*DEV)
    world.sync()
    world.sandbox.clear_calls()
    return [claim(world, f"agent-{n}") for n in range(1, number + 1)]


def assign_in_threads(made: Sequence[Claim]) -> list[Any]:
    """All at once; an exception stands in the place of its claim's outcome."""

    def assign(one: Claim) -> Any:
        try:
            return assign_claim(one)
        except Exception as error:  # noqa: BLE001 - compared by the test
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(assign, made))


def check_given(world: World, made: Claim, outcome: object) -> None:
    """The row, GitHub and Redis all say so."""
    assert isinstance(outcome, Assigned), outcome
    number = made.number
    assert outcome.answer["issue_id"] == number
    assert world.assignment(outcome.assignment.pk).state == "live"
    assert {"in-progress", made.agent_name} <= world.labels(number)
    assert world.has_branch(f"feature/issue-{number}")
    assert world.status_of(number) == "processing"
    assert world.store.get(world.key(k.AGENT_CURRENT_TASK, agent=made.agent_name)) == str(number)
    assert Event.objects.filter(number=number, what="assigned").count() == 1
    assert not world.store.exists(world.key(k.ISSUE_LOCK, number=number))


def check_back_on_offer(world: World, made: Claim) -> None:
    assert made.number not in world.live()
    assert world.given("agent-99")["issue_id"] == made.number


@contextmanager
def no_event_of(number: int) -> Iterator[None]:
    """A database that refuses the event of one issue."""
    refuse, forget = (
        (
            [
                "CREATE FUNCTION refuse() RETURNS trigger AS 'BEGIN RAISE EXCEPTION ''refused''; END' LANGUAGE plpgsql",
                f"CREATE TRIGGER refuse BEFORE INSERT ON tasks_event FOR EACH ROW WHEN (NEW.number = {number})"
                " EXECUTE FUNCTION refuse()",
            ],
            ["DROP TRIGGER refuse ON tasks_event", "DROP FUNCTION refuse()"],
        )
        if connection.vendor == "postgresql"
        else (
            [
                f"CREATE TRIGGER refuse BEFORE INSERT ON tasks_event WHEN NEW.number = {number}"
                " BEGIN SELECT RAISE(ABORT, 'refused'); END"
            ],
            ["DROP TRIGGER refuse"],
        )
    )
    try:
        with connection.cursor() as cursor:
            for statement in refuse:
                cursor.execute(statement)
        yield
    finally:
        with connection.cursor() as cursor:
            for statement in forget:
                cursor.execute(statement)


# One claim


def test_an_agent_that_has_a_task_gets_no_second_one(world: World) -> None:
    (made,) = claims(world, 1)
    now = timezone.now()
    Assignment.objects.create(
        agent=Agent.objects.create(name="agent-1"),
        repository=world.repository,
        number=4711,
        task_type="development",
        state="live",
        created_at=now,
        last_heartbeat_at=now,
    )
    assert assign_claim(made) == AgentBusy()
    check_back_on_offer(world, made)


def test_an_issue_that_another_agent_has_is_skipped(world: World) -> None:
    (made,) = claims(world, 1)
    now = timezone.now()
    Assignment.objects.create(
        agent=Agent.objects.create(name="another"),
        repository=world.repository,
        number=made.number,
        task_type="development",
        state="live",
        created_at=now,
        last_heartbeat_at=now,
    )
    assert assign_claim(made) == Skipped(Reason.of(ReasonCode.TAKEN))
    assert not world.store.exists(world.key(k.ISSUE_LOCK, number=made.number))


def test_an_issue_that_was_closed_meanwhile_is_skipped(world: World) -> None:
    (made,) = claims(world, 1)
    Issue.objects.filter(number=made.number).update(is_open=False)
    assert assign_claim(made) == Skipped(Reason.of(ReasonCode.GONE))


def test_a_refusal_by_github_is_remembered(world: World) -> None:
    (made,) = claims(world, 1)
    path = f"/issues/{made.number}/labels"
    world.sandbox.fault("github", "status", method="POST", path=path, status=422, body={"message": "no"})
    assert isinstance(assign_claim(made), Skipped)
    assert world.issue(made.number).refused_reason


def test_an_assignment_that_cannot_go_live_is_left_to_the_sweep(world: World) -> None:
    (made,) = claims(world, 1)
    with no_event_of(made.number), pytest.raises(DatabaseError):
        assign_claim(made)
    assert Assignment.objects.get(number=made.number).state == "claiming"


@pytest.mark.parametrize("word", ["INSERT INTO", "UPDATE"])
def test_a_database_that_is_away_gives_the_claim_back(world: World, word: str) -> None:
    (made,) = claims(world, 1)
    asked: list[str] = []

    def away(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(f'{word} "tasks_assignment"'):
            asked.append(sql)
            raise OperationalError("the database is locked")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(away), pytest.raises(OperationalError):
        assign_claim(made)
    assert len(asked) == 1
    assert world.store.exists(world.key(k.ISSUE_LOCK, number=made.number)) == 0
    if word == "INSERT INTO":
        check_back_on_offer(world, made)
    else:  # the row tells the sweep what may be on GitHub
        assert list(Assignment.objects.values_list("state", flat=True)) == ["claiming"]


def test_a_damaged_key_does_not_take_the_task_away(world: World) -> None:
    (made,) = claims(world, 1)
    damaged = world.key(k.ISSUE_METADATA, number=made.number)
    world.store.delete(damaged)
    world.store.set(damaged, "not a hash")
    check_given(world, made, assign_claim(made))
    info = world.key(k.PROCESS_INFO, process=f"issue-{made.number}-agent-1")
    assert world.store.hget(info, "status") == "running"


# Several at once


def test_a_failure_of_one_leaves_the_others_alone(world: World) -> None:
    made = claims(world, 3)
    world.sandbox.fault(
        "github", "status", method="POST", path=f"/issues/{made[1].number}/labels", status=503
    )
    first, second, third = assign_in_threads(made)
    check_given(world, made[0], first)
    assert isinstance(second, OutsideError)
    check_given(world, made[2], third)
    check_back_on_offer(world, made[1])


def test_a_github_app_fetches_its_token_once_for_all(world: World, settings: LazySettings) -> None:
    """One thread renews the token while the others wait for it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    made = claims(world, 4)
    github = replace(settings.BROKER.github, token="", app_id="4001", app_private_key=pem)
    settings.BROKER = replace(settings.BROKER, github=github)
    forget_clients()
    outcomes = assign_in_threads(made)
    forget_clients()
    for one, outcome in zip(made, outcomes, strict=True):
        check_given(world, one, outcome)
    assert sum("access_tokens" in call for call in world.requests()) == 1


# In the server's pool of threads


def in_the_pool(made: Sequence[Claim]) -> list[Any]:
    async def main() -> list[Any]:
        hub = Hub()
        try:
            return await asyncio.gather(*(hub.in_thread(assign_claim, one) for one in made))
        finally:
            await hub.stop()

    return asyncio.run(main())


def test_more_claims_than_threads(world: World) -> None:
    made = claims(world, WORKERS + 9)
    for one, outcome in zip(made, in_the_pool(made), strict=True):
        check_given(world, one, outcome)
    assert len(world.live()) == WORKERS + 9
    assert world.store.scard(world.key(k.ISSUES_PROCESSING)) == WORKERS + 9
    day = timezone.localdate().isoformat()
    assert world.store.hget(world.key(k.STATS_ISSUES_DAILY, date=day), "assigned") == str(WORKERS + 9)


def test_a_slow_answer_of_github_delays_nobody_else(world: World) -> None:
    made = claims(world, 3)
    slow = made[0].number
    world.sandbox.fault("github", "stall", method="POST", path=f"/issues/{slow}/labels", seconds=2.0)

    async def main() -> list[Any]:
        hub = Hub()
        tasks = [asyncio.create_task(hub.in_thread(assign_claim, one)) for one in made]
        await asyncio.wait(tasks[1:])
        assert not tasks[0].done(), "the others had to wait for the slow one"
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await hub.stop()
        return outcomes

    first, second, third = asyncio.run(main())
    assert isinstance(first, OutsideError)
    check_given(world, made[1], second)
    check_given(world, made[2], third)
    check_back_on_offer(world, made[0])


def test_what_has_begun_is_finished_although_the_caller_has_gone(world: World) -> None:
    made = claims(world, WORKERS + 2)  # the last ones still wait for a thread

    async def main() -> None:
        hub = Hub()
        tasks = [asyncio.create_task(hub.in_thread(assign_claim, one)) for one in made]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        await hub.stop()

    asyncio.run(main())
    assert set(Assignment.objects.values_list("state", flat=True)) == {"live"}
    assert len(world.live()) == WORKERS + 2
