"""The table of keys: names exactly as the seeds write them, and no two meanings for one name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.key_config import sample_keys
from broker_project.lib.redis.keys import REGISTRY, KeySpec, Kind, Life
from broker_project.lib.redis.keyspace import BadKeyField, Keyspace, RedisNames

POPPO = Keyspace(RedisNames())

# The examples of seeds 000, 001 and 002, letter by letter.
SEED_KEYS: list[tuple[str, KeySpec, dict[str, Any]]] = [
    ("poppo:issue:123", k.ISSUE, {"number": 123}),
    ("poppo:open_issues", k.OPEN_ISSUES, {}),
    ("poppo:issue_lock_123", k.ISSUE_LOCK, {"number": 123}),
    ("poppo:review_issue_detected_timestamp:123", k.REVIEW_DETECTED, {"number": 123}),
    ("poppo:review_delay_123", k.REVIEW_DELAY, {"number": 123}),
    ("poppo:agent_current_task:agent-1", k.AGENT_CURRENT_TASK, {"agent": "agent-1"}),
    ("poppo:task_candidate:123:agent-1", k.TASK_CANDIDATE, {"number": 123, "agent": "agent-1"}),
    ("poppo:task:fix:45", k.TASK_FIX, {"pull": 45}),
    ("poppo:issue:status:123", k.ISSUE_STATUS, {"number": 123}),
    ("poppo:issue:metadata:123", k.ISSUE_METADATA, {"number": 123}),
    ("poppo:issues:processing", k.ISSUES_PROCESSING, {}),
    ("poppo:issues:completed:today", k.ISSUES_COMPLETED_TODAY, {}),
    ("poppo:process:info:issue-123-poppo", k.PROCESS_INFO, {"process": "issue-123-poppo"}),
    ("poppo:process:heartbeat:issue-123-poppo", k.PROCESS_HEARTBEAT, {"process": "issue-123-poppo"}),
    ("poppo:processes:active", k.PROCESSES_ACTIVE, {}),
    ("poppo:processes:zombies", k.PROCESSES_ZOMBIES, {}),
    ("poppo:queue:high", k.QUEUE, {"priority": "high"}),
    ("poppo:queue:normal", k.QUEUE, {"priority": "normal"}),
    ("poppo:queue:low", k.QUEUE, {"priority": "low"}),
    ("poppo:task:info:task-123", k.TASK_INFO, {"id": "task-123"}),
    ("poppo:task:result:task-123", k.TASK_RESULT, {"id": "task-123"}),
    ("poppo:stats:issues:daily:2025-06-19", k.STATS_ISSUES_DAILY, {"date": "2025-06-19"}),
    ("poppo:stats:performance:hourly", k.STATS_PERFORMANCE_HOURLY, {}),
    ("poppo:metrics:cpu:current", k.METRICS_CPU, {}),
    ("poppo:metrics:memory:history", k.METRICS_MEMORY, {}),
    ("poppo:config:claude:timeout", k.CONFIG, {"system": "claude", "name": "timeout"}),
    ("poppo:config:github:ratelimit", k.CONFIG_GITHUB_RATELIMIT, {}),
    ("poppo:flags:maintenance", k.FLAG_MAINTENANCE, {}),
    ("poppo:flags:debug:enabled", k.FLAG_DEBUG, {}),
    ("poppo:lock:issue:123", k.LOCK_ISSUE, {"number": 123}),
    ("poppo:lock:process:migration", k.LOCK_PROCESS, {"name": "migration"}),
    ("poppo:lock:backup:daily", k.LOCK_BACKUP, {"name": "daily"}),
    ("poppo:temp:anything:at:all", k.TEMP, {"name": "anything:at:all"}),
    ("poppo:session:expired:abc", k.SESSION, {"name": "expired:abc"}),
]
SEED_CHANNELS: list[tuple[str, KeySpec, dict[str, Any]]] = [
    ("poppo:channel:mirin:requests", k.CHANNEL_MIRIN_REQUESTS, {}),
    ("poppo:channel:mirin:responses", k.CHANNEL_MIRIN_RESPONSES, {}),
    ("poppo:channel:events:issue:status", k.CHANNEL_EVENTS, {"type": k.ISSUE_STATUS_EVENTS}),
]


@pytest.mark.parametrize(
    ("name", "spec", "fields"), SEED_KEYS + SEED_CHANNELS, ids=lambda value: str(value)[:60]
)
def test_keys_are_built_as_the_seeds_write_them(name: str, spec: KeySpec, fields: dict[str, Any]) -> None:
    assert POPPO.key(spec, **fields) == name


@pytest.mark.parametrize(("name", "spec", "fields"), SEED_KEYS, ids=lambda value: str(value)[:60])
def test_a_name_is_explained_by_its_own_entry(name: str, spec: KeySpec, fields: dict[str, Any]) -> None:
    assert POPPO.explain(name) is spec


def test_every_entry_of_the_seeds_is_among_the_examples() -> None:
    listed = {spec.name for _, spec, _ in SEED_KEYS + SEED_CHANNELS}
    assert {spec.name for spec in REGISTRY.values() if spec.seed != "ours"} == listed


def test_times_to_live_are_those_of_the_seeds() -> None:
    expected = {
        "issue_lock": 600,
        "agent_current_task": 3600,
        "task_candidate": 86400,
        "task_fix": 86400,
        "process_heartbeat": 1800,
        "temp": 3600,
        "stats_issues_daily": 604800,
        "session": 2592000,
    }
    assert {name: POPPO.ttl_seconds(REGISTRY[name]) for name in expected} == expected
    assert k.ISSUE.ttl is Life.FOREVER
    assert k.ISSUES_COMPLETED_TODAY.ttl is Life.MIDNIGHT
    with pytest.raises(ValueError, match="no fixed time"):
        POPPO.ttl_seconds(k.ISSUE)


@pytest.mark.parametrize("prefix", ["poppo:", "", "repo::owner::name:", "x"])
def test_every_name_has_one_meaning(prefix: str) -> None:
    """Whatever values go in: two entries never give the same name, and each name is explained by its
    entry.
    """
    names = Keyspace(replace(RedisNames(), task_prefix=prefix))
    seen: dict[str, KeySpec] = {}
    for spec, fields in sample_keys(names):
        name = names.key(spec, **fields)
        found = names.explain(name)
        if name == names.key(k.CONFIG_GITHUB_RATELIMIT):
            assert found is k.CONFIG_GITHUB_RATELIMIT  # the one entry inside another's pattern
            continue
        assert found is spec
        assert seen.setdefault(name, spec) is spec
        assert names.owns(name)
    assert {spec.name for spec in seen.values()} | {"config_github_ratelimit"} == {
        spec.name for spec in REGISTRY.values() if spec.kind is not Kind.CHANNEL
    }


BAD_FIELDS: list[tuple[KeySpec, dict[str, Any]]] = [
    (k.ISSUE, {"number": ""}),
    (k.ISSUE, {"number": 0}),
    (k.ISSUE, {"number": -1}),
    (k.ISSUE, {"number": "01"}),
    (k.ISSUE, {"number": "status:7"}),
    (k.ISSUE, {"number": "７"}),
    (k.ISSUE, {"number": True}),
    (k.ISSUE, {"number": "7\n"}),
    (k.ISSUE, {}),
    (k.ISSUE, {"number": 1, "agent": "a"}),
    (k.AGENT_CURRENT_TASK, {"agent": ""}),
    (k.AGENT_CURRENT_TASK, {"agent": "a:b"}),
    (k.AGENT_CURRENT_TASK, {"agent": "a b"}),
    (k.AGENT_CURRENT_TASK, {"agent": "a\x00b"}),
    (k.AGENT_CURRENT_TASK, {"agent": "*"}),
    (k.AGENT_CURRENT_TASK, {"agent": "a" * 51}),
    (k.TASK_CANDIDATE, {"number": 1, "agent": "2:x"}),
    (k.PROCESS_INFO, {"process": "issue-1-a:b"}),
    (k.QUEUE, {"priority": "urgent"}),
    (k.STATS_ISSUES_DAILY, {"date": "today"}),
    (k.TASK_INFO, {"id": "a:b"}),
    (k.TASK_INFO, {"id": "a\tb"}),
    (k.CONFIG, {"system": "a:b", "name": "c"}),
    (k.LOCK_PROCESS, {"name": ""}),
    (k.TEMP, {"name": "a\nb"}),
    (k.TEMP, {"name": "x" * 501}),
]


@pytest.mark.parametrize(("spec", "fields"), BAD_FIELDS, ids=lambda value: repr(value)[:50])
def test_builders_refuse_what_a_key_may_not_hold(spec: KeySpec, fields: dict[str, Any]) -> None:
    with pytest.raises(BadKeyField):
        POPPO.key(spec, **fields)


def test_labels_of_people_may_hold_anything_printable() -> None:
    spec = KeySpec("x", "index:x:{label}", Kind.SET, Life.FOREVER, "", "")
    assert POPPO.key(spec, label="type: バグ 🐛") == "poppo:index:x:type: バグ 🐛"


@pytest.mark.parametrize(
    ("prefix", "name", "is_ours"),
    [
        ("poppo:", "poppo:nobody:knows:me", True),
        ("poppo:", "poppo2:issue:1", False),
        ("poppo:", "poppo", False),
        ("poppo:", "issue:1", False),
        ("", "issue:1", True),
        ("", "open_issues", True),
        ("", "issue:one", False),
        ("", "open_issues_of_another", False),
        ("", "poppo:x", True),
        ("repo::o::n:", "repo::o::n:whatever", True),
        ("repo::o::n:", "repo::o::other:issue:1", False),
        ("repo", "repoissue:1", True),
        ("repo", "repository", False),
    ],
)
def test_only_our_own_names_are_ours(prefix: str, name: str, is_ours: bool) -> None:
    assert Keyspace(replace(RedisNames(), task_prefix=prefix)).owns(name) is is_ours


def test_another_namespace_changes_every_key() -> None:
    other = POPPO.sibling("other")
    for spec, fields in sample_keys(POPPO):
        assert other.key(spec, **fields) == "other:" + POPPO.key(spec, **fields).removeprefix("poppo:")


def test_the_cleanup_patterns_are_the_seeds() -> None:
    assert k.CLEANUP_PATTERNS == ("temp:*", "session:expired:*", "stats:*:old")


def test_a_script_may_add_the_field_only_where_nothing_stands_behind_it() -> None:
    assert POPPO.stem(k.INDEX_OFFER) == "poppo:index:offer:"
    moved = Keyspace(replace(POPPO.names, patterns={"process_info": "process:{process}:info"}))
    assert moved.key(k.PROCESS_INFO, process="issue-1-a") == "poppo:process:issue-1-a:info"
    for keys, spec in ((moved, k.PROCESS_INFO), (POPPO, k.OPEN_ISSUES)):
        with pytest.raises(ValueError, match="after its field"):
            keys.stem(spec)
