"""What grows: memory, file descriptors and threads of each process, and keys that never end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil
import redis

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keys import KeySpec, Life
from broker_project.lib.redis.keyspace import Keyspace

MEBIBYTE = 1024 * 1024
WARM_SECONDS = 30.0  # after its start a process still loads what it needs
MAY_LIVE_FOREVER = (Life.FOREVER, Life.OPTIONAL)
OF_OPEN_ISSUES = (k.ISSUE, k.ISSUE_STATUS, k.ISSUE_METADATA, k.REVIEW_DETECTED, k.REVIEW_DELAY)
ROLES = {
    "manage.py broker": "supervisor",
    "supervisor.web": "web",
    "qcluster": "cluster",
    "manage.py mirin": "mirin",
}


@dataclass(frozen=True)
class Reading:
    at: float
    rss: int
    files: int
    threads: int


@dataclass
class Lifetime:
    """One process from its first reading to its last; growth is counted from when it was warm."""

    role: str
    pid: int
    started_at: float
    readings: int = 0
    warm: Reading | None = None
    last: Reading | None = None
    highest_rss: int = 0

    def add(self, reading: Reading, warm_seconds: float = WARM_SECONDS) -> None:
        self.readings += 1
        self.last = reading
        self.highest_rss = max(self.highest_rss, reading.rss)
        if self.warm is None and reading.at - self.started_at >= warm_seconds:
            self.warm = reading

    @property
    def seconds(self) -> float:
        return self.last.at - self.started_at if self.last else 0.0

    @property
    def growth(self) -> int:
        """Bytes since it was warm."""
        return self.last.rss - self.warm.rss if self.last and self.warm else 0


@dataclass
class Gauges:
    lives: dict[int, Lifetime] = field(default_factory=dict)

    def read(self, processes: Iterable[tuple[str, psutil.Process]]) -> None:
        now = time.time()
        for role, process in processes:
            try:
                with process.oneshot():
                    reading = Reading(
                        now, process.memory_info().rss, process.num_fds(), process.num_threads()
                    )
                    started_at = process.create_time()
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            self.lives.setdefault(process.pid, Lifetime(role, process.pid, started_at)).add(reading)

    def longest(self) -> list[Lifetime]:
        """The longest life of each role: the one in which something could grow."""
        found: dict[str, Lifetime] = {}
        for life in self.lives.values():
            if life.role not in found or life.seconds > found[life.role].seconds:
                found[life.role] = life
        return list(found.values())

    def starts(self) -> Counter[str]:
        return Counter(life.role for life in self.lives.values())


def role_of(process: psutil.Process) -> str | None:
    """What a process of ours is for; None if it has gone."""
    try:
        words, parent = " ".join(process.cmdline()), process.parent()
        if words and parent is not None and words == " ".join(parent.cmdline()):
            return f"{role_of(parent)} child"
    except psutil.NoSuchProcess:
        return None
    return next((role for part, role in ROLES.items() if part in words), None)


def zombies_among(processes: Iterable[psutil.Process]) -> int:
    count = 0
    for process in processes:
        try:
            count += process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
    return count


@dataclass(frozen=True)
class EternalKeys:
    """Keys without an end, by the entry of the registry behind them."""

    pattern: str
    count: int
    is_allowed: bool


def eternal_keys(names: Iterable[tuple[str, int]], keys: Keyspace) -> list[EternalKeys]:
    """From names and their time to live (-1: none). What no entry explains is not allowed."""
    found: Counter[KeySpec | str] = Counter()
    for name, ttl in names:
        if ttl == -1:
            found[keys.explain(name) or f"unknown: {name}"] += 1
    rows = [
        EternalKeys(entry, count, False)
        if isinstance(entry, str)
        else EternalKeys(keys.pattern(entry), count, entry.ttl in MAY_LIVE_FOREVER)
        for entry, count in found.items()
    ]
    return sorted(rows, key=lambda row: (row.is_allowed, -row.count))


def keys_of_closed_issues(names: Iterable[tuple[str, int]], keys: Keyspace, numbers: set[int]) -> list[str]:
    """Keys without an end that are about none of these (open) issues: they would stay for ever."""
    return sorted(
        name
        for name, ttl in names
        if ttl == -1
        and keys.explain(name) in OF_OPEN_ISSUES
        and int(name.replace("_", ":").rpartition(":")[2]) not in numbers
    )


def names_with_ttl(store: redis.Redis) -> list[tuple[str, int]]:
    return [(str(name), int(store.ttl(name))) for name in store.scan_iter(count=1000)]
