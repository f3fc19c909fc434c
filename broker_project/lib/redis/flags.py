"""Switches in Redis: on with ``1``, ``true`` or a JSON object ``{"reason": …}``; off when absent or ``0``."""

from __future__ import annotations

import json
from dataclasses import dataclass

import redis

from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.keys import KeySpec

REASON_CHARACTERS = 500


@dataclass(frozen=True)
class Flag:
    is_on: bool
    reason: str = ""


OFF = Flag(False)


def parse_flag(value: str | None) -> Flag:
    """What a stored value means. Anything that is neither a known word nor an object is on: a stop switch
    that somebody set in an unknown way must not be ignored."""
    if value is None or value.strip().lower() in {"", "0", "false", "off", "no"}:
        return OFF
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return Flag(True)
    if isinstance(document, dict):
        return Flag(True, str(document.get("reason") or "")[:REASON_CHARACTERS])
    return Flag(bool(document))


def read_flag(spec: KeySpec, client: redis.Redis | None = None) -> Flag:
    value = (client or redis_client()).get(keyspace().key(spec))
    return parse_flag(None if value is None else str(value))


def is_flag_on(spec: KeySpec) -> bool:
    return read_flag(spec).is_on


def set_flag(spec: KeySpec, reason: str) -> None:
    document = {"reason": reason.strip()[:REASON_CHARACTERS]}
    redis_client().set(keyspace().key(spec), json.dumps(document, ensure_ascii=False))
    _forget_snapshot()


def clear_flag(spec: KeySpec) -> None:
    redis_client().delete(keyspace().key(spec))
    _forget_snapshot()


def _forget_snapshot() -> None:
    # Who switches a flag sees it switched at once in this process; the others follow within seconds.
    from broker_project.lib.config import dynamic as dynamic_config

    dynamic_config.forget()
