"""How many keys and bytes each component has, which key is its largest, and how its times to live are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import redis

from broker_project.redis_tools.scanning import KeyFacts, look_up, owner_of, scan_keys
from broker_project.redis_tools.ttl_rules import ttl_problem

UNKNOWN = "?"


@dataclass
class ComponentUsage:
    component: str
    keys: int = 0
    size_bytes: int = 0
    largest: str = ""
    largest_bytes: int = 0
    expiring: int = 0
    wrong_ttls: int = 0


@dataclass
class Usage:
    components: list[ComponentUsage]
    is_complete: bool  # False: ``max_keys`` came first, the figures are of a sample

    @property
    def keys(self) -> int:
        return sum(row.keys for row in self.components)

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.components)


def measure_usage(
    client: redis.Redis, batches: Iterable[list[bytes]] | None = None, max_keys: int | None = None
) -> Usage:
    """Figures of all our keys, or of the first ``max_keys`` that the walk meets."""
    rows: dict[str, ComponentUsage] = {}
    seen = 0
    for batch in scan_keys(client) if batches is None else batches:
        for facts in look_up(client, batch):
            count_key(rows, facts)
        seen += len(batch)
        if max_keys is not None and seen >= max_keys:
            return Usage(sorted_rows(rows), is_complete=False)
    return Usage(sorted_rows(rows), is_complete=True)


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
        row.largest, row.largest_bytes = facts.name, facts.size_bytes
