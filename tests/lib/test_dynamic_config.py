"""Settings that change without a restart: defaults, stored values, bad values, other processes, a lost Redis."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable

import pytest
import redis
from django.conf import settings

from broker_project.lib.config import dynamic as dynamic_config
from broker_project.lib.config.dynamic import (
    CLAUDE_TIMEOUT,
    LONG_POLL_SECONDS,
    POLL_INTERVAL_SECONDS,
    REVIEW_DELAY_MINUTES,
    SETTINGS,
    RateLimit,
    clear_setting,
    read_rate_limit,
    record_rate_limit,
    snapshot,
    store_setting,
    value_of,
)
from tests.environment import REDIS
from tests.support.warm_python import run_python, start_python


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come about")


def commands(store: redis.Redis) -> int:
    info: dict[str, dict[str, int]] = store.info("commandstats")
    return info.get("cmdstat_mget", {}).get("calls", 0)


def test_the_configuration_is_the_default(store: redis.Redis) -> None:
    assert {setting.title: value_of(setting) for setting in SETTINGS.values()} == {
        "claude:timeout": 1800,
        "agent:long_poll_seconds": 120,
        "agent:review_delay_minutes": 5,
        "poll:interval_seconds": 300,
    }


def test_a_stored_value_holds_until_it_is_cleared(store: redis.Redis) -> None:
    assert store_setting(REVIEW_DELAY_MINUTES, " 7 ") == 7
    assert store.get("poppo:config:agent:review_delay_minutes") == "7"
    assert value_of(REVIEW_DELAY_MINUTES) == 7
    clear_setting(REVIEW_DELAY_MINUTES)
    assert not store.exists("poppo:config:agent:review_delay_minutes")
    assert value_of(REVIEW_DELAY_MINUTES) == settings.BROKER.review_delay_minutes


BAD = ["", "x", "-1", "1.5", "601", "１２", "1e3", "9" * 40, "NaN"]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_value_is_not_stored(store: redis.Redis, text: str) -> None:
    with pytest.raises(ValueError, match="agent:long_poll_seconds must be"):
        store_setting(LONG_POLL_SECONDS, text)
    assert not store.exists("poppo:config:agent:long_poll_seconds")


@pytest.mark.parametrize("text", BAD)
def test_a_bad_stored_value_is_ignored_and_named(store: redis.Redis, text: str) -> None:
    store.set("poppo:config:agent:long_poll_seconds", text)
    store.set("poppo:config:claude:timeout", "90")
    assert value_of(LONG_POLL_SECONDS) == 120
    assert value_of(CLAUDE_TIMEOUT) == 90
    assert list(snapshot().problems) == ["agent:long_poll_seconds"]


def test_a_key_of_the_wrong_type_counts_as_absent(store: redis.Redis) -> None:
    store.hset("poppo:config:claude:timeout", "a", "1")
    store.set("poppo:config:agent:long_poll_seconds", "9")
    assert value_of(CLAUDE_TIMEOUT) == 1800
    assert value_of(LONG_POLL_SECONDS) == 9


def test_many_readers_cost_one_round_trip(store: redis.Redis) -> None:
    value_of(CLAUDE_TIMEOUT)
    before = commands(store)
    for _ in range(200):
        value_of(CLAUDE_TIMEOUT)
        value_of(POLL_INTERVAL_SECONDS)
    # 400 reads take far less than several times FRESH_SECONDS.
    assert commands(store) - before <= 5


def test_first_readers_in_many_threads_all_see_what_is_stored(store: redis.Redis) -> None:
    store.set("poppo:config:claude:timeout", "77")
    start = threading.Barrier(8)
    seen: list[int] = []

    def read() -> None:
        start.wait()
        seen.append(value_of(CLAUDE_TIMEOUT))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [77] * 8


def test_a_change_by_another_process_arrives_by_itself(store: redis.Redis) -> None:
    assert value_of(CLAUDE_TIMEOUT) == 1800
    store.set("poppo:config:claude:timeout", "66")
    wait_for(lambda: value_of(CLAUDE_TIMEOUT) == 66)


def test_a_reader_does_not_block_an_event_loop(store: redis.Redis) -> None:
    store.set("poppo:config:claude:timeout", "44")

    async def read() -> list[int]:
        first = value_of(CLAUDE_TIMEOUT)
        for _ in range(500):
            if value_of(CLAUDE_TIMEOUT) == 44:
                break
            await asyncio.sleep(0.02)
        return [first, value_of(CLAUDE_TIMEOUT)]

    assert asyncio.run(read())[1] == 44


READER = """
import logging.config, sys, time
from django.conf import settings
logging.config.dictConfig(settings.LOGGING)
from broker_project.lib.config.dynamic import CLAUDE_TIMEOUT, value_of
print(value_of(CLAUDE_TIMEOUT), flush=True)
if sys.argv[1] == "stop":
    from redis import Redis
    try:
        Redis(port=int(sys.argv[2]), single_connection_client=True).shutdown(nosave=True)
    except Exception as error:
        print(error, file=sys.stderr)
