"""Names of Django's cache entries: inside the namespace, without the version number that Django would add."""

from __future__ import annotations


def make_key(key: str, key_prefix: str, version: int) -> str:
    return f"{key_prefix}:{key}"


def reverse_key(key: str) -> str:
    return key.split(":", 2)[2]
