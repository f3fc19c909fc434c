"""Every Redis key of the application: one table, and the only place where a key is put together.

A :class:`KeySpec` says what a key is called, what it holds, how long it lives, who writes it and what for.
``Keyspace.key(SPEC, number=7)`` builds a name; ``Keyspace.explain(name)`` finds the entry behind a name. The
page in the admin, ``manage.py keys`` and the code all read this table.

Names are ``{namespace}:…`` (seed 002) or ``{task prefix}…`` (seed 000). Namespace, patterns, channels and
times to live can be changed by settings and by the JSON file of seed 002
(:mod:`broker_project.lib.redis.key_config`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from broker_project.lib.redis.key_spec import MEBIBYTE as MEBIBYTE
from broker_project.lib.redis.key_spec import BadKeyField as BadKeyField
from broker_project.lib.redis.key_spec import KeySpec as KeySpec
from broker_project.lib.redis.key_spec import Kind as Kind
from broker_project.lib.redis.key_spec import Life as Life
from broker_project.lib.redis.key_spec import field_expression
from broker_project.lib.redis.key_spec import glob_escape as glob_escape

HEARTBEAT_SECONDS = 1800
TEMP_SECONDS = 3600
STATS_SECONDS = 7 * 86400
SESSION_SECONDS = 30 * 86400
ISSUE_LOCK_SECONDS = 600
DRAFT_SECONDS = 600
AGENT_TASK_SECONDS = 3600
CANDIDATE_SECONDS = 86400

REGISTRY: dict[str, KeySpec] = {}


def _spec(
    name: str,
    pattern: str,
    kind: Kind,
    ttl: int | str | Life,
    writer: str,
    purpose: str,
    **rest: str | bool | int,
) -> KeySpec:
    spec = KeySpec(name, pattern, kind, ttl, writer, purpose, **rest)  # type: ignore[arg-type]
    if name in REGISTRY:
        raise ValueError(f"the key {name} is listed twice")
    REGISTRY[name] = spec
    return spec


def _task(
    name: str,
    pattern: str,
    kind: Kind,
    ttl: int | str | Life,
    writer: str,
    purpose: str,
    **rest: str | bool | int,
) -> KeySpec:
    seed = "001" if name in {"open_issues", "review_delay"} else "000"
    return _spec(name, pattern, kind, ttl, writer, purpose, seed=seed, with_task_prefix=True, **rest)


# Seed 000 and 001, behind the task prefix.
ISSUE = _task(
    "issue",
    "issue:{number}",
    Kind.STRING,
    Life.FOREVER,
    "issue sync",
    "GitHub's JSON of an open issue",
    is_json=True,
)
OPEN_ISSUES = _task(
    "open_issues",
    "open_issues",
    Kind.STRING,
    Life.FOREVER,
    "issue sync",
    "JSON array of all open issues",
    is_json=True,
    max_bytes=512 * MEBIBYTE,
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
    is_json=True,
)
TASK_FIX = _task(
    "task_fix",
    "task:fix:{pull}",
    Kind.STRING,
    CANDIDATE_SECONDS,
    "tasks/fix",
    "JSON of a fix task for a pull request",
    is_json=True,
)

# Seed 002, behind the namespace.
ISSUE_STATUS = _spec(
    "issue_status",
    "issue:status:{number}",
    Kind.HASH,
    Life.OPTIONAL,
    "issue state",
    "status word, agent, since when",
    family="issue",
)
ISSUE_METADATA = _spec(
    "issue_metadata",
    "issue:metadata:{number}",
    Kind.HASH,
    Life.OPTIONAL,
    "issue state",
    "title, URL, labels, branch",
    family="issue",
)
ISSUES_PROCESSING = _spec(
    "issues_processing",
    "issues:processing",
    Kind.SET,
    Life.FOREVER,
    "issue state",
    "issues being worked on",
    max_bytes=64 * MEBIBYTE,
)
ISSUES_COMPLETED_TODAY = _spec(
    "issues_completed_today",
    "issues:completed:today",
    Kind.SET,
    Life.MIDNIGHT,
    "issue state",
    "issues completed since local midnight",
    max_bytes=64 * MEBIBYTE,
)
PROCESS_INFO = _spec(
    "process_info",
    "process:info:{process}",
    Kind.HASH,
    Life.OPTIONAL,
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
    "processes_active",
    "processes:active",
    Kind.SET,
    Life.FOREVER,
    "assignment",
    "process ids at work",
    max_bytes=64 * MEBIBYTE,
)
PROCESSES_ZOMBIES = _spec(
    "processes_zombies",
    "processes:zombies",
    Kind.SET,
    Life.FOREVER,
    "sweep",
    "process ids found dead",
    max_bytes=64 * MEBIBYTE,
)
QUEUE = _spec(
    "queue",
    "queue:{priority}",
    Kind.ZSET,
    Life.FOREVER,
    "issue sync, claim",
    "issues on offer, in the order of handing out",
    max_bytes=64 * MEBIBYTE,
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
    is_json=True,
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
    Life.LIMITED,
    "nobody here",
    "seed 002's name for a lock on an issue; issue_lock_{number} is the one in use",
)
LOCK_PROCESS = _spec(
    "lock_process", "lock:process:{name}", Kind.STRING, Life.LIMITED, "pollers, migrations", "single flight"
)
LOCK_BACKUP = _spec(
    "lock_backup", "lock:backup:{name}", Kind.STRING, Life.LIMITED, "keys backup", "single flight"
)
TEMP = _spec("temp", "temp:{name}", Kind.STRING, "tempData", "anything short-lived", "removed by cleanup")
SESSION = _spec(
    "session",
    "session:{name}",
    Kind.STRING,
    "session",
    "Django sessions",
    "log-ins, cached",
    is_sensitive=True,
)
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

# Ours: what a claim looks at instead of reading issues. Built from the database, again whenever it is lost.
INDEX_READY = _spec(
    "index_ready", "index:ready", Kind.STRING, Life.FOREVER, "issue sync", "the index was built", seed="ours"
)
INDEX_ENTRIES = _spec(
    "index_entries",
    "index:entries",
    Kind.HASH,
    Life.FOREVER,
    "issue sync, claim",
    "number → entry",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_OPEN = _spec(
    "index_open",
    "index:open",
    Kind.HASH,
    Life.FOREVER,
    "issue sync",
    "priority → open issues",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_OFFER = _spec(
    "index_offer",
    "index:offer:{role}",
    Kind.ZSET,
    Life.FOREVER,
    "issue sync, claim",
    "on offer to a role",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_FLOAT = _spec(
    "index_float",
    "index:float:{role}",
    Kind.ZSET,
    Life.FOREVER,
    "issue sync, claim",
    "on offer without a priority of its own",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_WAITING = _spec(
    "index_waiting",
    "index:waiting",
    Kind.ZSET,
    Life.FOREVER,
    "issue sync",
    "reviews by when they are due",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_CLAIMED = _spec(
    "index_claimed",
    "index:claimed",
    Kind.ZSET,
    Life.FOREVER,
    "claim",
    "taken off, not yet assigned",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_WORKING = _spec(
    "index_working",
    "index:working:{label}",
    Kind.SET,
    Life.FOREVER,
    "issue sync",
    "in-progress issues by their other labels",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_SLOTS = _spec(
    "index_slots",
    "index:slots",
    Kind.HASH,
    Life.FOREVER,
    "issue sync",
    "where each issue stands inside open_issues",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
OPEN_ISSUES_DRAFT = _spec(
    "open_issues_draft",
    "index:draft:issues:{owner}",
    Kind.STRING,
    DRAFT_SECONDS,
    "issue sync",
    "open_issues while it is being written anew",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)
INDEX_SLOTS_DRAFT = _spec(
    "index_slots_draft",
    "index:draft:slots:{owner}",
    Kind.HASH,
    DRAFT_SECONDS,
    "issue sync",
    "index:slots while it is being written anew",
    seed="ours",
    max_bytes=512 * MEBIBYTE,
)

# The patterns that ``manage.py keys cleanup`` and the poller may remove, and nothing else (seed 002).
CLEANUP_PATTERNS = ("temp:*", "session:expired:*", "stats:*:old")
ISSUE_STATUS_EVENTS = "issue:status"


@dataclass(frozen=True)
class RedisNames:
    """What the operator may change about names: see :mod:`broker_project.lib.redis.key_config`."""

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


# The check of each placeholder, and what fills them in.
Check = Callable[[str], re.Match[str] | None]
Shape = tuple[dict[str, Check], Callable[..., str]]


@dataclass(frozen=True)
class Keyspace:
    """The keys of one repository: the configured one's, or those of another with a namespace of its own."""

    names: RedisNames

    def key(self, spec: KeySpec, **fields: str | int) -> str:
        """The full name. Raises :class:`BadKeyField` unless every placeholder gets a value it may hold."""
        checks, fill = self._shapes.get(spec.name) or self._shape(spec)
        if len(fields) != len(checks):
            raise BadKeyField(f"{spec.name} takes {', '.join(spec.fields) or 'no values'}")
        for name, value in fields.items():
            check = checks.get(name)
            if check is None:
                raise BadKeyField(f"{spec.name} takes {', '.join(spec.fields) or 'no values'}")
            if isinstance(value, bool) or not check(str(value)):
                raise BadKeyField(f"{name} cannot be part of a Redis key: {str(value)[:40]!r}")
        return fill(**fields)

    def _shape(self, spec: KeySpec) -> Shape:
        checks: dict[str, Check] = {name: field_expression(name).fullmatch for name in spec.fields}
        prefix = self.prefix(spec).replace("{", "{{").replace("}", "}}")
        self._shapes[spec.name] = found = (checks, (prefix + self.pattern(spec)).format)
        return found

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        """What a name is made of, by the name of its entry: names are asked for all the time."""
        return {}

    def prefix(self, spec: KeySpec) -> str:
        return self.names.task_prefix if spec.with_task_prefix else f"{self.names.namespace}:"

    def pattern(self, spec: KeySpec) -> str:
        return self.names.patterns.get(spec.name, spec.pattern)

    def stem(self, spec: KeySpec) -> str:
        """A key without its field, for scripts that add the field themselves. Only where nothing can stand behind it:
        an operator's pattern may have the field in the middle."""
        if not spec.pattern.endswith("}") or spec.name in self.names.patterns:
            raise ValueError(f"{spec.name} may have something behind its field")
        return self.prefix(spec) + spec.pattern.rpartition("{")[0]

    def ttl_seconds(self, spec: KeySpec) -> int:
        """Seconds to live. Only for entries that have a fixed one."""
        if isinstance(spec.ttl, Life):
            raise ValueError(f"{spec.name} has no fixed time to live")
        if isinstance(spec.ttl, int):
            return spec.ttl
        return self.names.ttls.get(spec.ttl, DEFAULT_TTLS[spec.ttl])

    def match(self, spec: KeySpec) -> str:
        """A glob that finds every key of an entry (and, where patterns overlap, some of others)."""
        return glob_escape(self.prefix(spec)) + re.sub(r"{\w+}", "*", self.pattern(spec))

    def explain(self, name: str) -> KeySpec | None:
        """The entry behind a key name, the most literal where several fit. None: no entry gives that name."""
        found = self._combined.fullmatch(name)
        return REGISTRY[found.lastgroup] if found and found.lastgroup else None

    def explanations(self, name: str) -> list[KeySpec]:
        return [spec for spec, expression in self._expressions if expression.fullmatch(name)]

    @property
    def own_prefixes(self) -> tuple[str, ...]:
        """Beginnings that belong to us alone: whatever is called so is ours, in the table or not."""
        prefix = self.names.task_prefix
        return (f"{self.names.namespace}:", *([prefix] if prefix.endswith(":") else []))

    def owns(self, name: str) -> bool:
        """Whether a key is ours. Behind a task prefix that is empty or does not end in a colon others may
        have keys too: there only what the table explains is ours."""
        return name.startswith(self.own_prefixes) or self.explain(name) is not None

    def scan_patterns(self) -> list[str]:
        """Globs that together find every key of ours; what they find must still pass :meth:`owns`."""
        namespace, prefix = f"{self.names.namespace}:", self.names.task_prefix
        globs = [glob_escape(namespace) + "*"]
        if prefix.startswith(namespace):
            return globs
        if prefix.endswith(":"):
            return [*globs, glob_escape(prefix) + "*"]
        return globs + [self.match(spec) for spec in REGISTRY.values() if spec.with_task_prefix]

    def sibling(self, namespace: str) -> Keyspace:
        """The keyspace of another repository: the same patterns under another namespace."""
        return Keyspace(
            RedisNames(namespace, f"{namespace}:", patterns=self.names.patterns, ttls=self.names.ttls)
        )

    @cached_property
    def _combined(self) -> re.Pattern[str]:
        """All entries in one expression, the most literal first: a walk over a million keys asks for each."""
        return re.compile("|".join(f"(?P<{spec.name}>{one.pattern})" for spec, one in self._expressions))

    @cached_property
    def _expressions(self) -> list[tuple[KeySpec, re.Pattern[str]]]:
        def expression(spec: KeySpec) -> re.Pattern[str]:
            parts = re.split(r"{(\w+)}", self.pattern(spec))
            text = re.escape(self.prefix(spec))
            for position, part in enumerate(parts):
                text += re.escape(part) if position % 2 == 0 else f"(?:{field_expression(part).pattern})"
            return re.compile(text)

        def literalness(spec: KeySpec) -> int:
            return -len(self.prefix(spec) + re.sub(r"{\w+}", "", self.pattern(spec)))

        stored = [spec for spec in REGISTRY.values() if spec.kind is not Kind.CHANNEL]
        return [(spec, expression(spec)) for spec in sorted(stored, key=literalness)]
