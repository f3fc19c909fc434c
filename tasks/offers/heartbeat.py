"""How long a lease lives, and what a heartbeat does in Redis."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from broker_project.lib.config.dynamic import CLAUDE_TIMEOUT, value_of
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keyspace import Keyspace
from tasks.lifecycle import process_id
from tasks.offers.index import load_script

HEARTBEAT = load_script("heartbeat")
SAVE_SECONDS = 60  # between two heartbeats that the row hears of


def lease_seconds() -> int:
    return value_of(CLAUDE_TIMEOUT)


def lease_expires_at(last_heartbeat_at: datetime) -> datetime:
    return last_heartbeat_at + timedelta(seconds=lease_seconds())


def heartbeat_arguments(
    keys: Keyspace, assignment_id: int, agent: str, number: int, progress: str, now: datetime
) -> list[Any]:
    """Number of keys, keys and arguments of ``heartbeat.lua``."""
    return [
        3,
        keys.key(k.TASK_INFO, id=assignment_id),
        keys.key(k.PROCESS_HEARTBEAT, process=process_id(number, agent)),
        keys.key(k.AGENT_CURRENT_TASK, agent=agent),
        agent,
        now.isoformat(),
        now.timestamp(),
        lease_seconds(),
        keys.ttl_seconds(k.AGENT_CURRENT_TASK),
        redact(progress) if progress else "",
        # The row decides who is lost, so it hears of a heartbeat well within a lease, however short that is.
        min(SAVE_SECONDS, lease_seconds() // 3),
        keys.ttl_seconds(k.TASK_INFO),
    ]
