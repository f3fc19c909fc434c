"""Settings and flags that change without a restart: read from Redis, with the configuration as the default.

Each process keeps one snapshot of all of them for ``FRESH_SECONDS``, so that no request pays a round trip of its own
and a change arrives everywhere within seconds. While Redis is away the last snapshot stays in force. A stored
value that is not a number or out of range is ignored with a warning, and ``manage.py keys check`` shows it.

With each new snapshot the log level follows ``flags:debug:enabled``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import redis
from django.conf import settings

from broker_project.lib.config.loader import Config
from broker_project.lib.kept import Kept
from broker_project.lib.logs import get_logger, set_log_level
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.flags import OFF, REASON_CHARACTERS, Flag, parse_flag
from broker_project.lib.redis.keys import KeySpec
from broker_project.lib.redis.keyspace import Keyspace

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
)
LONG_POLL_SECONDS = Setting("agent", "long_poll_seconds", 0, 600, lambda config: config.long_poll_seconds)
REVIEW_DELAY_MINUTES = Setting(
    "agent", "review_delay_minutes", 0, 1440, lambda config: config.review_delay_minutes
)
POLL_INTERVAL_SECONDS = Setting("poll", "interval_seconds", 10, 86400, lambda config: config.poll_seconds)
SETTINGS = {
    setting.title: setting
    for setting in (CLAUDE_TIMEOUT, LONG_POLL_SECONDS, REVIEW_DELAY_MINUTES, POLL_INTERVAL_SECONDS)
}


def setting_key(setting: Setting) -> str:
    return keyspace().key(k.CONFIG, system=setting.system, name=setting.name)


@dataclass(frozen=True)
class Snapshot:
    values: dict[str, int] = field(default_factory=dict)  # only what is stored and valid
    problems: dict[str, str] = field(default_factory=dict)
    maintenance: Flag = OFF
    debug: Flag = OFF
    is_redis_away: bool = False  # then the rest is from before


def load_snapshot() -> Snapshot:
    """Read everything now, in one round trip. Raises redis-py's errors."""
    keys = [setting_key(setting) for setting in SETTINGS.values()]
    keys += [keyspace().key(k.FLAG_MAINTENANCE), keyspace().key(k.FLAG_DEBUG)]
    *stored, maintenance, debug = cast("list[str | None]", redis_client().mget(keys))
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


def _read_again(last: Snapshot | None) -> Snapshot:
    last = last or Snapshot()
    try:
        found = load_snapshot()
    except redis.exceptions.RedisError as error:
        if not last.is_redis_away:
            log.warning("dynamic configuration not read", error=str(error))
        found = replace(last, is_redis_away=True)
    for title, problem in found.problems.items():
        if last.problems.get(title) != problem:
            log.warning("stored setting ignored", setting=title, problem=problem)
    set_log_level("DEBUG" if found.debug.is_on else settings.BROKER.log_level)
    return found


# A Redis that hangs holds up the one who asks it, and nobody who has an older snapshot.
_kept = Kept(_read_again, FRESH_SECONDS, usable_seconds=math.inf)


def expire_snapshot() -> None:
    """For those who changed something: the next reader of this process reads again."""
    _kept.expire()


def snapshot() -> Snapshot:
    """What is in force. Waits for Redis at most once in ``FRESH_SECONDS``, and never on an event loop."""
    latest = _kept.latest or Snapshot()
    if _kept.is_stale and (on_event_loop() or (latest.is_redis_away and _kept.is_usable)):
        _kept.refresh_aside()
        return latest
    return _kept.get()


def on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def value_of(setting: Setting, found: Snapshot | None = None) -> int:
    stored = (found or snapshot()).values
    return stored.get(setting.title, setting.default(settings.BROKER))


def maintenance() -> Flag:
    return snapshot().maintenance


def apply_debug_flag() -> None:
    """Bring this process's log level in line with the flag. At most one round trip in ``FRESH_SECONDS``.

    Every reader of a setting does the same by the way; a process that reads none calls this now and then.
    """
    snapshot()


def set_flag(spec: KeySpec, reason: str) -> None:
    document = {"reason": reason.strip()[:REASON_CHARACTERS]}
    redis_client().set(keyspace().key(spec), json.dumps(document, ensure_ascii=False))
    expire_snapshot()


def clear_flag(spec: KeySpec) -> None:
    redis_client().delete(keyspace().key(spec))
    expire_snapshot()


def store_setting(setting: Setting, text: str) -> int:
    """Store a value after checking it. Raises ValueError with a sentence."""
    value = setting.parse(text)
    redis_client().set(setting_key(setting), str(value))
    expire_snapshot()
    return value


def clear_setting(setting: Setting) -> None:
    redis_client().delete(setting_key(setting))
    expire_snapshot()


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
