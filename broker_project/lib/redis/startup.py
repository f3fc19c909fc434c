"""The Redis that a process works with, found before anything else is done: the given one, or the embedded one."""

from __future__ import annotations

import atexit
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis
import redis.sentinel
from django.conf import settings
from django.core.cache import caches
from django.core.management.base import CommandError

from broker_project.lib.logs import get_logger
from broker_project.lib.redis.client import connect
from broker_project.lib.redis.django_caches import location
from broker_project.lib.redis.embedded_server import OLDEST_VERSION, EmbeddedRedis, RedisUnavailable

log = get_logger(__name__)

KEEPER_SECONDS = 2.0


@contextmanager
def ensure_redis() -> Iterator[None]:
    """A Redis answers while the body runs. Raises :class:`CommandError` with one sentence if none can be had.

    A given ``REDIS_URL`` is only checked. The embedded one is used if it runs, else started for the body.
    """
    try:
        if settings.BROKER.redis_url:
            check_redis(settings.BROKER.redis_url)
            yield
            return
        embedded = EmbeddedRedis(settings.BROKER.var)
        embedded.ensure()
    except RedisUnavailable as error:
        raise CommandError(str(error)) from None
    point_to(embedded.url)
    try:
        yield
    finally:
        embedded.stop()


def check_redis(url: str) -> None:
    """Raise :class:`RedisUnavailable` unless the Redis at ``url`` answers, lets us in and is new enough."""
    client = connect(url, socket_connect_timeout=3, socket_timeout=5, decode_responses=True)
    try:
        client.ping()
        version = str(client.info("server").get("redis_version", ""))
    except (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError):
        raise RedisUnavailable("REDIS_URL: that Redis refuses this user or password.") from None
    except redis.exceptions.NoPermissionError:
        return  # managed services refuse the question, and those are new enough
    except redis.exceptions.ResponseError as error:
        raise RedisUnavailable(f"REDIS_URL: that Redis refuses us: {error}.") from None
    except redis.sentinel.MasterNotFoundError:
        raise RedisUnavailable("REDIS_URL: no sentinel there knows a master of that name.") from None
    except (redis.exceptions.RedisError, OSError) as error:
        raise RedisUnavailable(f"REDIS_URL: no Redis answers there: {reason_of(error)}.") from None
    finally:
        client.close()
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < OLDEST_VERSION:
        raise RedisUnavailable(f"REDIS_URL: that Redis is {version}, and Broker needs 6.0 or newer.")


def reason_of(error: Exception) -> str:
    return str(error).strip().rstrip(".").splitlines()[0][:200] or type(error).__name__


def point_to(url: str) -> None:
    """Make this process use ``url``: the embedded Redis may have got another port since the settings were read."""
    if url == settings.REDIS_URL:
        return
    settings.REDIS_URL = url
    for alias, cache in settings.CACHES.items():
        cache["LOCATION"] = [location(url, alias)]
        # The connections of this thread still have the old address.
        if hasattr(caches._connections, alias):  # type: ignore[attr-defined]
            del caches[alias]


def start_embedded_redis_for_this_process() -> None:
    """For a server without supervisor and without ``REDIS_URL``: a Redis until the process ends.

    Whichever process of this installation started it may end first; a thread here then starts it again.
    """
    if settings.BROKER.redis_url:
        return
    embedded = EmbeddedRedis(settings.BROKER.var)
    first_try, stop = threading.Event(), threading.Event()
    problems: list[str] = []

    # The thread that starts the child must live as long as the child: so it is this one and not the caller's.
    def keep() -> None:
        while not stop.is_set():
            try:
                if embedded.ensure() and first_try.is_set():
                    log.warning("embedded Redis started again")
            except RedisUnavailable as error:
                problems.append(str(error))
                log.error("embedded Redis is down", error=str(error))
            first_try.set()
            stop.wait(KEEPER_SECONDS)
        embedded.stop()

    keeper = threading.Thread(target=keep, name="embedded-redis", daemon=True)
    keeper.start()
    first_try.wait()
    if problems:
        sys.exit(f"Broker cannot start: {problems[0]}")
    point_to(embedded.url)

    def end() -> None:
        stop.set()
        keeper.join()

    atexit.register(end)
