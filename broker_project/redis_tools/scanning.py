"""Walk over our keys, and only ours, without stopping the server: SCAN in batches, facts in pipelines.

Everything here works on bytes, since a key or a value may be anything. Nothing keeps more than a batch in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis
from django_redis import get_redis_connection

from broker_project.lib.keyspace import Keyspace, KeySpec, glob_escape
from broker_project.lib.stores import keyspace

SCAN_COUNT = 1000
BATCH_KEYS = 500


class BadPattern(ValueError):
    """A pattern or a key that cannot be one of ours. The text is a sentence."""


def all_keyspaces() -> list[Keyspace]:
    """The keyspaces of every repository that this installation serves."""
    return [keyspace()]


def raw_client() -> redis.Redis:
    """A client whose answers are bytes."""
    return cast(redis.Redis, get_redis_connection("default"))


def name_of(key: bytes) -> str:
    """A key as text; bytes that are no UTF-8 survive the way back (:func:`key_of`)."""
    return key.decode("utf-8", "surrogateescape")


def key_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def printable(name: str) -> str:
    """A key fit for a terminal or a page."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def owner_of(name: str) -> Keyspace | None:
    return next((names for names in all_keyspaces() if names.owns(name)), None)


def explain(name: str) -> KeySpec | None:
    return next((spec for names in all_keyspaces() if (spec := names.explain(name))), None)


def globs_for(pattern: str | None) -> list[str]:
    """Globs for SCAN. A pattern is full (it begins with a prefix of ours) or relative to every prefix."""
    spaces = all_keyspaces()
    if pattern is None:
        return unique(glob for names in spaces for glob in names.scan_patterns())
    if not pattern or not pattern.isprintable() or len(pattern) > 500:
        raise BadPattern("A pattern is one or more printable characters, for instance issue:*")
    if pattern.startswith(tuple(prefix for names in spaces for prefix in names.own_prefixes)):
        return [pattern]
    prefixes = unique(
        prefix for names in spaces for prefix in (f"{names.names.namespace}:", names.names.task_prefix)
    )
    return [glob_escape(prefix) + pattern for prefix in prefixes]


def unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def find_key(client: redis.Redis, given: str) -> bytes:
    """The existing key that ``given`` names, in full or without its prefix. Raises :class:`BadPattern`."""
    names = [given] if owner_of(given) else []
    names += [
        prefix + given
        for space in all_keyspaces()
        for prefix in (f"{space.names.namespace}:", space.names.task_prefix)
        if owner_of(prefix + given)
    ]
    for name in unique(names):
        if client.exists(key_of(name)):
            return key_of(name)
    raise BadPattern(f"There is no key {printable(given)[:200]} of ours.")


@dataclass
class Page:
    """Part of a walk: what was found, and where to go on (0: at the end)."""

    keys: list[bytes]
    cursor: int


def scan_page(client: redis.Redis, glob: str, cursor: int, *, wanted: int, max_calls: int) -> Page:
    """At least ``wanted`` keys of ours if ``max_calls`` steps bring that many; for pages with a "next"
    link.
    """
    found: dict[bytes, None] = {}
    for _ in range(max_calls):
        cursor, keys = cast("tuple[int, list[bytes]]", client.scan(cursor, match=glob, count=SCAN_COUNT))
        found.update((key, None) for key in keys if owner_of(name_of(key)))
        if cursor == 0 or len(found) >= wanted:
            break
    return Page(list(found), cursor)


def scan_keys(client: redis.Redis, pattern: str | None = None) -> Iterator[list[bytes]]:
    """Our keys in batches. A key that moves while the server rehashes may come twice, as with every SCAN."""
    batch: list[bytes] = []
    for glob in globs_for(pattern):
        for key in client.scan_iter(match=glob, count=SCAN_COUNT):
            if owner_of(name_of(key)):
                batch.append(key)
            if len(batch) >= BATCH_KEYS:
                yield batch
                batch = []
    if batch:
        yield batch


@dataclass(frozen=True)
class KeyFacts:
    key: bytes
    kind: str  # as Redis calls it; "none": gone since
    ttl_seconds: int | None  # None: lives for ever
    size_bytes: int

    @property
    def name(self) -> str:
        return name_of(self.key)


# One call for many keys costs the client a tenth of three commands a key; a portion is small enough to
# hold up the server's other callers for a millisecond or so only.
LOOK_UP = """
local found = {}
for place, key in ipairs(KEYS) do
  found[3 * place - 2] = redis.call('TYPE', key).ok
  found[3 * place - 1] = redis.call('TTL', key)
  found[3 * place] = redis.call('MEMORY', 'USAGE', key) or 0
end
return found
"""
LOOK_UP_KEYS = 200


def look_up(client: redis.Redis, keys: list[bytes]) -> list[KeyFacts]:
    """Type, time to live and memory of a batch; what has expired since is left out."""
    found = []
    for start in range(0, len(keys), LOOK_UP_KEYS):
        portion = keys[start : start + LOOK_UP_KEYS]
        answers = cast("list[Any]", client.eval(LOOK_UP, len(portion), *portion))
        for position, key in enumerate(portion):
            kind, ttl, size = answers[3 * position : 3 * position + 3]
            if kind != b"none":
                found.append(KeyFacts(key, kind.decode(), ttl if ttl >= 0 else None, size))
    return found
