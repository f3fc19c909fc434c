"""When we changed an issue's labels ourselves, noted in Redis for a while.

A listing that was asked for before such a moment, or a webhook that was on its way, may show the labels as
they were. The mark is a hint: without it a stale snapshot lasts until the next poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

import redis
from django.utils import timezone

from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client

log = get_logger(__name__)

MARK_SECONDS = 600  # longer than a listing of many pages takes


def _key(repository_id: int, number: int) -> str:
    return keyspace().key(k.TEMP, name=f"labels:{repository_id}:{number}")


def mark_labels_changed(repository_id: int, number: int) -> None:
    """Call it once GitHub has our change. The time is the real one, not that of the operation's beginning."""
    try:
        redis_client().set(_key(repository_id, number), timezone.now().timestamp(), ex=MARK_SECONDS)
    except redis.exceptions.RedisError as error:
        log.warning("label change not marked", issue=number, error=str(error))


def labels_changed_since(repository_id: int, numbers: Sequence[int], since: datetime) -> set[int]:
    """Those of the numbers that are marked with ``since`` or later."""
    if not numbers:
        return set()
    try:
        marks = cast("list[str | None]", redis_client().mget([_key(repository_id, n) for n in numbers]))
    except redis.exceptions.RedisError as error:
        log.warning("marks of label changes not read", error=str(error))
        return set()
    pairs = zip(numbers, marks, strict=True)
    return {number for number, mark in pairs if mark and float(mark) >= since.timestamp()}
