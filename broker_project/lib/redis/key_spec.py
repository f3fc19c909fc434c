"""The shape of one entry of the key table, and what the placeholders in a key's name may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property

MEBIBYTE = 1024 * 1024


class Kind(StrEnum):
    STRING = "string"
    HASH = "hash"
    SET = "set"
    ZSET = "zset"
    LIST = "list"
    CHANNEL = "channel"


class Life(StrEnum):
    """Times to live that are decided elsewhere than in the table."""

    FOREVER = "none"
    MIDNIGHT = "local midnight"
    LIMITED = "some"  # any, but never none: what nobody renews must go away
    OPTIONAL = "any or none"


# What each placeholder of a pattern may hold. Only the last four may hold a colon, and they come last in
# their patterns; so two different sets of values never give the same key.
FIELD_EXPRESSIONS = {
    "number": r"[1-9][0-9]{0,17}",
    "pull": r"[1-9][0-9]{0,17}",
    "agent": r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}",
    "process": r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}",
    "priority": r"high|normal|low",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "name": r"[^\x00-\x1f\x7f]{1,500}",
    "type": r"[^\x00-\x1f\x7f]{1,200}",
    "label": r"[^\x00-\x1f\x7f]{1,200}",
    "role": r"[^\x00-\x1f\x7f]{1,200}",
}
OTHER_FIELD = r"[^:\s\x00-\x1f\x7f]{1,200}"


@dataclass(frozen=True)
class KeySpec:
    """One row of the table. ``ttl`` is seconds, the name of an adjustable time, or a :class:`Life`."""

    name: str
    pattern: str
    kind: Kind
    ttl: int | str | Life
    writer: str
    purpose: str
    seed: str = "002"
    family: str = ""  # the entry of ``keyPatterns`` or ``channels`` that can rename it
    with_task_prefix: bool = False
    is_json: bool = False
    is_sensitive: bool = False  # its value is never shown, only its size
    max_bytes: int = MEBIBYTE  # more than this and ``keys check`` says so

    @property
    def component(self) -> str:
        return re.split(r"[:{]", self.pattern, maxsplit=1)[0].rstrip("_")

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.pattern))


class BadKeyField(ValueError):
    """A value that may not be part of a key."""


@cache
def field_expression(name: str) -> re.Pattern[str]:
    return re.compile(FIELD_EXPRESSIONS.get(name, OTHER_FIELD))


def glob_escape(text: str) -> str:
    return "".join("\\" + char if char in "[]?*\\" else char for char in text)
