"""Several claims become assignments together; whatever befalls one of them leaves the others alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import LazySettings
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from broker_project.lib.errors import OutsideError
from broker_project.lib.redis import keys as k
from broker_project.lib.side_by_side import SideBySide
from tasks.agents_api.agent_cache import Caller, directory
from tasks.agents_api.schemas import RequestTask
from tasks.agents_api.task_request import TaskRequest
from tasks.desk import AT_ONCE, Desk, DeskBroke
from tasks.github.client import forget_clients
from tasks.lifecycle import TaskType
from tasks.models import Agent, Assignment, Event, Issue
from tasks.offers.index import CLAIM
from tasks.prompts import current_template
from tasks.reasons import Reason, ReasonCode
from tasks.services.assignment import (
    AgentBusy,
    Assigned,
    Heads,
    Making,
    Order,
    Outcome,
    Skipped,
    begin,
    finish,
    prepare,
)
from tests.tasks.world import World

DEV = ("P0", "BACKENDCODER")


def claim(world: World, agent: str) -> Order:
    """What Redis gives an agent, as the server would pass it on."""
    request = TaskRequest(Caller(agent, ()), RequestTask(agent_id=agent, timeout=0))
    found: Any = world.store.eval(CLAIM, *request.claim_arguments([world.repository], timezone.now()))
    assert found[0] == "task", found
    return request.order(found, [world.repository])


def claims(world: World, number: int) -> list[Order]:
    """So many issues, each claimed by another agent."""
    for _ in range(number):
        world.open_issue(*DEV)
    world.sync()
    world.sandbox.clear_calls()
    return [claim(world, f"agent-{n}") for n in range(1, number + 1)]


def speak(makings: Sequence[Making], *, each_alone: bool = False) -> None:
    """Their conversations with GitHub, side by side."""
    others = SideBySide()
    shared = Heads()
    left = set(makings)

    def converse(making: Making) -> None:
        prepare(making, Heads() if each_alone else shared)
        left.discard(making)

    try:
        for making in makings:
            others.start(partial(converse, making))
        while left:
            others.serve(lambda: bool(left))
    finally:
        others.close()


def take_steps(orders: Sequence[Order]) -> list[Outcome | Exception | None]:
    makings = [Making(order) for order in orders]
    begin(makings)
    speak([making for making in makings if making.outcome is None])
    finish([making for making in makings if making.outcome is None])
    return [making.outcome for making in makings]


def at_desk(orders: Sequence[Order]) -> list[Outcome | Exception]:
    async def main() -> list[Outcome | Exception]:
        desk = Desk(asyncio.get_running_loop())
        try:
            return await asyncio.gather(*map(desk.assign, orders))
        finally:
            await desk.close()

    return asyncio.run(main())


def check_given(world: World, order: Order, outcome: object) -> None:
    """The row, GitHub and Redis all say so."""
    assert isinstance(outcome, Assigned), outcome
    number = order.claim.number
    assert outcome.answer["issue_id"] == number
    assert world.assignment(outcome.assignment.pk).state == "live"
    assert {"in-progress", order.agent} <= world.labels(number)
    assert world.has_branch(f"feature/issue-{number}")
    assert world.status_of(number) == "processing"
    assert world.store.get(world.key(k.AGENT_CURRENT_TASK, agent=order.agent)) == str(number)
    assert Event.objects.filter(number=number, what="assigned").count() == 1
    assert not world.store.exists(world.key(k.ISSUE_LOCK, number=number))


def check_back_on_offer(world: World, order: Order) -> None:
    number = order.claim.number
    assert number not in world.live()
    assert world.given("agent-99")["issue_id"] == number


def statements(queries: CaptureQueriesContext) -> list[str]:
    words = [query["sql"].split()[0] for query in queries]
    return [word for word in words if word in {"SELECT", "INSERT", "UPDATE", "DELETE"}]


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


# Together


def test_what_begins_together_costs_one_query_of_each_kind(world: World) -> None:
    orders = claims(world, 6)
    Agent.objects.bulk_create(Agent(name=f"agent-{n}") for n in range(1, 7))
    directory.refresh()
    makings = [Making(order) for order in orders]
    with CaptureQueriesContext(connection) as queries:
        begin(makings)
    assert statements(queries) == ["SELECT", "INSERT"]
    speak(makings)
    current_template(TaskType.DEVELOPMENT)  # kept for seconds
    with CaptureQueriesContext(connection) as queries:
        finish(makings)
    assert statements(queries) == ["UPDATE"] * 6 + ["INSERT"]
    for making in makings:
        check_given(world, making.order, making.outcome)
    assert len(world.live()) == 6


def test_the_base_branch_is_asked_for_once(world: World) -> None:
    outcomes = take_steps(claims(world, 5))
    assert all(isinstance(outcome, Assigned) for outcome in outcomes)
    calls = [call for call in world.requests() if "/labels" not in call]
    assert calls.count("GET /github/repos/broker-sandbox/demo/branches/main") == 1
    assert len(calls) == 6


def test_a_base_that_is_not_there_is_told_to_each(world: World) -> None:
    orders = claims(world, 3)
    world.sandbox.fault("github", "status", path="/branches/main$", status=503, times=1)
    outcomes = take_steps(orders)
    assert [isinstance(outcome, OutsideError) for outcome in outcomes] == [True] * 3
    assert list(Assignment.objects.values_list("state", flat=True)) == ["aborted"] * 3
    check_back_on_offer(world, orders[0])


def test_a_crowd_larger_than_the_desk(world: World) -> None:
    orders = claims(world, AT_ONCE + 9)
    for order, outcome in zip(orders, at_desk(orders), strict=True):
        check_given(world, order, outcome)
    assert len(world.live()) == AT_ONCE + 9
    assert world.store.scard(world.key(k.ISSUES_PROCESSING)) == AT_ONCE + 9
    day = timezone.localdate().isoformat()
    assert world.store.hget(world.key(k.STATS_ISSUES_DAILY, date=day), "assigned") == str(AT_ONCE + 9)


# Alone with it


def test_an_agent_that_has_a_task_keeps_the_others_from_nothing(world: World) -> None:
    orders = claims(world, 3)
    busy = Agent.objects.create(name="agent-2")
    now = timezone.now()
    Assignment.objects.create(
        agent=busy,
        repository=world.repository,
        number=4711,
        task_type="development",
        state="live",
        created_at=now,
        last_heartbeat_at=now,
    )
    first, second, third = take_steps(orders)
    check_given(world, orders[0], first)
    assert second == AgentBusy()
    check_given(world, orders[2], third)
    check_back_on_offer(world, orders[1])


def test_an_issue_that_was_closed_meanwhile_is_left_out(world: World) -> None:
    orders = claims(world, 3)
    Issue.objects.filter(number=orders[1].claim.number).update(is_open=False)
    first, second, third = take_steps(orders)
    check_given(world, orders[0], first)
    assert second == Skipped(Reason.of(ReasonCode.GONE))
    check_given(world, orders[2], third)


def test_one_that_github_refuses(world: World) -> None:
    orders = claims(world, 3)
    refused = orders[1].claim.number
    world.sandbox.fault(
        "github",
        "status",
        method="POST",
        path=f"/issues/{refused}/labels",
        status=422,
        body={"message": "no"},
    )
    first, second, third = take_steps(orders)
    check_given(world, orders[0], first)
    assert isinstance(second, Skipped)
    assert world.issue(refused).refused_reason
    check_given(world, orders[2], third)


def test_one_that_the_database_refuses_to_let_live(world: World) -> None:
    orders = claims(world, 3)
    with no_event_of(orders[1].claim.number):
        first, second, third = take_steps(orders)
    check_given(world, orders[0], first)
    assert isinstance(second, Exception)
    check_given(world, orders[2], third)
    # As after a crash: the row says what may have been done, and the sweep undoes it.
    assert Assignment.objects.get(number=orders[1].claim.number).state == "claiming"


@pytest.mark.parametrize("word", ["INSERT INTO", "UPDATE"])
def test_a_database_that_is_away_is_asked_once_for_all(world: World, word: str) -> None:
    """Each alone would wait for its time-out again, one after the other."""
    orders = claims(world, 4)
    asked: list[str] = []

    def away(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(f'{word} "tasks_assignment"'):
            asked.append(sql)
            raise OperationalError("the database is locked")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(away):
        outcomes = take_steps(orders)
    assert [type(outcome) for outcome in outcomes] == [OperationalError] * 4
    assert len(asked) == 1
    assert [world.store.exists(world.key(k.ISSUE_LOCK, number=order.claim.number)) for order in orders] == [
        0
    ] * 4
    if word == "INSERT INTO":
        check_back_on_offer(world, orders[0])
    else:  # as after a crash, the sweep undoes what may be on GitHub
        assert list(Assignment.objects.values_list("state", flat=True)) == ["claiming"] * 4


def test_what_redis_does_not_take_for_one_keeps_nothing_from_the_others(world: World) -> None:
    orders = claims(world, 2)
    damaged = world.key(k.ISSUE_METADATA, number=orders[0].claim.number)
    world.store.delete(damaged)
    world.store.set(damaged, "not a hash")
    first, second = take_steps(orders)
    check_given(world, orders[0], first)
    check_given(world, orders[1], second)
    info = world.key(k.PROCESS_INFO, process=f"issue-{orders[0].claim.number}-agent-1")
    assert world.store.hget(info, "status") == "running"


# The thread


def test_who_is_kept_waiting_by_github_keeps_nobody_waiting(world: World) -> None:
    orders = claims(world, 3)
    slow = orders[0].claim.number
    world.sandbox.fault("github", "stall", method="POST", path=f"/issues/{slow}/labels", seconds=2.0)

    async def main() -> list[Outcome | Exception]:
        desk = Desk(asyncio.get_running_loop())
        tasks = [asyncio.create_task(desk.assign(order)) for order in orders]
        await asyncio.wait(tasks[1:])
        assert not tasks[0].done(), "the others had to wait for the slow one"
        outcomes = await asyncio.gather(*tasks)
        await desk.close()
        return outcomes

    first, second, third = asyncio.run(main())
    assert isinstance(first, OutsideError)
    check_given(world, orders[1], second)
    check_given(world, orders[2], third)
    check_back_on_offer(world, orders[0])


def test_what_has_begun_is_finished_although_nobody_waits_for_it(world: World) -> None:
    orders = claims(world, 2)

    async def main() -> None:
        desk = Desk(asyncio.get_running_loop())
        tasks = [asyncio.create_task(desk.assign(order)) for order in orders]
        await asyncio.sleep(0)  # they have handed it in
        for task in tasks:
            task.cancel()
        await desk.close()
        assert all(task.cancelled() for task in tasks)

    asyncio.run(main())
    assert list(Assignment.objects.values_list("state", flat=True)) == ["live"] * 2
    assert len(world.live()) == 2


def test_an_order_that_breaks_every_rule_breaks_nothing(world: World) -> None:
    good, bad = claims(world, 2)
    bad = replace(bad, roles=None)  # type: ignore[arg-type]
    bad = replace(bad, claim=replace(bad.claim, repository=None))  # type: ignore[arg-type]

    async def main() -> list[Outcome | Exception]:
        desk = Desk(asyncio.get_running_loop())
        first = await asyncio.gather(desk.assign(bad), desk.assign(good))
        await desk.close()
        return list(first)

    failed, given = asyncio.run(main())
    assert isinstance(failed, AttributeError)
    check_given(world, good, given)


class BreaksOnce(Desk):
    """A fault of ours where none is expected, after the first orders are taken."""

    has_broken = False

    def _begin(self, side_by_side: SideBySide) -> None:
        if self.has_broken:
            super()._begin(side_by_side)
            return
        self.has_broken = True
        self._in_hand.add(self._orders.popleft())
        raise RuntimeError("a fault of ours")


def test_a_desk_that_breaks_down_says_so_and_opens_again(world: World) -> None:
    orders = claims(world, 3)

    async def main() -> list[Outcome | Exception]:
        desk = BreaksOnce(asyncio.get_running_loop())
        try:
            return await asyncio.gather(*map(desk.assign, orders))
        finally:
            await desk.close()

    broken, second, third = asyncio.run(main())
    assert isinstance(broken, DeskBroke)
    check_given(world, orders[1], second)
    check_given(world, orders[2], third)


def test_a_github_app_fetches_its_token_once_for_all(world: World, settings: LazySettings) -> None:
    """One conversation holds the lock of the token while it waits for GitHub; the others want it, too."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    orders = claims(world, 4)
    github = replace(settings.BROKER.github, token="", app_id="4001", app_private_key=pem)
    settings.BROKER = replace(settings.BROKER, github=github)
    forget_clients()
    makings = [Making(order) for order in orders]
    begin(makings)
    # In a thread of its own: if one waited for the lock of another, none would ever go on.
    thread = threading.Thread(target=partial(speak, makings, each_alone=True), daemon=True)
    thread.start()
    thread.join(30)
    forget_clients()
    assert not thread.is_alive()
    finish(makings)
    for making in makings:
        check_given(world, making.order, making.outcome)
    assert sum("access_tokens" in call for call in world.requests()) == 1


def test_a_refusal_of_all_is_no_reason_to_stop(world: World) -> None:
    orders = claims(world, 2)
    world.sandbox.fault("github", "status", method="POST", path="/git/refs", status=422, times=2)
    assert [type(outcome) for outcome in at_desk(orders)] == [Skipped, Skipped]
    assert world.live() == []
