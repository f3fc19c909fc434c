"""Walking, measuring, checking and cleaning: our keys, all of them, and nobody else's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import redis
from django.test import override_settings

from broker_project.lib.redis.client import raw_client
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from broker_project.ops.redis_console.check import Problem, check_keys
from broker_project.ops.redis_console.scanning import (
    BadPattern,
    Place,
    Walk,
    browse,
    cleanup_keys,
    find_key,
    globs_for,
    name_of,
    printable,
)
from broker_project.ops.redis_console.usage import measure_usage
from broker_project.ops.redis_console.values import view_key

# Which namespaces are ours is in the table of repositories.
pytestmark = pytest.mark.django_db

FOREIGN = ["other:issue:1", "poppo2:temp:x", "popp", "issue:1", "temp:x", "xpoppo:temp:x"]


def walked(client: redis.Redis, pattern: str | None = None) -> set[str]:
    return {name_of(key) for batch in Walk(client, pattern) for key in batch}


def fill(store: redis.Redis, *names: str) -> None:
    store.mset(dict.fromkeys(names, "v"))


def test_only_our_keys_are_found(store: redis.Redis) -> None:
    ours = {"poppo:issue:1", "poppo:issue:status:1", "poppo:bogus", "poppo:temp:[x]*?"}
    fill(store, *ours, *FOREIGN)
    assert walked(raw_client()) == ours


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("issue:*", {"poppo:issue:1", "poppo:issue:status:123"}),
        ("poppo:issue:*", {"poppo:issue:1", "poppo:issue:status:123"}),
        ("*:*:123", {"poppo:issue:status:123"}),
        ("poppo:*:*:123", {"poppo:issue:status:123"}),
        ("open_issues", {"poppo:open_issues"}),
        ("*", {"poppo:issue:1", "poppo:issue:status:123", "poppo:open_issues"}),
        ("nothing", set()),
    ],
)
def test_patterns_are_relative_or_full(store: redis.Redis, pattern: str, found: set[str]) -> None:
    fill(store, "poppo:issue:1", "poppo:issue:status:123", "poppo:open_issues", *FOREIGN)
    assert walked(raw_client(), pattern) == found


@pytest.mark.parametrize("pattern", ["", "a\nb", "x" * 501])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        globs_for(pattern)


def test_without_a_task_prefix_only_what_the_table_explains_is_ours(store: redis.Redis) -> None:
    names = Keyspace(replace(RedisNames(), task_prefix=""))
    with override_settings(BROKER_KEYSPACE=names):
        ours = {"issue:1", "open_issues", "issue_lock_5", "poppo:queue:high", "poppo:bogus"}
        fill(store, *ours, "issue:one", "issue:1:comments", "open_issues:x", "other:1")
        assert walked(raw_client()) == ours
        assert walked(raw_client(), "issue*") == {"issue:1", "issue_lock_5"}


def test_a_limited_walk_says_that_it_is_not_complete(store: redis.Redis) -> None:
    fill(store, *(f"poppo:issue:{number}" for number in range(1, 3001)))
    limited, full = Walk(raw_client(), max_keys=100), Walk(raw_client())
    assert 100 <= sum(map(len, limited)) < 3000
    assert not limited.is_complete
    assert sum(map(len, full)) == 3000
    assert full.is_complete
    by_steps = Walk(raw_client(), "nothing", max_calls=2)
    assert list(by_steps) == []
    assert not by_steps.is_complete


def test_browsing_meets_every_key_once(store: redis.Redis) -> None:
    names = {f"poppo:issue:{number}" for number in range(1, 1201)}
    fill(store, *names, *FOREIGN)
    seen: list[str] = []
    place: Place | None = Place()
    for _ in range(100):
        assert place is not None
        keys, place = browse(raw_client(), None, Place.parse(str(place)), wanted=50, max_calls=5)
        seen += map(name_of, keys)
        if place is None:
            break
    assert sorted(seen) == sorted(names)


@pytest.mark.parametrize("text", ["", "x", "1", "-1-2", "9999999-5", "1-" + "9" * 90, "0-x"])
def test_a_made_up_place_is_harmless(store: redis.Redis, text: str) -> None:
    fill(store, "poppo:issue:1")
    keys, _ = browse(raw_client(), None, Place.parse(text), wanted=5, max_calls=5)
    assert set(keys) <= {b"poppo:issue:1"}


def test_finding_one_key(store: redis.Redis) -> None:
    fill(store, "poppo:issue:1", *FOREIGN)
    assert find_key(raw_client(), "poppo:issue:1") == b"poppo:issue:1"
    assert find_key(raw_client(), "issue:1") == b"poppo:issue:1"
    for name in ("other:issue:1", "poppo2:temp:x", "issue:2", "", "popp"):
        with pytest.raises(BadPattern):
            find_key(raw_client(), name)


def test_names_that_are_no_text_are_shown_and_found(store: redis.Redis) -> None:
    key = b"poppo:temp:\xff\x1b[31m"
    raw_client().set(key, "v")
    assert walked(raw_client()) == {name_of(key)}
    shown = printable(name_of(key))
    assert shown.isprintable()
    assert "\\xff" in shown


def test_usage_by_component(store: redis.Redis) -> None:
    store.set("poppo:issue:1", "x" * 5000)
    store.set("poppo:issue:2", "x")
    store.set("poppo:temp:a", "x", ex=60)
    store.set("poppo:temp:b", "x")
    store.set("poppo:bogus", "x")
    fill(store, *FOREIGN)
    usage = measure_usage(raw_client())
    rows = {row.component: row for row in usage.components}
    assert set(rows) == {"issue", "temp", "?"}
    assert usage.components[0].component == "issue"
    assert (rows["issue"].keys, rows["issue"].largest) == (2, "poppo:issue:1")
    assert rows["issue"].largest_bytes > 5000
    assert rows["issue"].size_bytes > rows["issue"].largest_bytes
    assert (rows["temp"].keys, rows["temp"].expiring, rows["temp"].wrong_ttls) == (2, 1, 1)
    assert usage.keys == 5
    assert usage.is_complete


def test_cleanup_removes_the_three_patterns_and_nothing_else(store: redis.Redis) -> None:
    gone = {
        "poppo:temp:a",
        "poppo:temp:b:c",
        "poppo:session:expired:1",
        "poppo:stats:issues:old",
        "poppo:stats:a:b:old",
    }
    kept = {
        "poppo:tempo", "poppo:session:1", "poppo:session:expired", "poppo:stats:old", "poppo:stats:x:older",
        "poppo:stats:issues:daily:2026-01-31", "poppo:issue:1", "poppo:cache:temp:x", *FOREIGN,
    }  # fmt: skip
    fill(store, *gone, *kept)
    assert cleanup_keys(raw_client()) == {"temp:*": 2, "session:expired:*": 1, "stats:*:old": 2}
    assert set(store.scan_iter()) == kept


def test_cleanup_of_many_keys(store: redis.Redis) -> None:
    fill(store, *(f"poppo:temp:{number}" for number in range(1700)))
    assert cleanup_keys(raw_client())["temp:*"] == 1700
    assert store.dbsize() == 0


def healthy(store: redis.Redis) -> int:
    store.set("poppo:issue:1", "{}")
    store.set("poppo:open_issues", "[]")
    store.set("poppo:issue_lock_1", "agent", ex=600)
    store.set("poppo:agent_current_task:a", "1", ex=3600)
    store.hset("poppo:issue:status:1", "status", "open")
    store.sadd("poppo:issues:completed:today", "1")
    store.expire("poppo:issues:completed:today", 100)
    store.zadd("poppo:queue:high", {"1": 1})
    store.lpush("poppo:metrics:memory:history", "1")
    store.set("poppo:config:claude:timeout", "60")
    store.set("poppo:flags:maintenance", "1")
    store.set("poppo:lock:process:x", "me", ex=5)
    store.set("poppo:cache:x", b"\x80pickle")
    return 12


def test_healthy_keys_pass_the_check(store: redis.Redis) -> None:
    count = healthy(store)
    fill(store, *FOREIGN)
    result = check_keys(raw_client())
    assert result.findings == []
    assert (result.checked, result.problems, result.is_complete) == (count, 0, True)


def break_type(store: redis.Redis) -> None:
    store.sadd("poppo:issue:status:7", "x")


BREAKAGES = {
    "unknown": (lambda s: s.set("poppo:bogus", "x"), Problem.UNKNOWN, "poppo:bogus", "no entry"),
    "bad number": (lambda s: s.set("poppo:issue:007", "{}"), Problem.UNKNOWN, "poppo:issue:007", "no entry"),
    "type": (break_type, Problem.TYPE, "poppo:issue:status:7", "is a set, should be a hash"),
    "no ttl": (lambda s: s.set("poppo:temp:x", "x"), Problem.TTL, "poppo:temp:x", "never expires"),
    "lock": (lambda s: s.set("poppo:lock:issue:1", "x"), Problem.TTL, "poppo:lock:issue:1", "never expires"),
    "long ttl": (
        lambda s: s.set("poppo:issue_lock_2", "x", ex=700),
        Problem.TTL, "poppo:issue_lock_2", "should within 600 s",
    ),
    "surplus": (lambda s: s.set("poppo:issue:2", "{}", ex=9), Problem.TTL, "poppo:issue:2", "not expire"),
    "midnight": (
        lambda s: s.expire("poppo:issues:completed:today", 90000),
        Problem.TTL, "poppo:issues:completed:today", "should within 86400 s",
    ),
    "json": (lambda s: s.set("poppo:issue:3", "{oops"), Problem.JSON, "poppo:issue:3", "line 1"),
    "json bytes": (lambda s: s.set("poppo:issue:3", b"\xff\xfe\xfd"), Problem.JSON, "poppo:issue:3", ""),
    "deep json": (lambda s: s.set("poppo:issue:3", "[" * 100_000), Problem.JSON, "poppo:issue:3", ""),
    "size": (
        lambda s: s.set("poppo:issue:4", json.dumps("x" * 2_000_000)), Problem.SIZE, "poppo:issue:4", "bytes",
    ),
    "setting": (
        lambda s: s.set("poppo:config:claude:timeout", "soon"),
        Problem.VALUE, "poppo:config:claude:timeout", "ignored: claude:timeout must be",
    ),
    "no setting": (lambda s: s.set("poppo:config:a:b", "1"), Problem.VALUE, "poppo:config:a:b", "no setting"),
    "rate limit": (
        lambda s: s.set("poppo:config:github:ratelimit", "{}"),
        Problem.VALUE, "poppo:config:github:ratelimit", "limit, remaining and reset",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BREAKAGES)
def test_the_check_names_what_is_wrong(store: redis.Redis, what: str) -> None:
    spoil, problem, key, detail = BREAKAGES[what]
    healthy(store)
    spoil(store)
    result = check_keys(raw_client())
    assert [(finding.problem, finding.key) for finding in result.findings] == [(problem, key)]
    assert detail in str(result.findings[0].detail)
    assert result.problems == 1


def test_the_check_changes_nothing(store: redis.Redis) -> None:
    healthy(store)
    fill(store, "poppo:bogus", *FOREIGN)
    before = {key: raw_client().dump(key) for key in store.scan_iter()}
    check_keys(raw_client())
    assert {key: raw_client().dump(key) for key in store.scan_iter()} == before


def test_findings_are_limited_and_counted(store: redis.Redis) -> None:
    fill(store, *(f"poppo:bogus:{number}" for number in range(1300)))
    result = check_keys(raw_client())
    assert (len(result.findings), result.problems) == (1000, 1300)


def test_looking_into_keys(store: redis.Redis) -> None:
    client = raw_client()
    store.set("poppo:issue:1", json.dumps({"title": "題", "token": "abc", "body": "Bearer abcdefghijkl"}))
    view = view_key(client, b"poppo:issue:1")
    assert view is not None
    assert '"title": "題"' in view.text
    assert "abc" not in view.text
    store.set("poppo:session:1", "secret thing", ex=60)
    view = view_key(client, b"poppo:session:1")
    assert view is not None
    assert (view.text, view.rows) == ("", [])
    assert "not shown" in str(view.notes[0])
    store.set("poppo:cache:1", b"\x80\x04pickle")
    view = view_key(client, b"poppo:cache:1")
    assert view is not None
    assert "not text: 8 bytes" in str(view.notes[0])
    store.set("poppo:open_issues", "あ" * 60_000)
    view = view_key(client, b"poppo:open_issues")
    assert view is not None
    assert "first 65536 of 180000 bytes" in str(view.notes[0])
    assert set(view.text) == {"あ"}
    store.hset("poppo:issue:status:1", mapping={"agent": "a", "password": "x"})
    store.zadd("poppo:queue:low", {str(number): number + 0.5 for number in range(500)})
    store.sadd("poppo:issues:processing", "1")
    store.rpush("poppo:metrics:memory:history", "a", "b")
    rows = {}
    for name in ("issue:status:1", "queue:low", "issues:processing", "metrics:memory:history"):
        view = view_key(client, b"poppo:" + name.encode())
        assert view is not None
        rows[name] = view.rows
    assert dict(rows["issue:status:1"]) == {"agent": "a", "password": "[hidden]"}
    assert len(rows["queue:low"]) == 200
    assert rows["queue:low"][0] == ("0.5", "0")
    assert rows["issues:processing"] == [("", "1")]
    assert rows["metrics:memory:history"] == [("0", "a"), ("1", "b")]
    assert view_key(client, b"poppo:issue:99") is None
