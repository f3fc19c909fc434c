"""What will go wrong and when: drawn from the seed alone, so that the same seed gives the same plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

MEAN_GAP_SECONDS = 2.0
STEADY_SECONDS = 65.0  # the supervisor forgives an ending after a minute; before that its pauses grow
# Parts are ended in the first part of the time only: in a process that lives on it shows what grows.
ENDINGS_SHARE = 0.5
SYSTEMS = ("github", "gemini", "mastodon", "football", "gcs", "feed")

# A soak: how often each comes, relative to the others.
WEIGHTS = {
    "outside-call": 14,
    "outside-refused": 2,
    "kill-web": 3,
    "end-web": 2,
    "kill-cluster": 2,
    "kill-worker": 2,
    "kill-mirin": 1,
    "kill-poller": 5,
    "kill-agent": 3,
    "redis-restarted": 2,
    "redis-flushed": 2,
    "redis-paused": 2,
    "database-restarted": 2,
    "webhook-again": 4,
    "admin-release": 3,
    "admin-park": 2,
    "admin-offer-again": 2,
    "admin-retry-item": 2,
    "admin-retry-match": 2,
}
ONLY_POSTGRES = {"database-restarted", "database-killed", "database-stopped"}
# What ends the same part; never twice within STEADY_SECONDS.
PARTS = {
    "kill-web": "web",
    "end-web": "web",
    "kill-cluster": "cluster",
    "kill-worker": "cluster",
    "kill-mirin": "mirin",
    "database-restarted": "database",
}

# A chaos run: one after another, each kind once before any comes again. From and to how many seconds it lasts;
# None: it is over at once.
CHAOS: dict[str, tuple[float, float] | None] = {
    "kill-web": None,
    "kill-cluster": None,
    "kill-worker": None,
    "kill-agent": None,
    "stop-web": (3, 12),
    "stop-cluster": (5, 15),
    "redis-restarted": None,
    "redis-flushed": None,
    "redis-paused": (3, 12),
    "redis-full": (4, 10),
    "database-killed": None,
    "database-stopped": (3, 12),
    "database-locked": (4, 15),
    "database-read-only": (4, 10),
    "disk-full": (4, 10),
    "outside-restarted": (1, 6),
    "outside-stopped": (4, 12),
    "outside-stalled": (4, 12),
    "outside-lying": (4, 10),
}
# What the stand-ins then do with every call: an order for the sandbox.
LIES: dict[str, dict[str, Any]] = {
    "fails": {"kind": "status", "status": 500},
    "refuses": {"kind": "status", "status": 403},
    "answers garbage": {"kind": "garbage"},
    "answers half": {"kind": "truncate"},
    "acts and hangs up": {"kind": "lose_answer"},
    "says yes and does nothing": {"kind": "status", "status": 200, "body": {"message": "all is well"}},
    "says there is nothing": {"kind": "status", "status": 200, "body": []},
}
CALM_SECONDS = (2.0, 4.0)  # between the recovery from one fault and the next


@dataclass(frozen=True)
class Planned:
    at: float  # seconds after the beginning
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.facts.items())])


def plan(seed: int, begin: float, end: float, *, is_postgres: bool = False) -> list[Planned]:
    """The faults of a soak between two moments, in their order."""
    random = Random(f"plan-{seed}")
    weights = {name: n for name, n in WEIGHTS.items() if is_postgres or name not in ONLY_POSTGRES}
    found: list[Planned] = []
    free_at: dict[str, float] = {}
    last_ending = begin + (end - begin) * ENDINGS_SHARE
    at = begin
    while (at := at + random.expovariate(1 / MEAN_GAP_SECONDS)) < end:
        possible = {
            name: n
            for name, n in weights.items()
            if name not in PARTS or (at < last_ending and free_at.get(PARTS[name], 0.0) <= at)
        }
        (name,) = random.choices(list(possible), list(possible.values()))
        if name in PARTS:
            free_at[PARTS[name]] = at + STEADY_SECONDS
        found.append(Planned(round(at, 2), name, facts_of(name, random)))
    return found


def chaos_plan(
    seed: int, begin: float, end: float, *, is_postgres: bool = False, skipped: Collection[str] = ()
) -> list[Planned]:
    """The faults of a chaos run, if nothing needed time to recover: each waits for the one before it."""
    random = Random(f"chaos-{seed}")
    possible = [name for name in CHAOS if name not in skipped and (is_postgres or name not in ONLY_POSTGRES)]
    found: list[Planned] = []
    at = begin
    while True:
        random.shuffle(possible)
        for name in possible:
            span = CHAOS[name]
            seconds = round(random.uniform(*span), 1) if span else 0.0
            facts: dict[str, Any] = {"seconds": seconds} if span else {}
            if name == "outside-lying":
                facts["lie"] = random.choice(list(LIES))
            if at >= end:
                return found
            found.append(Planned(round(at, 2), name, facts))
            at += seconds + random.uniform(*CALM_SECONDS)


def facts_of(name: str, random: Random) -> dict[str, Any]:
    if name == "outside-call":
        return {"system": random.choice(SYSTEMS), **outside_call(random)}
    if name in ("outside-refused", "redis-paused"):
        return {"seconds": round(random.uniform(1, 8), 1)}
    return {}


def outside_call(random: Random) -> dict[str, Any]:
    """An order for the sandbox: which of the next calls go wrong, and how."""
    order: dict[str, Any] = {"times": random.randint(1, 5), "skip": random.randint(0, 3)}
    kind = random.choice(("500", "503", "429", "drop", "lose_answer", "stall", "garbage", "truncate"))
    if not kind.isdigit():
        return {"kind": kind, **order, **({"seconds": 10} if kind == "stall" else {})}
    headers = {"headers": {"Retry-After": str(random.randint(1, 5))}} if kind in ("429", "503") else {}
    return {"kind": "status", "status": int(kind), **order, **headers}
