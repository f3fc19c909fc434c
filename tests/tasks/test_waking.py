"""Who is woken for what: one waiter an offer, the longest waiting first, nobody for nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest
from django.db import OperationalError

from broker_project.lib.redis import keys as k
from tasks.agents_api.long_poll import Hub, Waiter, Woken
from tests.tasks.world import World

BACK, FRONT = ("BACKENDCODER",), ("FRONTENDCODER",)
BOTH = ("BACKENDCODER", "FRONTENDCODER")


async def woken(waiting: Sequence[tuple[str, ...]], offers: Sequence[Sequence[str]]) -> list[int]:
    hub = Hub()
    try:
        waits = [hub.loop.create_task(hub.wait(Waiter(roles), 60)) for roles in waiting]
        await asyncio.sleep(0)
        count = hub.wake_offers(offers)
        await asyncio.sleep(0)
        found = [position for position, wait in enumerate(waits) if wait.done()]
        assert count == len(found)
        assert all(waits[position].result() is Woken.WORK for position in found)
        hub.close()
        await asyncio.gather(*waits)
        return found
    finally:
        await hub.stop()


@pytest.mark.parametrize(
    ("waiting", "offers", "expected"),
    [
        ([(), (), ()], [BACK], [0]),
        ([(), (), ()], [BACK, BACK], [0, 1]),
        ([()], [BACK, BACK, BACK], [0]),
        ([FRONT, BACK, BACK], [BACK], [1]),
        ([FRONT, ()], [BACK], [1]),
        ([FRONT, FRONT], [BACK], []),
        ([BOTH, BACK, FRONT], [FRONT, BACK, FRONT], [0, 1, 2]),
        ([BACK, FRONT, ()], [["UIUX"], BOTH], [0, 2]),
        ([], [BACK], []),
        ([()], [], []),
    ],
)
def test_one_fitting_waiter_an_offer(waiting, offers, expected: list[int]) -> None:
    assert asyncio.run(woken(waiting, offers)) == expected


def test_who_has_gone_is_passed_over() -> None:
    async def scene() -> list[bool]:
        hub = Hub()
        try:
            gone, here = Waiter(()), Waiter(())
            waits = [hub.loop.create_task(hub.wait(waiter, 60)) for waiter in (gone, here)]
            await asyncio.sleep(0)
            gone.wake(Woken.GONE)
            assert hub.wake_offers([BACK]) == 1
            return [(await wait) is Woken.WORK for wait in waits]
        finally:
            await hub.stop()

    assert asyncio.run(scene()) == [False, True]


@pytest.mark.django_db
def test_a_better_priority_rings_for_what_is_in_it_alone(world: World) -> None:
    for _ in range(5):
        world.open_issue("P2", "BACKENDCODER")
    world.sync()
    with world.store.pubsub() as heard:
        heard.subscribe(world.key(k.CHANNEL_WAKE))
        world.open_issue("P1", "BACKENDCODER")
        world.open_issue("P1", "FRONTENDCODER")
        world.sync()
        messages = [
            json.loads(message["data"])
            for message in iter(lambda: heard.get_message(timeout=1), None)
            if message["type"] == "message"
        ]
    assert messages == [{"any": 2}]


def test_what_many_ask_for_at_once_is_done_by_one_thread(world: World) -> None:
    """Thousands of agents come back in the same second; none but the first makes a thread wait for the rows."""
    started, may_end = threading.Event(), threading.Event()
    runs: list[str] = []

    def slow() -> int:
        runs.append(threading.current_thread().name)
        started.set()
        assert may_end.wait(10)
        return len(runs)

    def broken() -> None:
        runs.append("broken")
        raise OperationalError("away")

    async def play() -> None:
        hub = Hub()
        try:
            asked = [asyncio.create_task(hub.in_one_thread(slow)) for _ in range(50)]
            await asyncio.to_thread(started.wait, 10)
            asked[0].cancel()  # the first one hangs up: the others still get what it began
            may_end.set()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert found[1:] == [1] * 49
            assert await hub.in_one_thread(slow) == 2, "later it is done anew"
            failed = await asyncio.gather(
                *(hub.in_one_thread(broken) for _ in range(5)), return_exceptions=True
            )
            assert [str(error) for error in failed] == ["away"] * 5
            assert runs.count("broken") == 1
        finally:
            await hub.stop()

    asyncio.run(play())
    assert len(runs) == 3
