"""Django's caches in Redis: their keys inside the namespace, their connections in pools of their own."""

from __future__ import annotations


def location(redis_url: str, alias: str) -> str:
    """The address of one cache. django-redis keeps one pool a URL, whatever the options: without a name
    of its own in the URL, the first cache to connect would decide for all whether answers are text or
    bytes."""
    return f"{redis_url}{'&' if '?' in redis_url else '?'}client_name=broker-{alias}"


def make_key(key: str, key_prefix: str, version: int) -> str:
    """Without the version number that Django would add."""
    return f"{key_prefix}:{key}"


def reverse_key(key: str) -> str:
    return key.split(":", 2)[2]
