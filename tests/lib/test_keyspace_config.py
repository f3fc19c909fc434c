"""The JSON file of seed 002: accepted as given, refused with a sentence when it makes no sense."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker_project.lib.environment import ConfigError
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.key_config import load_redis_names
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from tests.support.broker_process import run_manage

SEED_FILE: dict[str, Any] = {
    "redis": {
        "namespace": "poppo",
        "keyPatterns": {
            "issue": "poppo:issue:{type}:{number}",
            "process": "poppo:process:{type}:{id}",
            "queue": "poppo:queue:{priority}",
            "stats": "poppo:stats:{category}:{period}:{date}",
        },
        "channels": {
            "mirinRequests": "poppo:channel:mirin:requests",
            "mirinResponses": "poppo:channel:mirin:responses",
            "events": "poppo:channel:events:{type}",
        },
        "ttl": {"heartbeat": 1800, "tempData": 3600, "stats": 604800},
    }
}


def load(tmp_path: Path, document: Any, namespace: str = "", task_prefix: str | None = None) -> Keyspace:
    path = tmp_path / "redis.json"
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text, encoding="utf-8")
    return Keyspace(load_redis_names(namespace=namespace, task_prefix=task_prefix, config_file=str(path)))


def redis_part(**changes: Any) -> dict[str, Any]:
    return {"redis": {**SEED_FILE["redis"], **changes}}


def test_the_file_of_the_seed_changes_nothing(tmp_path: Path) -> None:
    given, plain = load(tmp_path, SEED_FILE), Keyspace(RedisNames())
    for spec in k.REGISTRY.values():
        assert given.match(spec) == plain.match(spec)
        if not isinstance(spec.ttl, k.Life):
            assert given.ttl_seconds(spec) == plain.ttl_seconds(spec)


def test_namespace_patterns_channels_and_times_can_be_changed(tmp_path: Path) -> None:
    document = {
        "redis": {
            "namespace": "team",
            "keyPatterns": {
                "issue": "team:gh/{number}:{type}",
                "process": "team:p:{type}:{id}",
                "queue": "team:{priority}:queue",
                "task": "team:assignment:{id}:{type}",
                "stats": "team:{date}:stats:{category}:{period}",
            },
            "channels": {
                "mirinRequests": "team:ask",
                "mirinResponses": "team:answer",
                "events": "team:ev:{type}",
            },
            "ttl": {"heartbeat": 60, "tempData": 5, "stats": 7, "session": 9},
        }
    }
    names = load(tmp_path, document)
    assert names.key(k.ISSUE_STATUS, number=5) == "team:gh/5:status"
    assert names.key(k.PROCESS_HEARTBEAT, process="issue-5-a") == "team:p:heartbeat:issue-5-a"
    assert names.key(k.QUEUE, priority="low") == "team:low:queue"
    assert names.key(k.TASK_RESULT, id=3) == "team:assignment:3:result"
    assert names.key(k.STATS_ISSUES_DAILY, date="2026-01-31") == "team:2026-01-31:stats:issues:daily"
    assert names.key(k.STATS_PERFORMANCE_HOURLY) == "team:stats:performance:hourly"
    assert names.key(k.CHANNEL_EVENTS, type="issue:status") == "team:ev:issue:status"
    assert names.key(k.ISSUE, number=5) == "team:issue:5"
    lives = [k.PROCESS_HEARTBEAT, k.TEMP, k.STATS_ISSUES_DAILY, k.SESSION]
    assert [names.ttl_seconds(spec) for spec in lives] == [60, 5, 7, 9]


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    names = load(tmp_path, SEED_FILE, namespace="mine")
    assert names.key(k.ISSUE_STATUS, number=1) == "mine:issue:status:1"
    assert names.key(k.CHANNEL_MIRIN_REQUESTS) == "mine:channel:mirin:requests"
    assert names.key(k.OPEN_ISSUES) == "mine:open_issues"


def test_the_task_prefix_may_be_anything_sensible(tmp_path: Path) -> None:
    assert load(tmp_path, SEED_FILE, task_prefix="").key(k.ISSUE, number=1) == "issue:1"
    assert load(tmp_path, SEED_FILE, task_prefix="repo::o::n:").key(k.ISSUE, number=1) == "repo::o::n:issue:1"
    assert load(tmp_path, SEED_FILE, task_prefix="{namespace}:").key(k.ISSUE, number=1) == "poppo:issue:1"


def patterns(**given: str) -> dict[str, Any]:
    return redis_part(keyPatterns=given)


BAD_FILES: list[tuple[Any, str]] = [
    ("", "redis.json is not valid JSON in line 1"),
    ("{\n,}", "redis.json is not valid JSON in line 2"),
    ("[" * 100_000, "redis.json is not valid JSON"),
    ([], "the file"),
    ({}, "redis: Field required"),
    ({"redis": 3}, "redis"),
    ({"redis": {}, "more": 1}, "more: Extra inputs"),
    (redis_part(nameSpace="x"), "redis.nameSpace: Extra inputs"),
    (redis_part(namespace=7), "redis.namespace"),
    (redis_part(namespace="a b", keyPatterns={}, channels={}), "the namespace must be letters"),
    (redis_part(namespace="a:b", keyPatterns={}, channels={}), "the namespace must be letters"),
    (redis_part(namespace="", keyPatterns={}, channels={}), "the namespace must be letters"),
    (redis_part(namespace="other"), "keyPatterns.issue must begin with other:"),
    (redis_part(ttl={"heartbeat": 0}), "redis.ttl.heartbeat"),
    (redis_part(ttl={"heartbeat": "1800"}), "redis.ttl.heartbeat"),
    (redis_part(ttl={"heartbeat": 1.5}), "redis.ttl.heartbeat"),
    (redis_part(ttl={"heartbeat": True}), "redis.ttl.heartbeat"),
    (redis_part(ttl={"pulse": 5}), "redis.ttl.pulse"),
    (patterns(issues="poppo:x"), "keyPatterns.issues is unknown"),
    (patterns(issue="issue:{type}:{number}"), "must begin with poppo:"),
    (patterns(issue="poppo:issue:{number}"), "must hold {number}, {type}, each once"),
    (patterns(issue="poppo:issue:{type}:{number}:{number}"), "each once"),
    (patterns(issue="poppo:issue:{type}:{number}:{0}"), "each once"),
    (patterns(queue="poppo:queue:{priority}:{"), "may hold letters"),
    (patterns(queue="poppo:queue:{{priority}}"), "may hold letters"),
    (patterns(queue="poppo:queue *:{priority}"), "may hold letters"),
    (patterns(issue="poppo:issue:{type}{number}"), "something between two placeholders"),
    (patterns(issue="poppo:temp:{type}:{number}"), "would share keys such as poppo:temp:status:7"),
    (patterns(process="poppo:cache:{type}:{id}"), "would share keys"),
    (patterns(process="poppo:task:{type}:{id}"), "would share keys"),
    (patterns(queue="poppo:stats:{priority}:old"), "the clean-up would remove queue keys"),
    (redis_part(channels={"other": "poppo:x"}), "channels.other is unknown"),
    (redis_part(channels={"events": "poppo:events"}), "channels.events must hold {type}"),
    (redis_part(channels={"mirinRequests": "poppo:a", "mirinResponses": "poppo:a"}), "the same name"),
    (redis_part(channels={"mirinRequests": "poppo:channel:wake:tasks"}), "the same name"),
]


@pytest.mark.parametrize(("document", "sentence"), BAD_FILES, ids=[text[:45] for _, text in BAD_FILES])
def test_a_bad_file_is_refused_with_a_sentence(document: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, document)
    text = str(caught.value)
    assert text.startswith("BROKER_REDIS_CONFIG")
    assert sentence in text
    assert "\n" not in text


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_redis_names(namespace="", task_prefix=None, config_file=str(path))


@pytest.mark.parametrize(
    ("prefix", "sentence"),
    [
        ("poppo:temp:", "issue and temp would share keys"),
        ("poppo:cache:", "would share keys"),
        ("poppo:session:x:", "would share keys"),
        ("a b", "may hold letters"),
        ("x*", "may hold letters"),
        ("x" * 101, "may hold letters"),
    ],
)
def test_a_task_prefix_that_would_mix_keys_is_refused(prefix: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_redis_names(namespace="", task_prefix=prefix, config_file="")
    assert str(caught.value).startswith("BROKER_TASK_KEY_PREFIX")


@pytest.mark.process
def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "redis.json"
    path.write_text('{"redis": {"ttl": {"heartbeat": -1}}}')
    environ = {**os.environ, "BROKER_REDIS_CONFIG": str(path), "BROKER_VAR": str(tmp_path)}
    done = run_manage("check", env=environ)
    assert done.returncode == 1
    assert done.stderr.startswith("Broker cannot start: BROKER_REDIS_CONFIG: redis.ttl.heartbeat:")
    assert "Traceback" not in done.stderr
