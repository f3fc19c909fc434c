"""Scan our keys, and only ours, without blocking the server: SCAN in batches, facts in pipelines.

Everything here works on bytes, since a key or a value may be anything. No more than a batch is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis
from django.apps import apps

from broker_project.lib.kept import Kept
from broker_project.lib.redaction import HIDDEN
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.keys import CLEANUP_PATTERNS, KeySpec
from broker_project.lib.redis.keyspace import Keyspace, glob_escape

SESSION_KEY_CHARACTERS = 32  # Django's
SCAN_COUNT = 500  # keys that the server looks at in one step


class BadPattern(ValueError):
    """A pattern or a key that cannot be one of ours. The text is a sentence."""


def _read_keyspaces(last: list[Keyspace] | None) -> list[Keyspace]:
    own = keyspace()
    repositories = apps.get_model("tasks", "Repository")._default_manager
    others = repositories.exclude(namespace=own.names.namespace).values_list("namespace", flat=True)
    return [own, *(own.sibling(namespace) for namespace in others)]


_keyspaces = Kept(_read_keyspaces, seconds=5.0)  # asked for once a key


def all_keyspaces() -> list[Keyspace]:
    """The keyspaces of every repository that this installation knows, the configured one's first."""
    return _keyspaces.get()


def name_of(key: bytes) -> str:
    """A key as text; :func:`key_of` gives the same bytes back, even if they are not UTF-8."""
    return key.decode("utf-8", "surrogateescape")


def key_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def printable(name: str) -> str:
    """A key fit for a terminal or a page. A session's key is the log-in itself: its end is hidden."""
    spec = explain(name)
    if spec is not None and spec.is_sensitive:
        head, fixed, rest = name.partition(spec.pattern.partition("{")[0])
        name = head + fixed + rest[:-SESSION_KEY_CHARACTERS] + HIDDEN if fixed else HIDDEN
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


class Walk:
    """Our keys in batches; iterate once. With limits it may end early, and then ``is_complete`` is False.

    A key that moves while the server rehashes may come twice, as with every SCAN.
    """

    def __init__(
        self,
        client: redis.Redis,
        pattern: str | None = None,
        *,
        max_keys: int | None = None,
        max_calls: int | None = None,  # foreign keys cost steps, too
    ) -> None:
        self.client, self.pattern = client, pattern
        self.max_keys, self.max_calls = max_keys, max_calls
        self.is_complete = False

    def __iter__(self) -> Iterator[list[bytes]]:
        found = calls = 0
        for glob in globs_for(self.pattern):
            cursor = 0
            while True:
                cursor, keys = scan_step(self.client, glob, cursor)
                calls += 1
                found += len(keys)
                if keys:
                    yield keys
                if cursor == 0:
                    break
                if (self.max_keys and found >= self.max_keys) or (self.max_calls and calls >= self.max_calls):
                    return
        self.is_complete = True


def scan_step(client: redis.Redis, glob: str, cursor: int) -> tuple[int, list[bytes]]:
    cursor, keys = cast("tuple[int, list[bytes]]", client.scan(cursor, match=glob, count=SCAN_COUNT))
    return cursor, [key for key in keys if owner_of(name_of(key))]


@dataclass(frozen=True)
class Place:
    """A position in the scan over several globs, for the link to the next page. Written ``glob-cursor``."""

    glob: int = 0
    cursor: int = 0

    @classmethod
    def parse(cls, text: str) -> Place:
        """An invalid position is the beginning."""
        glob, _, cursor = text.partition("-")
        if glob.isdecimal() and cursor.isdecimal() and len(text) < 40:
            return cls(int(glob), int(cursor) % 2**64)
        return cls()

    def __str__(self) -> str:
        return f"{self.glob}-{self.cursor}"


def browse(
    client: redis.Redis, pattern: str | None, place: Place, *, wanted: int, max_calls: int
) -> tuple[list[bytes], Place | None]:
    """Keys from ``place`` on, ``wanted`` or some more, and the place to go on from (None: that was all)."""
    globs = globs_for(pattern)
    found: dict[bytes, None] = {}
    glob, cursor = place.glob, place.cursor
    for _ in range(max_calls):
        if glob >= len(globs):
            return list(found), None
        cursor, keys = scan_step(client, globs[glob], cursor)
        found.update(dict.fromkeys(keys))
        glob += cursor == 0
        if len(found) >= wanted:
            break
    return list(found), Place(glob, cursor) if glob < len(globs) else None


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
UNLINK_KEYS = 500


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


def cleanup_keys(client: redis.Redis) -> dict[str, int]:
    """Remove what the three patterns of seed 002 name, and nothing else; how many keys went, by pattern."""
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
        if len(batch) >= UNLINK_KEYS:
            count += client.unlink(*batch)
            batch = []
    return count + (client.unlink(*batch) if batch else 0)
