"""How many keys and bytes each component has, which key is its largest, and how its times to live are."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from broker_project.ops.redis_console.check import ttl_problem
from broker_project.ops.redis_console.scanning import KeyFacts, Walk, look_up, owner_of, printable

UNKNOWN = "?"


@dataclass
class ComponentUsage:
    component: str
    keys: int = 0
    size_bytes: int = 0
    largest: str = ""  # fit to be shown
    largest_bytes: int = 0
    expiring: int = 0
    wrong_ttls: int = 0


@dataclass
class Usage:
    components: list[ComponentUsage]
    is_complete: bool  # False: the walk was limited, the figures are of a sample

    @property
    def keys(self) -> int:
        return sum(row.keys for row in self.components)

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.components)


def measure_usage(client: redis.Redis, walk: Walk | None = None) -> Usage:
    """Figures of all our keys, or of those that a limited walk meets."""
    walk = walk or Walk(client)
    rows: dict[str, ComponentUsage] = {}
    for batch in walk:
        for facts in look_up(client, batch):
            count_key(rows, facts)
    return Usage(sorted_rows(rows), walk.is_complete)


def sorted_rows(rows: dict[str, ComponentUsage]) -> list[ComponentUsage]:
    return sorted(rows.values(), key=lambda row: (-row.size_bytes, row.component))


def count_key(rows: dict[str, ComponentUsage], facts: KeyFacts) -> None:
    names = owner_of(facts.name)
    spec = names.explain(facts.name) if names else None
    component = spec.component if spec else UNKNOWN
    row = rows.setdefault(component, ComponentUsage(component))
    row.keys += 1
    row.size_bytes += facts.size_bytes
    row.expiring += facts.ttl_seconds is not None
    if names and spec and ttl_problem(names, spec, facts.ttl_seconds):
        row.wrong_ttls += 1
    if facts.size_bytes > row.largest_bytes:
        row.largest, row.largest_bytes = printable(facts.name), facts.size_bytes
