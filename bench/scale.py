"""How much of everything: the full run, and a quick one that prints the same table from smaller numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    name: str
    rounds: int
    round_seconds: float
    connections: int
    few_issues: int
    many_issues: int
    agents: int  # that the database knows
    offered: int  # of the open issues, on offer to the agents of the bench
    assignments: int  # a round
    counted: int  # operations whose cost is counted, one at a time
    heartbeat_leases: int
    heartbeat_window_seconds: float
    waiting_agents: int
    idle_seconds: float
    wakes: int
    herd: int
    refreshed_issues: int
    feed_items: int
    feed_rounds: int
    feed_rows_few: int
    feed_rows_many: int
    feed_claims: int
    matches: tuple[int, ...]
    page_items: int
    page_assignments: int
    is_quick: bool = False


FULL = Scale(
    name="full",
    rounds=7,
    round_seconds=1.5,
    connections=16,
    few_issues=100,
    many_issues=100_000,
    agents=8_000,
    offered=90,
    assignments=90,
    counted=20,
    heartbeat_leases=40,
    heartbeat_window_seconds=63.0,
    waiting_agents=5_000,
    idle_seconds=10.0,
    wakes=100,
    herd=5_000,
    refreshed_issues=10_000,
    feed_items=10_000,
    feed_rounds=5,
    feed_rows_few=1_000,
    feed_rows_many=1_000_000,
    feed_claims=100,
    matches=(5, 20, 50),
    page_items=1_000_000,
    page_assignments=100_000,
)

QUICK = Scale(
    name="quick",
    rounds=3,
    round_seconds=0.3,
    connections=16,
    few_issues=100,
    many_issues=2_000,
    agents=500,
    offered=30,
    assignments=30,
    counted=7,
    heartbeat_leases=10,
    heartbeat_window_seconds=1.0,
    waiting_agents=500,
    idle_seconds=1.0,
    wakes=15,
    herd=100,
    refreshed_issues=1_000,
    feed_items=2_000,
    feed_rounds=3,
    feed_rows_few=1_000,
    feed_rows_many=50_000,
    feed_claims=30,
    matches=(2, 5),
    page_items=5_000,
    page_assignments=1_000,
    is_quick=True,
)
