"""Removes what the three patterns of seed 002 name, and nothing else."""

from __future__ import annotations

import redis

from broker_project.lib.redis.keys import CLEANUP_PATTERNS
from broker_project.lib.redis.keyspace import glob_escape
from broker_project.ops.redis_console.scanning import SCAN_COUNT, all_keyspaces

BATCH_KEYS = 500


def cleanup_keys(client: redis.Redis) -> dict[str, int]:
    """How many keys went, by pattern. The server frees the memory in the background."""
    removed: dict[str, int] = {}
    for names in all_keyspaces():
        for pattern in CLEANUP_PATTERNS:
            glob = f"{glob_escape(names.names.namespace)}:{pattern}"
            removed[pattern] = removed.get(pattern, 0) + unlink_matching(client, glob)
    return removed


def unlink_matching(client: redis.Redis, glob: str) -> int:
    count = 0
    batch: list[bytes] = []
    for key in client.scan_iter(match=glob, count=SCAN_COUNT):
        batch.append(key)
        if len(batch) >= BATCH_KEYS:
            count += client.unlink(*batch)
            batch = []
    return count + (client.unlink(*batch) if batch else 0)
