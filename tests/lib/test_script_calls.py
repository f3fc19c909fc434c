"""Script calls of the same moment: one write, each its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from broker_project.lib.redis.client import async_redis_client
from broker_project.lib.redis.script_calls import ScriptCalls

ECHO = "return {KEYS[1], ARGV[1]}"
COUNT = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
WRONG = "return redis.call('SADD', KEYS[1], 'x')"


def run(use: Callable[[ScriptCalls], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with async_redis_client(**options) as client:
            return await use(ScriptCalls(client))

    return asyncio.run(main())


def reads(store: redis.Redis) -> int:
    return int(store.info("stats")["total_reads_processed"])


def test_each_gets_its_own_answer(store: redis.Redis) -> None:
    async def use(scripts: ScriptCalls) -> Any:
        return await asyncio.gather(*(scripts.call(ECHO, [1, "t:k", n]) for n in range(50)))

    assert run(use) == [["t:k", str(n)] for n in range(50)]


def test_those_of_the_same_moment_cost_one_round_trip(store: redis.Redis) -> None:
    async def use(scripts: ScriptCalls) -> int:
        await scripts.call(COUNT, [1, "t:n", 1])
        before = reads(store)
        await asyncio.gather(*(scripts.call(COUNT, [1, "t:n", 1]) for _ in range(40)))
        return reads(store) - before - 1  # the reading itself

    assert run(use) <= 3  # forty calls may be more than one read of Redis, but never forty
    assert store.get("t:n") == "41"


@pytest.mark.parametrize("number", [1, 7])
def test_a_redis_that_forgot_the_script_is_told_again(store: redis.Redis, number: int) -> None:
    async def use(scripts: ScriptCalls) -> Any:
        found = []
        for _ in range(2):
            store.script_flush()
            found.append(
                await asyncio.gather(*(scripts.call(COUNT, [1, f"t:{n}", 2]) for n in range(number)))
            )
        return found

    assert run(use) == [[2] * number, [4] * number]


def test_one_that_fails_fails_alone(store: redis.Redis) -> None:
    store.set("t:text", "x")

    async def use(scripts: ScriptCalls) -> Any:
        await asyncio.gather(scripts.call(ECHO, [1, "t:k", 0]), scripts.call(COUNT, [1, "t:n", 0]))
        with pytest.raises(redis.exceptions.ResponseError):
            await scripts.call(WRONG, [1, "t:text"])
        return await asyncio.gather(
            scripts.call(ECHO, [1, "t:k", 1]),
            scripts.call(WRONG, [1, "t:text"]),
            scripts.call(COUNT, [1, "t:n", 5]),
            return_exceptions=True,
        )

    first, second, third = run(use)
    assert (first, third) == (["t:k", "1"], 5)
    assert isinstance(second, redis.exceptions.ResponseError)


@pytest.mark.parametrize("number", [1, 6])
def test_connections_that_a_restarted_redis_has_closed_are_made_again(
    store: redis.Redis, number: int
) -> None:
    async def use(scripts: ScriptCalls) -> Any:
        await asyncio.gather(*(scripts.call(COUNT, [1, f"t:{n}", 1]) for n in range(number)))
        store.client_kill_filter(_type="normal", skipme=True)
        return await asyncio.gather(*(scripts.call(COUNT, [1, f"t:{n}", 1]) for n in range(number)))

    assert run(use, retry=Retry(NoBackoff(), 1)) == [2] * number


def test_a_redis_that_is_away_is_told_to_all_of_them() -> None:
    async def main() -> list[Any]:
        client: redis.asyncio.Redis = redis.asyncio.Redis(port=1, retry=Retry(NoBackoff(), 0))
        async with client:
            scripts = ScriptCalls(client)
            calls = [scripts.call(ECHO, [1, "t:k", n]) for n in range(3)]
            alone = [scripts.call(ECHO, [1, "t:k", 9])]
            found = await asyncio.gather(*calls, return_exceptions=True)
            return found + await asyncio.gather(*alone, return_exceptions=True)

    assert [isinstance(error, redis.exceptions.ConnectionError) for error in asyncio.run(main())] == [
        True
    ] * 4


def test_who_goes_away_takes_nobody_along(store: redis.Redis) -> None:
    async def use(scripts: ScriptCalls) -> Any:
        gone = asyncio.create_task(scripts.call(COUNT, [1, "t:n", 1]))
        kept = asyncio.create_task(scripts.call(COUNT, [1, "t:n", 1]))
        await asyncio.sleep(0)
        gone.cancel()
        return await kept

    assert run(use) in (1, 2)
    assert store.get("t:n") == "2"  # what was sent is not taken back
