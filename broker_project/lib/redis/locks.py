"""Locks in Redis with an owner: taken by ``SET NX``, renewed and released only by whoever holds them.

redis-py repeats a command whose answer did not arrive. A repeated ``SET NX`` then reports failure although the first
one took the lock for us. So a refused lock is read back, and counts as taken if the owner is us.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from broker_project.lib.logs import get_logger

log = get_logger(__name__)

# KEYS the locks, ARGV the owner of each
RELEASE = """
local released = 0
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[i] then released = released + redis.call('DEL', key) end
end
return released
"""
# KEYS[1] the lock, ARGV[1] the owner, ARGV[2] milliseconds to live
RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""


class LockHeld(Exception):
    """Somebody else has the lock. Normal, not a fault."""


def new_owner(name: str) -> str:
    """An owner that no other acquisition shares, readable for people who look into Redis."""
    return f"{name}:{secrets.token_hex(8)}"


def acquire_lock(client: redis.Redis, key: str, owner: str, ttl_seconds: float) -> bool:
    """Take the lock. True also if ``owner`` has it already: give every acquisition an owner of its own
    (:func:`new_owner`) unless taking it again is harmless."""
    milliseconds = int(ttl_seconds * 1000)
    try:
        if client.set(key, owner, nx=True, px=milliseconds):
            return True
    except (redis.exceptions.TimeoutError, redis.exceptions.ConnectionError):
        # The answer is lost and the lock perhaps ours. Trying again tells; giving up could block it for its TTL.
        if client.set(key, owner, nx=True, px=milliseconds):
            return True
    return _holder(client, key) == owner


def _holder(client: redis.Redis, key: str) -> str | None:
    value = client.get(key)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def release_lock(client: redis.Redis, key: str, owner: str) -> bool:
    """False if it was no longer ours: expired, or taken by another since."""
    return bool(client.eval(RELEASE, 1, key, owner))


def renew_lock(client: redis.Redis, key: str, owner: str, ttl_seconds: float) -> bool:
    return bool(client.eval(RENEW, 1, key, owner, str(int(ttl_seconds * 1000))))


@contextmanager
def held_lock(client: redis.Redis, key: str, owner: str, ttl_seconds: float) -> Iterator[threading.Event]:
    """Hold a lock while the body runs, renewing it from a thread. Raises :class:`LockHeld`.

    A killed holder's lock is gone after ``ttl_seconds``. The event is set when the lock is no longer ours.
    """
    if not acquire_lock(client, key, owner, ttl_seconds):
        raise LockHeld(key)
    stop, lost = threading.Event(), threading.Event()

    def keep() -> None:
        renewed_at = time.monotonic()
        while not stop.wait(ttl_seconds / 3):
            asked_at = time.monotonic()
            try:
                if not renew_lock(client, key, owner, ttl_seconds):
                    lost.set()
                    return
                renewed_at = asked_at
            except redis.exceptions.RedisError as error:
                log.warning("lock not renewed", key=key, error=str(error))
                if time.monotonic() - renewed_at >= ttl_seconds:
                    lost.set()  # expired by now
                    return

    keeper = threading.Thread(target=keep, name="lock-keeper", daemon=True)
    keeper.start()
    try:
        yield lost
    finally:
        stop.set()
        keeper.join()
        try:
            release_lock(client, key, owner)
        except redis.exceptions.RedisError as error:
            # It expires by itself within ttl_seconds; the body's own outcome matters more.
            log.warning("lock not released", key=key, error=str(error))


@contextmanager
def awaited_lock(
    client: redis.Redis, key: str, owner: str, ttl_seconds: float, wait_seconds: float
) -> Iterator[threading.Event]:
    """Like :func:`held_lock`, but waits for its turn; raises :class:`LockHeld` after ``wait_seconds``."""
    give_up_at = time.monotonic() + wait_seconds
    while not acquire_lock(client, key, owner, ttl_seconds):
        if time.monotonic() >= give_up_at:
            raise LockHeld(key)
        time.sleep(0.2)
    with held_lock(client, key, owner, ttl_seconds) as lost:
        yield lost
