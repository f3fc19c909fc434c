"""Locks with an owner: nobody else renews or releases them, and a lost answer loses no lock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.locks import (
    LockHeld,
    acquire_lock,
    awaited_lock,
    held_lock,
    new_owner,
    release_lock,
    renew_lock,
)
from tests.environment import REDIS
from tests.support.lossy_proxy import lossy_proxy

TTL = 30.0


def wait_until_gone(store: redis.Redis, key: str) -> None:
    for _ in range(500):
        if not store.exists(key):
            return
        time.sleep(0.02)
    raise AssertionError(f"{key} is still there")


@pytest.fixture
def key(store: redis.Redis) -> str:
    return keyspace().key(k.LOCK_PROCESS, name="migration")


def test_one_owner_at_a_time(store: redis.Redis, key: str) -> None:
    assert acquire_lock(store, key, "one", TTL)
    assert not acquire_lock(store, key, "two", TTL)
    assert store.get(key) == "one"
    assert 0 < store.pttl(key) <= TTL * 1000


def test_only_the_owner_releases_and_renews(store: redis.Redis, key: str) -> None:
    acquire_lock(store, key, "one", TTL)
    assert not release_lock(store, key, "two")
    assert not renew_lock(store, key, "two", 1000)
    assert store.get(key) == "one"
    assert store.pttl(key) <= TTL * 1000
    assert renew_lock(store, key, "one", 1000)
    assert store.pttl(key) > TTL * 1000
    assert release_lock(store, key, "one")
    assert not release_lock(store, key, "one")
    assert not renew_lock(store, key, "one", TTL)
    assert not store.exists(key)


def test_a_late_owner_does_not_release_the_next_ones_lock(store: redis.Redis, key: str) -> None:
    acquire_lock(store, key, "one", 0.05)
    wait_until_gone(store, key)
    assert acquire_lock(store, key, "two", TTL)
    assert not release_lock(store, key, "one")
    assert store.get(key) == "two"


def test_the_client_that_answers_in_bytes_works_as_well(store: redis.Redis, key: str) -> None:
    raw = redis.Redis(port=REDIS.port)
    assert acquire_lock(raw, key, "one", TTL)
    assert acquire_lock(raw, key, "one", TTL)
    assert not acquire_lock(raw, key, "two", TTL)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_lock_whose_answer_was_lost_is_ours(store: redis.Redis, key: str, retries: int) -> None:
    """redis-py sends SET NX again and is told that the lock is taken: by itself."""
    with lossy_proxy(REDIS.port, needle=b"NX") as proxy:
        client = redis.Redis(port=proxy.port, decode_responses=True, retry=Retry(NoBackoff(), retries))
        client.ping()
        proxy.losses = 1
        assert acquire_lock(client, key, "one", TTL)
        assert proxy.lost == 1
    assert store.get(key) == "one"


def test_a_lost_answer_about_anothers_lock_is_still_a_refusal(store: redis.Redis, key: str) -> None:
    acquire_lock(store, key, "other", TTL)
    with lossy_proxy(REDIS.port, needle=b"NX") as proxy:
        client = redis.Redis(port=proxy.port, decode_responses=True, retry=Retry(NoBackoff(), 1))
        proxy.losses = 1
        assert not acquire_lock(client, key, "one", TTL)
        assert proxy.lost == 1
    assert store.get(key) == "other"


def test_of_racing_threads_one_wins(store: redis.Redis, key: str) -> None:
    for _ in range(20):
        start = threading.Barrier(4)
        won: list[str] = []

        def race(owner: str, start: threading.Barrier = start, won: list[str] = won) -> None:
            start.wait()
            if acquire_lock(store, key, owner, TTL):
                won.append(owner)

        threads = [threading.Thread(target=race, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert release_lock(store, key, won[0])


def test_a_held_lock_is_renewed_while_the_body_runs(store: redis.Redis, key: str) -> None:
    with held_lock(store, key, new_owner("a"), 6) as lost:
        store.pexpire(key, 5000)
        for _ in range(500):
            if store.pttl(key) > 5000:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("not renewed")
        assert not lost.is_set()
        with pytest.raises(LockHeld), held_lock(store, key, new_owner("b"), 6):
            raise AssertionError("two holders")
    assert not store.exists(key)


def test_a_held_lock_is_released_when_the_body_fails(store: redis.Redis, key: str) -> None:
    with pytest.raises(RuntimeError, match="body"), held_lock(store, key, new_owner("a"), TTL):
        raise RuntimeError("body")
    assert not store.exists(key)


def test_the_holder_learns_that_its_lock_is_gone(store: redis.Redis, key: str) -> None:
    with held_lock(store, key, new_owner("a"), 0.3) as lost:
        store.set(key, "somebody else")
        assert lost.wait(5)
    assert store.get(key) == "somebody else"


def test_the_holder_learns_that_redis_went_away_for_too_long(store: redis.Redis, key: str) -> None:
    with lossy_proxy(REDIS.port, needle=b"PEXPIRE") as proxy:
        client = redis.Redis(port=proxy.port, decode_responses=True, retry=Retry(NoBackoff(), 0))
        with held_lock(client, key, new_owner("a"), 0.3) as lost:
            proxy.losses = 1_000_000
            assert lost.wait(5)


HOLDER = """
import sys, time, redis
from broker_project.lib.redis.locks import held_lock
client = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
with held_lock(client, sys.argv[2], "doomed", 1.0):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.process
def test_a_killed_holders_lock_is_free_after_its_time(store: redis.Redis, key: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(REDIS.port), key], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        assert store.get(key) == "doomed"
        holder.kill()
        holder.wait()
    assert store.get(key) == "doomed"
    with awaited_lock(store, key, "next", TTL, wait_seconds=20):
        assert store.get(key) == "next"
    assert not store.exists(key)


def test_waiting_for_a_lock_ends(store: redis.Redis, key: str) -> None:
    acquire_lock(store, key, "other", TTL)
    with pytest.raises(LockHeld), awaited_lock(store, key, "me", TTL, wait_seconds=0.3):
        raise AssertionError("two holders")
    assert store.get(key) == "other"


def test_owners_are_never_alike() -> None:
    assert len({new_owner("poll") for _ in range(100)}) == 100
