"""Commands that go to Redis together: all of them, in order, with nothing in between."""

from __future__ import annotations

import threading

import pytest
import redis

from broker_project.lib.redis.batch import Batch

TAKE = "local found = redis.call('GET', KEYS[1]) redis.call('DEL', KEYS[1]) return found"
JOIN = "return KEYS[1] .. ':' .. table.concat(ARGV, ',')"


def test_every_command_is_run_as_redis_py_would(store: redis.Redis) -> None:
    batch = Batch(store)
    batch.set("t:text", "後半")
    batch.set("t:short", 1.5, ex=90)
    batch.hset("t:hash", {"a": 1, "b": "zwei", "gone": ""})
    batch.hdel("t:hash", "gone")
    batch.hincrby("t:hash", "n", 3)
    batch.sadd("t:set", 1, 2, "three")
    batch.srem("t:set", 2)
    batch.expire("t:set", 80)
    batch.set("t:kept", "x", ex=5)
    batch.persist("t:kept")
    batch.set("t:gone", "x")
    batch.delete("t:gone", "t:never")
    batch.set("t:until", "x")
    batch.expireat("t:until", 32_503_680_000)
    assert batch.execute() == []
    assert store.get("t:text") == "後半"
    assert store.get("t:short") == "1.5"
    assert 80 < store.ttl("t:short") <= 90
    assert store.hgetall("t:hash") == {"a": "1", "b": "zwei", "n": "3"}
    assert store.smembers("t:set") == {"1", "three"}
    assert 70 < store.ttl("t:set") <= 80
    assert store.ttl("t:kept") == -1
    assert not store.exists("t:gone")
    assert store.expiretime("t:until") == 32_503_680_000


def test_scripts_stand_among_the_commands_and_answer_in_order(store: redis.Redis) -> None:
    batch = Batch(store)
    batch.set("t:a", "first")
    batch.eval(TAKE, 1, "t:a")
    batch.eval(JOIN, 1, "t:k", "x", 2)
    batch.eval(TAKE, 1, "t:a")
    batch.set("t:a", "second")
    assert batch.execute() == ["first", "t:k:x,2", None]
    assert store.get("t:a") == "second"


def test_a_message_reaches_who_listens(store: redis.Redis) -> None:
    with store.pubsub() as listener:
        listener.subscribe("t:channel")
        assert listener.get_message(timeout=5)
        batch = Batch(store)
        batch.publish("t:channel", "hello")
        batch.execute()
        found = listener.get_message(timeout=5)
    assert found is not None
    assert found["data"] == "hello"


def test_what_fails_is_said_and_stops_no_other(store: redis.Redis) -> None:
    store.set("t:text", "x")
    batch = Batch(store)
    batch.set("t:before", 1)
    batch.sadd("t:text", "a member")
    batch.eval("return redis.call('SADD', KEYS[1], 'x')", 1, "t:text")
    batch.eval("error('of our own')", 0)
    batch.set("t:after", 1)
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        batch.execute()
    assert store.mget("t:before", "t:after") == ["1", "1"]


def test_a_redis_that_is_full_does_nothing_of_it(store: redis.Redis) -> None:
    """It would let a script put in what it likes once that has taken something out."""
    store.set("t:old", "kept")
    batch = Batch(store)
    batch.delete("t:old")
    batch.set("t:new", "x")
    batch.eval("redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[2], 'x')", 2, "t:old", "t:other")
    store.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.ResponseError, match=r"OOM|maxmemory"):
            batch.execute()
    finally:
        store.config_set("maxmemory", 0)
    assert store.mget("t:old", "t:new", "t:other") == ["kept", None, None]
    batch.execute()
    assert store.mget("t:old", "t:new", "t:other") == [None, "x", "x"]
    assert store.keys("*nothing*") == []


def test_it_is_sent_once_and_may_be_filled_again(store: redis.Redis) -> None:
    batch = Batch(store)
    batch.hincrby("t:n", "n", 1)
    batch.execute()
    assert batch.execute() == []
    batch.hincrby("t:n", "n", 1)
    batch.execute()
    assert store.hget("t:n", "n") == "2"


def test_a_redis_that_forgot_its_scripts_is_told_again(store: redis.Redis) -> None:
    for _ in range(2):
        batch = Batch(store)
        batch.hincrby("t:n", "n", 1)
        batch.execute()
        store.script_flush()
    assert store.hget("t:n", "n") == "2"


def test_it_is_one_command_to_redis(store: redis.Redis) -> None:
    def calls() -> int:
        return int(store.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    Batch(store).execute()  # nothing to send
    batch = Batch(store)
    batch.hincrby("t:n", "n", 1)
    batch.execute()
    before = calls()
    batch = Batch(store)
    for _ in range(50):
        batch.hincrby("t:n", "n", 1)
    batch.execute()
    assert calls() == before + 1
    assert store.hget("t:n", "n") == "51"


def transactions(store: redis.Redis) -> int:
    return int(store.info("commandstats").get("cmdstat_exec", {}).get("calls", 0))


def test_a_batch_of_any_size_is_one_change(store: redis.Redis) -> None:
    """A fleet of thousands that Redis forgot: more words than one call may have."""
    batch = Batch(store)
    numbers = range(300_000)
    for number in numbers:
        batch.hincrby("t:n", "n", 1)
        if number % 100_000 == 0:
            batch.eval(JOIN, 1, "t:k", number)
    before = transactions(store)
    assert batch.execute() == ["t:k:0", "t:k:100000", "t:k:200000"]
    assert store.hget("t:n", "n") == "300000"
    assert transactions(store) == before + 1


def test_nobody_sees_half_of_it(store: redis.Redis) -> None:
    """Writers keep two keys equal; a reader that takes both in one command must never see them differ."""
    done = threading.Event()
    seen: set[tuple[object, object]] = set()

    def read() -> None:
        while not done.is_set():
            left, right = store.mget("t:left", "t:right")
            seen.add((left, right))

    def write(name: str) -> None:
        for number in range(300):
            batch = Batch(store)
            batch.set("t:left", f"{name}{number}")
            batch.set("t:right", f"{name}{number}")
            batch.execute()

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert len(seen) > 2
    assert all(left == right for left, right in seen)
