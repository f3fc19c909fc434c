"""Every Redis key of the application: one table, and the only place where a key is put together.

A :class:`KeySpec` says what a key is called, what it holds, how long it lives, who writes it and what for.
``Keyspace.key(SPEC, number=7)`` builds a name; ``Keyspace.explain(name)`` finds the entry behind a name. The page
in the admin, ``manage.py keys`` and the code all read this table.

Names are ``{namespace}:…`` (seed 002) or ``{task prefix}…`` (seed 000). Namespace, patterns, channels and times to
live can be changed by settings and by the JSON file of seed 002 (:mod:`broker_project.lib.keyspace_config`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


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
    OPTIONAL = "any or none"


HEARTBEAT_SECONDS = 1800
TEMP_SECONDS = 3600
STATS_SECONDS = 7 * 86400
SESSION_SECONDS = 30 * 86400
ISSUE_LOCK_SECONDS = 600
AGENT_TASK_SECONDS = 3600
CANDIDATE_SECONDS = 86400


@dataclass(frozen=True)
class KeySpec:
    """One row of the table. ``ttl`` is seconds, the name of an adjustable time to live, or a :class:`Life`."""

    name: str
    pattern: str
    kind: Kind
    ttl: int | str | Life
    writer: str
    purpose: str
    seed: str = "002"
    family: str = ""  # the entry of ``keyPatterns`` or ``channels`` that can rename it
    with_task_prefix: bool = False

    @property
    def component(self) -> str:
        return re.split(r"[:_{]", self.pattern, maxsplit=1)[0]

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.pattern))


REGISTRY: dict[str, KeySpec] = {}


def _spec(
    name: str, pattern: str, kind: Kind, ttl: int | str | Life, writer: str, purpose: str, **rest: str | bool
) -> KeySpec:
    spec = KeySpec(name, pattern, kind, ttl, writer, purpose, **rest)  # type: ignore[arg-type]
    if name in REGISTRY:
        raise ValueError(f"the key {name} is listed twice")
    REGISTRY[name] = spec
    return spec


def _task(name: str, pattern: str, kind: Kind, ttl: int | str | Life, writer: str, purpose: str) -> KeySpec:
    seed = "001" if name in {"open_issues", "review_delay"} else "000"
    return _spec(name, pattern, kind, ttl, writer, purpose, seed=seed, with_task_prefix=True)


# Seed 000 and 001, behind the task prefix.
ISSUE = _task(
    "issue", "issue:{number}", Kind.STRING, Life.FOREVER, "issue sync", "GitHub's JSON of an open issue"
)
OPEN_ISSUES = _task(
    "open_issues", "open_issues", Kind.STRING, Life.FOREVER, "issue sync", "JSON array of all open issues"
)
ISSUE_LOCK = _task(
    "issue_lock",
    "issue_lock_{number}",
    Kind.STRING,
    ISSUE_LOCK_SECONDS,
    "claim",
    "who is assigning the issue",
)
REVIEW_DETECTED = _task(
    "review_detected",
    "review_issue_detected_timestamp:{number}",
    Kind.STRING,
    Life.FOREVER,
    "issue sync",
    "when needs-review was first seen (ISO 8601, UTC)",
)
REVIEW_DELAY = _task(
    "review_delay",
    "review_delay_{number}",
    Kind.STRING,
    Life.FOREVER,
    "issue sync",
    "the same under seed 001's name",
)
AGENT_CURRENT_TASK = _task(
    "agent_current_task",
    "agent_current_task:{agent}",
    Kind.STRING,
    AGENT_TASK_SECONDS,
    "assignment, heartbeat",
    "number of the issue an agent works on",
)
TASK_CANDIDATE = _task(
    "task_candidate",
    "task_candidate:{number}:{agent}",
    Kind.STRING,
    CANDIDATE_SECONDS,
    "assignment, completion",
    "JSON: what was offered to whom, and its status",
)
TASK_FIX = _task(
    "task_fix",
    "task:fix:{pull}",
    Kind.STRING,
    CANDIDATE_SECONDS,
    "tasks/fix",
    "JSON of a fix task for a pull request",
)

# Seed 002, behind the namespace.
ISSUE_STATUS = _spec(
    "issue_status",
    "issue:status:{number}",
    Kind.HASH,
    Life.FOREVER,
    "issue state",
    "status word, agent, since when",
    family="issue",
)
ISSUE_METADATA = _spec(
    "issue_metadata",
    "issue:metadata:{number}",
    Kind.HASH,
    Life.FOREVER,
    "issue state",
    "title, URL, labels, branch",
    family="issue",
)
ISSUES_PROCESSING = _spec(
    "issues_processing", "issues:processing", Kind.SET, Life.FOREVER, "issue state", "issues being worked on"
)
ISSUES_COMPLETED_TODAY = _spec(
    "issues_completed_today",
    "issues:completed:today",
    Kind.SET,
    Life.MIDNIGHT,
    "issue state",
    "issues completed since local midnight",
)
PROCESS_INFO = _spec(
    "process_info",
    "process:info:{process}",
    Kind.HASH,
    Life.FOREVER,
    "assignment",
    "an agent's work on an issue",
    family="process",
)
PROCESS_HEARTBEAT = _spec(
    "process_heartbeat",
    "process:heartbeat:{process}",
    Kind.STRING,
    "heartbeat",
    "assignment, heartbeat",
    "last sign of life (ISO 8601, UTC)",
    family="process",
)
PROCESSES_ACTIVE = _spec(
    "processes_active", "processes:active", Kind.SET, Life.FOREVER, "assignment", "process ids at work"
)
PROCESSES_ZOMBIES = _spec(
    "processes_zombies", "processes:zombies", Kind.SET, Life.FOREVER, "sweep", "process ids found dead"
)
QUEUE = _spec(
    "queue",
    "queue:{priority}",
    Kind.ZSET,
    Life.FOREVER,
    "issue sync, claim",
    "issues on offer, in the order of handing out",
    family="queue",
)
TASK_INFO = _spec(
    "task_info",
    "task:info:{id}",
    Kind.HASH,
    CANDIDATE_SECONDS,
    "assignment",
    "an assignment as handed out",
    family="task",
)
TASK_RESULT = _spec(
    "task_result",
    "task:result:{id}",
    Kind.HASH,
    CANDIDATE_SECONDS,
    "completion",
    "how an assignment ended",
    family="task",
)
STATS_ISSUES_DAILY = _spec(
    "stats_issues_daily",
    "stats:issues:daily:{date}",
    Kind.HASH,
    "stats",
    "assignment, completion",
    "counters of one local day",
    family="stats",
)
STATS_PERFORMANCE_HOURLY = _spec(
    "stats_performance_hourly",
    "stats:performance:hourly",
    Kind.HASH,
    Life.OPTIONAL,
    "metrics poller",
    "time to assign and to complete by hour",
    family="stats",
)
METRICS_CPU = _spec(
    "metrics_cpu", "metrics:cpu:current", Kind.STRING, Life.OPTIONAL, "metrics poller", "CPU use in per cent"
)
METRICS_MEMORY = _spec(
    "metrics_memory",
    "metrics:memory:history",
    Kind.LIST,
    Life.FOREVER,
    "metrics poller",
    "memory samples, newest first, capped",
)
CONFIG = _spec(
    "config",
    "config:{system}:{name}",
    Kind.STRING,
    Life.FOREVER,
    "admin",
    "a setting that changes without a restart",
)
CONFIG_GITHUB_RATELIMIT = _spec(
    "config_github_ratelimit",
    "config:github:ratelimit",
    Kind.STRING,
    Life.OPTIONAL,
    "GitHub client",
    "JSON: limit, remaining, reset",
)
FLAG_MAINTENANCE = _spec(
    "flag_maintenance",
    "flags:maintenance",
    Kind.STRING,
    Life.OPTIONAL,
    "admin",
    "stops handing out and pollers",
)
FLAG_DEBUG = _spec(
    "flag_debug", "flags:debug:enabled", Kind.STRING, Life.OPTIONAL, "admin", "log level DEBUG while on"
)
LOCK_ISSUE = _spec(
    "lock_issue",
    "lock:issue:{number}",
    Kind.STRING,
    Life.OPTIONAL,
    "issue state",
    "guards one issue's state change",
)
LOCK_PROCESS = _spec(
    "lock_process", "lock:process:{name}", Kind.STRING, Life.OPTIONAL, "pollers, migrations", "single flight"
)
LOCK_BACKUP = _spec(
    "lock_backup", "lock:backup:{name}", Kind.STRING, Life.OPTIONAL, "keys backup", "single flight"
)
TEMP = _spec("temp", "temp:{name}", Kind.STRING, "tempData", "anything short-lived", "removed by cleanup")
SESSION = _spec("session", "session:{name}", Kind.STRING, "session", "Django sessions", "log-ins, cached")
CACHE = _spec(
    "cache",
    "cache:{name}",
    Kind.STRING,
    Life.OPTIONAL,
    "Django cache",
    "caches of ours and of django-q2",
    seed="ours",
)
CHANNEL_MIRIN_REQUESTS = _spec(
    "channel_mirin_requests",
    "channel:mirin:requests",
    Kind.CHANNEL,
    Life.FOREVER,
    "anybody",
    "requests to the listener",
    family="mirinRequests",
)
CHANNEL_MIRIN_RESPONSES = _spec(
    "channel_mirin_responses",
    "channel:mirin:responses",
    Kind.CHANNEL,
    Life.FOREVER,
    "mirin",
    "its answers",
    family="mirinResponses",
)
CHANNEL_EVENTS = _spec(
    "channel_events",
    "channel:events:{type}",
    Kind.CHANNEL,
    Life.FOREVER,
    "issue state",
    "JSON of each issue status change",
    family="events",
)
CHANNEL_WAKE = _spec(
    "channel_wake",
    "channel:wake:tasks",
    Kind.CHANNEL,
    Life.FOREVER,
    "issue sync",
    "how many issues have come on offer",
    seed="ours",
)

# The patterns that ``manage.py keys cleanup`` and the poller may remove, and nothing else (seed 002).
CLEANUP_PATTERNS = ("temp:*", "session:expired:*", "stats:*:old")
ISSUE_STATUS_EVENTS = "issue:status"


class BadKeyField(ValueError):
    """A value that may not be part of a key."""


@dataclass(frozen=True)
class RedisNames:
    """What the operator may change about names: see :mod:`broker_project.lib.keyspace_config`."""

    namespace: str = "poppo"
    task_prefix: str = "poppo:"
    patterns: dict[str, str] = field(default_factory=dict)  # spec name → pattern without the namespace
    ttls: dict[str, int] = field(default_factory=dict)


DEFAULT_TTLS = {
    "heartbeat": HEARTBEAT_SECONDS,
    "tempData": TEMP_SECONDS,
    "stats": STATS_SECONDS,
    "session": SESSION_SECONDS,
}


@dataclass(frozen=True)
class Keyspace:
    """The keys of one repository: the configured one's, or those of another with a namespace of its own."""

    names: RedisNames

    def key(self, spec: KeySpec, **fields: str | int) -> str:
        """The full name. Raises :class:`BadKeyField` on a value that is empty or holds control characters."""
        for name, value in fields.items():
            if value == "" or (isinstance(value, str) and not value.isprintable()):
                raise BadKeyField(f"{name} cannot be part of a Redis key: {str(value)[:40]!r}")
        return self.prefix(spec) + self.pattern(spec).format(**fields)

    def prefix(self, spec: KeySpec) -> str:
        return self.names.task_prefix if spec.with_task_prefix else f"{self.names.namespace}:"

    def pattern(self, spec: KeySpec) -> str:
        return self.names.patterns.get(spec.name, spec.pattern)

    def ttl_seconds(self, spec: KeySpec) -> int:
        """Seconds to live. Only for entries that have a fixed one."""
        if isinstance(spec.ttl, Life):
            raise ValueError(f"{spec.name} has no fixed time to live")
        if isinstance(spec.ttl, int):
            return spec.ttl
        return self.names.ttls.get(spec.ttl, DEFAULT_TTLS[spec.ttl])

    def match(self, spec: KeySpec) -> str:
        """A glob that finds every key of an entry (and, where patterns overlap, some of others)."""
        return glob_escape(self.prefix(spec)) + re.sub(
            r"{\w+}", "*", glob_escape(self.pattern(spec), "[]?*\\")
        )

    def namespace_match(self) -> str:
        return glob_escape(f"{self.names.namespace}:") + "*"

    def explain(self, name: str) -> KeySpec | None:
        """The entry behind a key name; the most literal one where several fit. None: not ours."""
        for spec, expression in self._expressions:
            if expression.fullmatch(name):
                return spec
        return None

    def sibling(self, namespace: str) -> Keyspace:
        """The keyspace of another repository: the same patterns under another namespace."""
        return Keyspace(
            RedisNames(namespace, f"{namespace}:", patterns=self.names.patterns, ttls=self.names.ttls)
        )

    @cached_property
    def _expressions(self) -> list[tuple[KeySpec, re.Pattern[str]]]:
        numeric = {"number", "pull"}

        def expression(spec: KeySpec) -> re.Pattern[str]:
            parts = re.split(r"{(\w+)}", self.pattern(spec))
            text = re.escape(self.prefix(spec))
            for position, part in enumerate(parts):
                text += re.escape(part) if position % 2 == 0 else (r"\d+" if part in numeric else r".+")
            return re.compile(text, re.DOTALL)

        def literalness(spec: KeySpec) -> int:
            return -len(re.sub(r"{\w+}", "", self.pattern(spec)))

        stored = [spec for spec in REGISTRY.values() if spec.kind is not Kind.CHANNEL]
        return [(spec, expression(spec)) for spec in sorted(stored, key=literalness)]


def glob_escape(text: str, specials: str = "[]?*\\") -> str:
    return "".join("\\" + char if char in specials else char for char in text)
