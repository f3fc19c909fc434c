"""Settings and switches that change without a restart: read from Redis, with the configuration as the
default.

One snapshot a process holds every value. It is read again when it is older than ``FRESH_SECONDS``, by one
caller at a time, so that no request pays a round trip of its own and a change arrives everywhere within
seconds. While Redis is away the last snapshot stays in force. A stored value that is no number or out of
range is ignored with a warning, and ``manage.py keys check`` shows it.

With each new snapshot the log level follows ``flags:debug:enabled``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import redis
from django.conf import settings

from broker_project.lib.config.loader import Config
from broker_project.lib.logs import get_logger, set_log_level
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.flags import OFF, Flag, parse_flag
from broker_project.lib.redis.keys import Keyspace

log = get_logger(__name__)

FRESH_SECONDS = 2.0
RATE_LIMIT_SECONDS = 7200  # GitHub's windows are an hour long


@dataclass(frozen=True)
class Setting:
    """One adjustable number: where it is stored, what it may be, and what holds while nothing is stored."""

    system: str
    name: str
    low: int
    high: int
    default: Callable[[Config], int]
    unit: str
    purpose: str

    @property
    def title(self) -> str:
        return f"{self.system}:{self.name}"

    def parse(self, text: str) -> int:
        """Raises ValueError with a sentence."""
        text = text.strip()
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ValueError(f"{self.title} must be a whole number, not {text[:40]!r}.")
        if not self.low <= int(text) <= self.high:
            raise ValueError(f"{self.title} must be from {self.low} to {self.high}, not {text}.")
        return int(text)


CLAUDE_TIMEOUT = Setting(
    "claude",
    "timeout",
    1,
    86400,
    lambda config: Keyspace(config.redis_names).ttl_seconds(k.PROCESS_HEARTBEAT),
    "seconds",
    "how long an agent may be silent before its task counts as lost",
)
LONG_POLL_SECONDS = Setting(
    "agent",
    "long_poll_seconds",
    0,
    600,
    lambda config: config.long_poll_seconds,
    "seconds",
    "how long request-task waits when the agent names no time",
)
REVIEW_DELAY_MINUTES = Setting(
    "agent",
    "review_delay_minutes",
    0,
    1440,
    lambda config: config.review_delay_minutes,
    "minutes",
    "how long an issue rests under needs-review before its review is offered",
)
POLL_INTERVAL_SECONDS = Setting(
    "poll",
    "interval_seconds",
    10,
    86400,
    lambda config: config.poll_seconds,
    "seconds",
    "how often the open issues are fetched from GitHub",
)
SETTINGS = {
    setting.title: setting
    for setting in (CLAUDE_TIMEOUT, LONG_POLL_SECONDS, REVIEW_DELAY_MINUTES, POLL_INTERVAL_SECONDS)
}


def setting_key(setting: Setting) -> str:
    return keyspace().key(k.CONFIG, system=setting.system, name=setting.name)


@dataclass(frozen=True)
class Snapshot:
    values: dict[str, int] = field(default_factory=dict)  # only what is stored and good
    problems: dict[str, str] = field(default_factory=dict)
    maintenance: Flag = OFF
    debug: Flag = OFF


def load_snapshot() -> Snapshot:
    """Read everything now, in one round trip. Raises redis-py's errors."""
    keys = [setting_key(setting) for setting in SETTINGS.values()]
    keys += [keyspace().key(k.FLAG_MAINTENANCE), keyspace().key(k.FLAG_DEBUG)]
    answers = cast("list[str | None]", redis_client().mget(keys))
    *stored, maintenance, debug = answers
    values: dict[str, int] = {}
    problems: dict[str, str] = {}
    for setting, text in zip(SETTINGS.values(), stored, strict=True):
        if text is None:
            continue
        try:
            values[setting.title] = setting.parse(text)
        except ValueError as error:
            problems[setting.title] = str(error)
    return Snapshot(values, problems, parse_flag(maintenance), parse_flag(debug))


