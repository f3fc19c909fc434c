"""Whether a key's time to live is what the table says: values in, an answer out."""

from __future__ import annotations

from broker_project.lib.keyspace import Keyspace, KeySpec, Life

DAY_SECONDS = 86400
SLACK_SECONDS = 5  # a TTL is set a moment before it is read, and rounded


def ttl_problem(names: Keyspace, spec: KeySpec, ttl_seconds: int | None) -> str:
    """Empty when all is well. ``ttl_seconds`` None: the key lives for ever."""
    if spec.ttl is Life.OPTIONAL:
        return ""
    if spec.ttl is Life.FOREVER:
        return "" if ttl_seconds is None else f"expires in {ttl_seconds} s, should not expire"
    if ttl_seconds is None:
        return "never expires, should"
    if spec.ttl is Life.LIMITED:
        return ""
    longest = DAY_SECONDS if spec.ttl is Life.MIDNIGHT else names.ttl_seconds(spec)
    if ttl_seconds > longest + SLACK_SECONDS:
        return f"expires in {ttl_seconds} s, should within {longest} s"
    return ""
