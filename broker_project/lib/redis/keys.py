"""Every Redis key of the application: one table.

A :class:`KeySpec` says what a key is called, what it holds, how long it lives, who writes it and what for. The page in
the admin, ``manage.py keys`` and the code all read this table; :mod:`broker_project.lib.redis.keyspace` makes names
of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial

MEBIBYTE = 1024 * 1024

ISSUE_LOCK_SECONDS = 600
DRAFT_SECONDS = 600
AGENT_TASK_SECONDS = 3600
CANDIDATE_SECONDS = 86400
# Those that the operator's JSON file can change.
DEFAULT_TTLS = {"heartbeat": 1800, "tempData": 3600, "stats": 7 * 86400, "session": 30 * 86400}


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


STRING, HASH, SET, ZSET, LIST, CHANNEL = Kind
FOREVER, MIDNIGHT, LIMITED, OPTIONAL = Life
_task = partial(KeySpec, seed="000", with_task_prefix=True)
_ours = partial(KeySpec, seed="ours")
_index = partial(_ours, max_bytes=512 * MEBIBYTE)

# The table. Entry, pattern, type, time to live; who writes it, what for.
# fmt: off

# Seeds 000 and 001, after the task prefix
ISSUE = _task("issue", "issue:{number}", STRING, FOREVER,
    "issue sync", "GitHub's JSON of an open issue", is_json=True)
OPEN_ISSUES = _task("open_issues", "open_issues", STRING, FOREVER,
    "issue sync", "JSON array of all open issues", is_json=True, seed="001", max_bytes=512 * MEBIBYTE)
ISSUE_LOCK = _task("issue_lock", "issue_lock_{number}", STRING, ISSUE_LOCK_SECONDS,
    "claim", "who is assigning the issue")
REVIEW_DETECTED = _task("review_detected", "review_issue_detected_timestamp:{number}", STRING, FOREVER,
    "issue sync", "when needs-review was first seen (ISO 8601, UTC)")
REVIEW_DELAY = _task("review_delay", "review_delay_{number}", STRING, FOREVER,
    "issue sync", "the same under seed 001's name", seed="001")
AGENT_CURRENT_TASK = _task("agent_current_task", "agent_current_task:{agent}", STRING, AGENT_TASK_SECONDS,
    "assignment, heartbeat", "number of the issue an agent works on")
TASK_CANDIDATE = _task("task_candidate", "task_candidate:{number}:{agent}", STRING, CANDIDATE_SECONDS,
    "assignment, completion", "JSON: what was offered to whom, and its status", is_json=True)
TASK_FIX = _task("task_fix", "task:fix:{pull}", STRING, CANDIDATE_SECONDS,
    "tasks/fix", "JSON of a fix task for a pull request", is_json=True)

# Seed 002, after the namespace
ISSUE_STATUS = KeySpec("issue_status", "issue:status:{number}", HASH, OPTIONAL,
    "issue state", "status word, agent, since when")
ISSUE_METADATA = KeySpec("issue_metadata", "issue:metadata:{number}", HASH, OPTIONAL,
    "issue state", "title, URL, labels, branch")
ISSUES_PROCESSING = KeySpec("issues_processing", "issues:processing", SET, FOREVER,
    "issue state", "issues being worked on", max_bytes=64 * MEBIBYTE)
ISSUES_COMPLETED_TODAY = KeySpec("issues_completed_today", "issues:completed:today", SET, MIDNIGHT,
    "issue state", "issues completed since local midnight", max_bytes=64 * MEBIBYTE)
PROCESS_INFO = KeySpec("process_info", "process:info:{process}", HASH, OPTIONAL,
    "assignment", "an agent's work on an issue")
PROCESS_HEARTBEAT = KeySpec("process_heartbeat", "process:heartbeat:{process}", STRING, "heartbeat",
    "assignment, heartbeat", "last sign of life (ISO 8601, UTC)")
PROCESSES_ACTIVE = KeySpec("processes_active", "processes:active", SET, FOREVER,
    "assignment", "process ids at work", max_bytes=64 * MEBIBYTE)
PROCESSES_ZOMBIES = KeySpec("processes_zombies", "processes:zombies", SET, FOREVER,
    "sweep", "process ids found dead", max_bytes=64 * MEBIBYTE)
QUEUE = KeySpec("queue", "queue:{priority}", ZSET, FOREVER,
    "issue sync, claim", "issues on offer, in the order of handing out", max_bytes=64 * MEBIBYTE)
TASK_INFO = KeySpec("task_info", "task:info:{id}", HASH, CANDIDATE_SECONDS,
    "assignment", "an assignment as handed out")
TASK_RESULT = KeySpec("task_result", "task:result:{id}", HASH, CANDIDATE_SECONDS,
    "completion", "how an assignment ended")
STATS_ISSUES_DAILY = KeySpec("stats_issues_daily", "stats:issues:daily:{date}", HASH, "stats",
    "assignment, completion", "counters of one local day")
STATS_PERFORMANCE_HOURLY = KeySpec("stats_performance_hourly", "stats:performance:hourly", HASH, OPTIONAL,
    "metrics poller", "time to assign and to complete by hour")
METRICS_CPU = KeySpec("metrics_cpu", "metrics:cpu:current", STRING, OPTIONAL,
    "metrics poller", "CPU use in per cent")
METRICS_MEMORY = KeySpec("metrics_memory", "metrics:memory:history", LIST, FOREVER,
    "metrics poller", "memory samples, newest first, capped")
CONFIG = KeySpec("config", "config:{system}:{name}", STRING, FOREVER,
    "admin", "a setting that changes without a restart")
CONFIG_GITHUB_RATELIMIT = KeySpec("config_github_ratelimit", "config:github:ratelimit", STRING, OPTIONAL,
    "GitHub client", "JSON: limit, remaining, reset", is_json=True)
FLAG_MAINTENANCE = KeySpec("flag_maintenance", "flags:maintenance", STRING, OPTIONAL,
    "admin", "stops handing out and pollers")
FLAG_DEBUG = KeySpec("flag_debug", "flags:debug:enabled", STRING, OPTIONAL, "admin", "log level DEBUG while on")
LOCK_ISSUE = KeySpec("lock_issue", "lock:issue:{number}", STRING, LIMITED,
    "nobody here", "seed 002's name for a lock on an issue; issue_lock_{number} is the one in use")
LOCK_PROCESS = KeySpec("lock_process", "lock:process:{name}", STRING, LIMITED,
    "pollers, migrations", "single flight")
LOCK_BACKUP = KeySpec("lock_backup", "lock:backup:{name}", STRING, LIMITED, "keys backup", "single flight")
TEMP = KeySpec("temp", "temp:{name}", STRING, "tempData", "anything short-lived", "removed by cleanup")
SESSION = KeySpec("session", "session:{name}", STRING, "session",
    "Django sessions", "log-ins, cached", is_sensitive=True)
CACHE = _ours("cache", "cache:{name}", STRING, OPTIONAL, "Django cache", "caches of ours and of django-q2")
CHANNEL_MIRIN_REQUESTS = KeySpec("channel_mirin_requests", "channel:mirin:requests", CHANNEL, FOREVER,
    "anybody", "requests to the listener")
CHANNEL_MIRIN_RESPONSES = KeySpec("channel_mirin_responses", "channel:mirin:responses", CHANNEL, FOREVER,
    "mirin", "its answers")
CHANNEL_EVENTS = KeySpec("channel_events", "channel:events:{type}", CHANNEL, FOREVER,
    "issue state", "JSON of each issue status change")
CHANNEL_WAKE = _ours("channel_wake", "channel:wake:tasks", CHANNEL, FOREVER,
    "issue sync", "how many issues have come on offer")

# Ours: what a claim reads instead of issues. Built from the database, again whenever it is lost.
INDEX_READY = _ours("index_ready", "index:ready", STRING, FOREVER, "issue sync", "the index was built")
INDEX_ENTRIES = _index("index_entries", "index:entries", HASH, FOREVER, "issue sync, claim", "number → entry")
INDEX_OPEN = _index("index_open", "index:open", HASH, FOREVER, "issue sync", "priority → open issues")
INDEX_OFFER = _index("index_offer", "index:offer:{role}", ZSET, FOREVER,
    "issue sync, claim", "on offer to a role")
INDEX_FLOAT = _index("index_float", "index:float:{role}", ZSET, FOREVER,
    "issue sync, claim", "on offer without a priority of its own")
INDEX_WAITING = _index("index_waiting", "index:waiting", ZSET, FOREVER,
    "issue sync", "reviews by when they are due")
INDEX_CLAIMED = _index("index_claimed", "index:claimed", ZSET, FOREVER,
    "claim", "taken off, not yet assigned")
INDEX_WORKING = _index("index_working", "index:working:{label}", SET, FOREVER,
    "issue sync", "in-progress issues by their other labels")
INDEX_SLOTS = _index("index_slots", "index:slots", HASH, FOREVER,
    "issue sync", "where each issue stands inside open_issues")
OPEN_ISSUES_DRAFT = _index("open_issues_draft", "index:draft:issues:{owner}", STRING, DRAFT_SECONDS,
    "issue sync", "open_issues while it is being written anew")
INDEX_SLOTS_DRAFT = _index("index_slots_draft", "index:draft:slots:{owner}", HASH, DRAFT_SECONDS,
    "issue sync", "index:slots while it is being written anew")

# fmt: on

REGISTRY = {spec.name: spec for spec in tuple(globals().values()) if isinstance(spec, KeySpec)}

# The patterns that ``manage.py keys cleanup`` and the poller may remove, and nothing else (seed 002).
CLEANUP_PATTERNS = ("temp:*", "session:expired:*", "stats:*:old")
ISSUE_STATUS_EVENTS = "issue:status"