for _ in range(200):
    time.sleep(0.05)
    if value_of(CLAUDE_TIMEOUT) != 33:
        break
print(value_of(CLAUDE_TIMEOUT), flush=True)
"""


@pytest.mark.process
def test_the_last_values_stay_in_force_while_redis_is_away(store: redis.Redis) -> None:
    from tests.support.redis_server import start_redis

    server = start_redis()
    redis.Redis(port=server.port).set("poppo:config:claude:timeout", "33")
    code = READER.replace("range(200)", "range(60)")  # more than one refresh
    environ = {**os.environ, "REDIS_URL": server.url}
    done = run_python("-c", code, "stop", str(server.port), env=environ)
    server.stop()
    assert done.stdout.split() == ["33", "33"], done.stderr
    assert done.stderr.count("dynamic configuration not read") == 1


@pytest.mark.process
def test_a_running_process_follows(store: redis.Redis) -> None:
    store.set("poppo:config:claude:timeout", "33")
    reader = start_python("-c", READER, "go", str(REDIS.port), env=os.environ, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    with reader.stdout as stream:
        assert stream.readline() == "33\n"
        store.set("poppo:config:claude:timeout", "34")
        assert stream.readline() == "34\n"
    assert reader.wait(timeout=30) == 0


def test_the_debug_flag_sets_the_log_level(store: redis.Redis) -> None:
    root = logging.getLogger()
    dynamic_config.apply_debug_flag()
    assert root.level == logging.INFO
    store.set("poppo:flags:debug:enabled", "1")
    dynamic_config.expire_snapshot()
    dynamic_config.apply_debug_flag()
    assert root.level == logging.DEBUG
    store.delete("poppo:flags:debug:enabled")
    dynamic_config.expire_snapshot()
    dynamic_config.apply_debug_flag()
    assert root.level == logging.INFO


def test_the_rate_limit_is_recorded_as_json(store: redis.Redis) -> None:
    assert read_rate_limit() is None
    reset_at = dt.datetime(2026, 1, 31, 12, 0, tzinfo=dt.UTC)
    record_rate_limit(5000, 4990, reset_at)
    assert read_rate_limit() == RateLimit(5000, 4990, reset_at)
    assert (
        store.get("poppo:config:github:ratelimit")
        == '{"limit": 5000, "remaining": 4990, "reset": 1769860800}'
    )
    assert store.ttl("poppo:config:github:ratelimit") > 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"limit": 1}', '{"limit":1,"remaining":2,"reset":1e400}', "7"]
)
def test_a_rate_limit_that_makes_no_sense_is_not_known(store: redis.Redis, text: str) -> None:
    store.set("poppo:config:github:ratelimit", text)
    assert read_rate_limit() is None