class _Cache:
    def __init__(self) -> None:
        self.refreshing = threading.Lock()
        self.snapshot: Snapshot | None = None
        self.checked_at = float("-inf")  # monotonic
        self.redis_is_away = False
        self.warned: dict[str, str] = {}

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self.checked_at >= FRESH_SECONDS

    def refresh(self) -> None:
        """Read again unless somebody else is at it; who comes second while there is a snapshot does not
        wait.
        """
        if not self.refreshing.acquire(blocking=self.snapshot is None):
            return
        try:
            if not self.is_stale:
                return
            try:
                self.snapshot = load_snapshot()
                self.redis_is_away = False
            except redis.exceptions.RedisError as error:
                self.snapshot = self.snapshot or Snapshot()
                if not self.redis_is_away:
                    log.warning("dynamic configuration not read", error=str(error))
                self.redis_is_away = True
            self.checked_at = time.monotonic()
            self._announce(self.snapshot)
        finally:
            self.refreshing.release()

    def _announce(self, snapshot: Snapshot) -> None:
        for title, problem in snapshot.problems.items():
            if self.warned.get(title) != problem:
                log.warning("stored setting ignored", setting=title, problem=problem)
        self.warned = dict(snapshot.problems)
        set_log_level("DEBUG" if snapshot.debug.is_on else settings.BROKER.log_level)

    def refresh_aside(self) -> None:
        if not self.refreshing.locked():
            threading.Thread(target=self.refresh, name="dynamic-config", daemon=True).start()


_cache = _Cache()


def forget() -> None:
    """Distrust the snapshot: the next reader of this process reads again. For those who changed something."""
    global _cache
    fresh = _Cache()
    fresh.snapshot, fresh.warned = _cache.snapshot, _cache.warned
    _cache = fresh


# A child that was forked while another thread held the lock would wait for ever.
os.register_at_fork(after_in_child=forget)


def snapshot() -> Snapshot:
    """What is in force. Waits for Redis at most once in ``FRESH_SECONDS``; on an event loop it never
    waits and answers with what it has (:func:`snapshot_async` is for there)."""
    cache = _cache
    if cache.is_stale:
        # A Redis that hangs must not hold up every caller for its time-out again.
        if cache.redis_is_away or on_event_loop():
            cache.refresh_aside()
        else:
            cache.refresh()
    return cache.snapshot or Snapshot()


async def snapshot_async() -> Snapshot:
    cache = _cache
    if cache.is_stale:
        if cache.redis_is_away:
            cache.refresh_aside()
        else:
            await asyncio.to_thread(cache.refresh)
    return cache.snapshot or Snapshot()


def on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def value_of(setting: Setting, found: Snapshot | None = None) -> int:
    stored = (found or snapshot()).values
    return stored.get(setting.title, setting.default(settings.BROKER))


async def value_of_async(setting: Setting) -> int:
    return value_of(setting, await snapshot_async())


def maintenance() -> Flag:
    return snapshot().maintenance


async def maintenance_async() -> Flag:
    return (await snapshot_async()).maintenance


def apply_debug_flag() -> None:
    """Bring this process's log level in line with the flag. Cheap: at most one round trip in
    ``FRESH_SECONDS``.

    Every reader of a setting does the same by the way; a process that reads none calls this now and then.
    """
    snapshot()


def store_setting(setting: Setting, text: str) -> int:
    """Store a value after checking it. Raises ValueError with a sentence."""
    value = setting.parse(text)
    redis_client().set(setting_key(setting), str(value))
    forget()
    return value


def clear_setting(setting: Setting) -> None:
    redis_client().delete(setting_key(setting))
    forget()


@dataclass(frozen=True)
class RateLimit:
    limit: int
    remaining: int
    reset_at: dt.datetime


def record_rate_limit(
    limit: int, remaining: int, reset_at: dt.datetime, names: Keyspace | None = None
) -> None:
    """Note what GitHub said about our budget. Failing to note it must not fail the call that brought it."""
    document = {"limit": limit, "remaining": remaining, "reset": int(reset_at.timestamp())}
    key = (names or keyspace()).key(k.CONFIG_GITHUB_RATELIMIT)
    try:
        redis_client().set(key, json.dumps(document), ex=RATE_LIMIT_SECONDS)
    except redis.exceptions.RedisError as error:
        log.warning("rate limit not recorded", error=str(error))


def read_rate_limit(names: Keyspace | None = None) -> RateLimit | None:
    """The last known budget. None: not known, or what is stored makes no sense (``keys check`` shows it)."""
    text = redis_client().get((names or keyspace()).key(k.CONFIG_GITHUB_RATELIMIT))
    return parse_rate_limit(text) if isinstance(text, str) else None


def parse_rate_limit(text: str) -> RateLimit | None:
    try:
        document = json.loads(text)
        reset_at = dt.datetime.fromtimestamp(int(document["reset"]), dt.UTC)
        return RateLimit(int(document["limit"]), int(document["remaining"]), reset_at)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None
