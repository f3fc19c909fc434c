"""Time that passes at once: everything that leases, claims, locks and caches are judged by becomes older."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import redis

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from tests.faults.records import Records

# Times that leases, claims and schedules are judged by; aged together they are an hour that has passed.
TIMES = {
    "tasks_assignment": ("created_at", "started_at", "last_heartbeat_at", "ended_at"),
    "tasks_issue": ("review_detected_at",),
    "feeds_feed": ("last_fetch_at", "next_fetch_at"),
    "feeds_itemlease": ("claimed_at", "expires_at"),
    "items": ("last_checked_at",),
    "fixtures_matchlease": ("claimed_at", "expires_at"),
    "broker_pollerrun": ("started_at", "finished_at"),
}


def pass_time(records: Records, store: redis.Redis, seconds: float) -> None:
    """So much later, as far as leases, claims, locks and caches can tell."""
    for table, columns in TIMES.items():
        for column in columns:
            records.shift(table, column, seconds)
    for pk, first, last in records.rows(
        "SELECT fixture_id, first_attempt_at, last_attempt_at FROM fixture_status"
    ):
        records.rows(
            "UPDATE fixture_status SET first_attempt_at = ?, last_attempt_at = ? WHERE fixture_id = ?",
            *(_earlier(first, seconds), _earlier(last, seconds), pk),
        )
    for key in list(store.scan_iter()):
        left = store.pttl(key)
        if left > 0 and not store.pexpire(key, max(1, int(left - seconds * 1000))):
            continue
    claimed = Keyspace(RedisNames()).key(k.INDEX_CLAIMED)
    found: Any = store.zrange(claimed, 0, -1, withscores=True)
    for number, score in found:
        store.zadd(claimed, {number: float(score) - seconds})


def _earlier(text: str | None, seconds: float) -> str | None:
    return None if text is None else (datetime.fromisoformat(text) - timedelta(seconds=seconds)).isoformat()
