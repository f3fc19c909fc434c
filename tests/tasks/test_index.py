"""The scripts in Redis come to the same choice as the pure functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as dc_replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.test import override_settings
from django.utils import timezone
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.keyspace import Keyspace
from tasks.lifecycle import QUEUES, Gate, Offer, TaskType, best_bucket, choose
from tasks.models import Issue, Repository
from tasks.offers.index import CLAIM, ClaimRequest, claim_arguments, order_score
from tasks.offers.open_issues import SPARE_BYTES, write_open_issues
from tasks.offers.projector import ProjectionWriter, rebuild, write_projection
from tests.tasks.world import World

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
TOKENS = count()


def repository(namespace: str = "") -> Repository:
    return Repository(pk=1, full_name="o/r", namespace=namespace or keyspace().names.namespace)


def entry(offer: Offer, counted: int | None = -2) -> dict[str, Any]:
    return {
        "k": (offer.priority if offer.priority is not None else -1) if counted == -2 else counted,
        "p": -1 if offer.priority is None else offer.priority,
        "s": order_score(offer),
        "r": list(offer.roles),
        "d": offer.due_at.timestamp() if offer.due_at else 0,
        "o": 1,
        "w": [],
        "t": str(offer.task_type),
    }


def blocked(priority: int) -> dict[str, Any]:
    """An open issue that counts for the gate but cannot be handed out."""
    return {"k": priority, "p": -1, "s": 0, "r": [], "d": 0, "o": 0, "w": [], "t": "development"}


def put(
    store: redis.Redis,
    entries: list[tuple[int, dict[str, Any] | None]],
    repo: Repository | None = None,
    *,
    is_forced: bool = False,
) -> ProjectionWriter:
    keys = keyspace() if repo is None else keyspace().sibling(repo.namespace)
    store.set(keys.key(k.INDEX_READY), "1")
    writer = ProjectionWriter(repo or repository(), NOW, is_forced=is_forced)
    for number, found in entries:
        writer.out.entry(number, found)
    writer.send()
    return writer


def claim(
    store: redis.Redis, *roles: str, first: bool = False, repos: list[Repository] | None = None, **more: Any
) -> Any:
    request = ClaimRequest("agent-1", roles, f"t{next(TOKENS)}", first, **more)
    return store.eval(CLAIM, *claim_arguments(request, repos or [repository()], NOW))


def offer(number: int, priority: int | None = 0, **changes: Any) -> Offer:
    base = Offer(number, TaskType.DEVELOPMENT, ("BACKENDCODER",), priority, NOW - timedelta(days=1))
    return dc_replace(base, **changes)


def drain(store: redis.Redis, *roles: str) -> list[int]:
    found = []
    while (answer := claim(store, *roles))[0] == "task":
        found.append(int(answer[2]))
    return found


offers_strategy = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 2, 3, 10, 127]),
        st.sampled_from(list(TaskType)),
        st.sampled_from([("A",), ("B",), ("A", "B")]),
        st.integers(0, 3),
    ),
    max_size=12,
)


@pytest.mark.parametrize("gate", ["open", "assignable"])
@given(
    rows=offers_strategy,
    roles=st.sampled_from([(), ("A",), ("B",), ("A", "B")]),
    hidden=st.sampled_from([None, 0, 2]),
)
@example(rows=[(0, TaskType.DEVELOPMENT, ("A",), 0)] * 12, roles=(), hidden=None)
@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_claims_come_in_the_order_of_the_rules(
    store: redis.Redis, gate: str, rows: list[Any], roles: tuple[str, ...], hidden: int | None
) -> None:
    store.flushall()
    offers = [
        Offer(number, kind, own, priority, NOW - timedelta(days=days))
        for number, (priority, kind, own, days) in enumerate(rows, start=1)
    ]
    entries: list[tuple[int, dict[str, Any] | None]] = [(o.number, entry(o)) for o in offers]
    if hidden is not None:
        entries.append((99, blocked(hidden)))
    with override_settings(BROKER=dc_replace(settings.BROKER, priority_gate=gate)):
        put(store, entries)
        expected = []
        left = list(offers)
        while True:
            open_priorities = [o.priority for o in offers if o.priority is not None]
            open_priorities += [] if hidden is None else [hidden]
            best = best_bucket(Gate(gate), left, open_priorities, roles, NOW)
            fitting = choose(left, roles, best, NOW)
            if not fitting:
                break
            expected.append(fitting[0].number)
            left.remove(fitting[0])
        assert drain(store, *roles) == expected


def test_queues_show_the_order_of_handing_out(store: redis.Redis) -> None:
    same = NOW - timedelta(days=2)
    put(
        store,
        [
            (10, entry(offer(10, 0, updated_at=same))),
            (9, entry(offer(9, 0, updated_at=same))),
            (100, entry(offer(100, 0, updated_at=same))),
            (3, entry(offer(3, 1))),
            (4, entry(offer(4, 2))),
            (5, entry(offer(5, 7))),
            (6, entry(offer(6, None, task_type=TaskType.FIX))),
        ],
    )
    names = {q: store.zrange(keyspace().key(k.QUEUE, priority=q), 0, -1) for q in ("high", "normal", "low")}
    assert names == {"high": ["6", "9", "10", "100", "3"], "normal": ["4"], "low": ["5"]}


@pytest.mark.parametrize(
    ("priority", "queue"), [(0, "high"), (1, "high"), (2, "normal"), (3, "low"), (40, "low"), (4000, "low")]
)
def test_the_queue_of_a_priority(store: redis.Redis, priority: int, queue: str) -> None:
    put(store, [(1, entry(offer(1, priority)))])
    shown = {name: store.zcard(keyspace().key(k.QUEUE, priority=name)) for name in QUEUES}
    assert shown == {**dict.fromkeys(QUEUES, 0), queue: 1}


def test_what_floats_moves_with_the_best_bucket(store: redis.Redis) -> None:
    put(store, [(1, entry(offer(1, 0))), (2, entry(offer(2, 2))), (6, entry(offer(6, None)))])
    assert store.zscore(keyspace().key(k.QUEUE, priority="high"), "6") is not None
    result = put(store, [(1, None)])
    assert result.is_best_changed
    assert store.zrange(keyspace().key(k.QUEUE, priority="normal"), 0, -1) == ["2", "6"]
    assert store.zcard(keyspace().key(k.QUEUE, priority="high")) == 0


def test_a_locked_issue_is_passed_over_and_stays_on_offer(store: redis.Redis) -> None:
    put(store, [(1, entry(offer(1))), (2, entry(offer(2)))])
    store.set(keyspace().key(k.ISSUE_LOCK, number=1), "somebody")
    assert claim(store)[2] == "2"
    assert claim(store) == ["none"]
    store.delete(keyspace().key(k.ISSUE_LOCK, number=1))
    assert claim(store)[2] == "1"


def test_the_lock_names_the_agent_and_expires(store: redis.Redis) -> None:
    put(store, [(1, entry(offer(1)))])
    claim(store)
    key = keyspace().key(k.ISSUE_LOCK, number=1)
    assert store.get(key) == "agent-1"
    assert 590 < store.ttl(key) <= 600


def test_a_repeated_call_of_the_same_claim_takes_nothing_more(store: redis.Redis) -> None:
    put(store, [(1, entry(offer(1))), (2, entry(offer(2)))])
    arguments = claim_arguments(ClaimRequest("agent-1", (), "same", False), [repository()], NOW)
    assert store.eval(CLAIM, *arguments) == store.eval(CLAIM, *arguments)
    assert store.zcard(keyspace().key(k.QUEUE, priority="high")) == 1


def test_a_review_joins_when_it_is_due(store: redis.Redis) -> None:
    due = NOW + timedelta(minutes=5)
    put(store, [(1, entry(offer(1, task_type=TaskType.REVIEW, due_at=due)))])
    assert claim(store) == ["none"]
    request = ClaimRequest("agent-1", (), "later", False)
    assert store.eval(CLAIM, *claim_arguments(request, [repository()], due))[2] == "1"


def test_priority_is_compared_across_repositories(store: redis.Redis) -> None:
    other = repository("elsewhere")
    put(store, [(1, entry(offer(1, 1)))])
    put(store, [(2, entry(offer(2, 0)))], other)
    answer = claim(store, repos=[repository(), other])
    assert (answer[1], answer[2]) == (2, "2")
    assert claim(store, repos=[repository(), other]) == ["none"], "P0 of the other repository is still open"
    put(store, [(2, None)], other)
    assert claim(store, repos=[repository(), other])[2] == "1"


@pytest.mark.parametrize("value", ["1", "true", '{"reason": "x"}', "anything"])
def test_maintenance_stops_claims(store: redis.Redis, value: str) -> None:
    put(store, [(1, entry(offer(1)))])
    store.set(keyspace().key(k.FLAG_MAINTENANCE), value)
    assert claim(store) == ["maintenance", value]


@pytest.mark.parametrize("value", ["0", "false", ""])
def test_a_flag_that_is_off_stops_nothing(store: redis.Redis, value: str) -> None:
    put(store, [(1, entry(offer(1)))])
    store.set(keyspace().key(k.FLAG_MAINTENANCE), value)
    assert claim(store)[0] == "task"


def test_without_an_index_it_says_so(store: redis.Redis) -> None:
    assert claim(store) == ["unbuilt", 1]


def test_the_first_check_names_what_the_agent_still_has(store: redis.Redis) -> None:
    working = {**blocked(0), "w": ["P0", "agent-1"]}
    put(store, [(1, working), (2, entry(offer(2)))])
    assert claim(store, first=True) == ["finish", 1, "1"]
    assert claim(store, first=False)[2] == "2"


def test_leaving_the_index_leaves_nothing_behind(store: redis.Redis) -> None:
    floating = entry(offer(3, None, roles=("A", "B")))
    put(store, [(1, entry(offer(1))), (2, {**blocked(3), "w": ["agent-1"]}), (3, floating)])
    put(store, [(1, None), (2, None), (3, None)])
    assert store.keys() == [keyspace().key(k.INDEX_READY)]


def test_entries_survive_a_round_trip_as_json(store: redis.Redis) -> None:
    wanted = entry(offer(1, roles=("設計",)))
    put(store, [(1, wanted)])
    assert json.loads(store.hget(keyspace().key(k.INDEX_ENTRIES), "1") or "") == wanted
    assert claim(store, "設計")[2] == "1"


@pytest.mark.django_db
def test_open_issues_that_changes_while_it_is_rewritten_is_written_again(world: World) -> None:
    """A change between reading the rows and taking the old array's place must not be overwritten."""
    number = world.open_issue("P0", "BACKENDCODER")
    world.sync()
    array = world.key(k.OPEN_ISSUES)
    rewrites: list[int] = []

    def change_once(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found = execute(sql, params, many, context)
        if '"tasks_issue"."raw"' in sql and not rewrites:
            rewrites.append(1)
            world.store.set(array, "[]")  # somebody else's hand
        return found

    with connection.execute_wrapper(change_once):
        write_open_issues(world.repository)
    rows = json.loads(world.store.get(array) or "")
    assert [row["number"] for row in rows if row["number"] == number] == [number]
    assert rewrites == [1]
    assert world.store.ttl(array) == -1
    assert not list(world.store.scan_iter("*draft*"))


def test_an_issue_that_does_not_fit_its_place_keeps_no_other_from_its_own(store: redis.Redis) -> None:
    """The first place in the array cannot grow: it stays as it was until the array is written anew."""
    array = keyspace().key(k.OPEN_ISSUES)
    store.set(array, "[]")

    def fits(texts: dict[int, str]) -> bool:
        writer = ProjectionWriter(repository(), NOW, is_forced=False)
        for number, text in texts.items():
            writer.out.slot(number, text)
        writer.send()
        return not writer.is_array_full

    assert fits({1: '{"n":1}', 2: '{"n":2}'})
    long = json.dumps({"n": 1, "more": "x" * 2 * SPARE_BYTES})
    assert not fits({1: long, 2: '{"n":22}', 3: '{"n":3}'})
    assert json.loads(store.get(array) or "") == [{"n": 1}, {"n": 22}, {"n": 3}]
    assert not fits({1: "", 2: ""})
    assert json.loads(store.get(array) or "") == [{"n": 1}, {"n": 3}]


def test_an_entry_that_is_there_already_is_left_alone(store: redis.Redis) -> None:
    mine = entry(offer(1))
    assert put(store, [(1, mine)]).new_offers == [["BACKENDCODER"]]
    before = int(store.info("commandstats")["cmdstat_zadd"]["calls"])
    assert put(store, [(1, mine)]).new_offers == []
    assert int(store.info("commandstats")["cmdstat_zadd"]["calls"]) == before
    # Whoever claimed it and gave it back finds it on offer again.
    assert claim(store)[2] == "1"
    store.delete(keyspace().key(k.ISSUE_LOCK, number=1))
    assert put(store, [(1, mine)]).new_offers == [["BACKENDCODER"]]
    assert claim(store)[2] == "1"


# What Redis has already


def everything(store: redis.Redis) -> dict[str, Any]:
    """All keys with their values and whether they end by themselves."""
    read: dict[str, Any] = {
        "string": store.get,
        "hash": store.hgetall,
        "list": lambda key: store.lrange(key, 0, -1),
        "set": store.smembers,
        "zset": lambda key: sorted(store.zrange(key, 0, -1, withscores=True)),
    }
    return {key: (read[str(store.type(key))](key), store.ttl(key) > 0) for key in store.scan_iter()}


entry_strategy = st.one_of(
    st.none(),
    st.builds(
        lambda priority, kind, roles, days, due: entry(
            Offer(1, kind, roles, priority, NOW - timedelta(days=days), due)
        ),
        st.sampled_from([None, 0, 2, 3]),
        st.sampled_from(list(TaskType)),
        st.sampled_from([("A",), ("B",), ("A", "B")]),
        st.integers(0, 2),
        st.sampled_from([None, NOW - timedelta(hours=1), NOW + timedelta(hours=1)]),
    ),
    st.builds(
        lambda priority, labels: {**blocked(priority), "w": labels},
        st.sampled_from([-1, 0, 1]),
        st.sampled_from([[], ["agent-1"], ["agent-1", "P0"]]),
    ),
)


@given(
    steps=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(1, 4), entry_strategy), max_size=4), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
# The best priority goes and comes back in one step, and what floats stands between the two.
@example(
    steps=[
        ([(1, entry(offer(1, 2)))], False),
        ([(1, None), (2, entry(offer(2, None))), (3, entry(offer(3, 2)))], False),
    ]
)
@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_index_does_not_show_which_way_it_came_to_be(store: redis.Redis, steps: list[Any]) -> None:
    store.flushall()
    last: dict[int, dict[str, Any] | None] = {}
    for entries, is_forced in steps:
        put(store, entries, is_forced=is_forced)
        last |= dict(entries)
    found = everything(store)
    store.flushall()
    put(store, list(last.items()))
    assert found == everything(store)


@pytest.fixture
def shown(world: World) -> dict[str, Any]:
    """A world in which Redis shows all there is to show of four issues."""
    world.open_issue("P1", "BACKENDCODER", title="first")
    world.open_issue("P1", "UIUX", title="second")
    world.open_issue("P1", "BACKENDCODER", "needs-review", title="third")
    world.open_issue("P1", "parked", title="fourth")
    world.sync()
    return everything(world.store)


def changes(store: redis.Redis) -> int:
    """How many changes Redis has counted; each of them is written to its file."""
    return int(store.info("persistence")["rdb_changes_since_last_save"])


@pytest.mark.django_db
@pytest.mark.parametrize("is_forced", [False, True])
def test_what_redis_has_already_is_not_written_again(
    world: World, shown: dict[str, Any], is_forced: bool
) -> None:
    numbers = [issue.number for issue in Issue.objects.all()]
    assert len(numbers) == 4
    before = changes(world.store)
    assert write_projection(world.repository, numbers, timezone.now(), is_forced=is_forced) == 0
    assert changes(world.store) == before
    assert everything(world.store) == shown


Damage = Callable[[World, int], object]
DAMAGES: dict[str, Damage] = {
    "the issue is gone": lambda w, n: w.store.delete(w.key(k.ISSUE, number=n)),
    "the issue is another": lambda w, n: w.store.append(w.key(k.ISSUE, number=n), " "),
    "the issue is no text": lambda w, n: (
        w.store.delete(w.key(k.ISSUE, number=n)),
        w.store.lpush(w.key(k.ISSUE, number=n), "text"),
    ),
    "the issue will end": lambda w, n: w.store.expire(w.key(k.ISSUE, number=n), 1000),
    "a review that nobody asked for": lambda w, n: w.store.set(w.key(k.REVIEW_DELAY, number=n), "2026"),
    "no status": lambda w, n: w.store.hdel(w.key(k.ISSUE_STATUS, number=n), "status"),
    "no metadata": lambda w, n: w.store.delete(w.key(k.ISSUE_METADATA, number=n)),
    "another title": lambda w, n: w.store.hset(w.key(k.ISSUE_METADATA, number=n), "title", "x"),
    "no labels": lambda w, n: w.store.hdel(w.key(k.ISSUE_METADATA, number=n), "labels"),
    "no entry": lambda w, n: w.store.delete(w.key(k.INDEX_ENTRIES), w.key(k.INDEX_OPEN)),
    "another entry": lambda w, n: w.store.hset(
        w.key(k.INDEX_ENTRIES), str(n), json.dumps({**blocked(1), "w": ["x"]})
    ),
    "not on offer": lambda w, n: w.store.delete(w.key(k.INDEX_OFFER, role="*")),
    "on offer elsewhere": lambda w, n: w.store.zadd(w.key(k.QUEUE, priority="low"), {str(n): 1}),
    "another place in the queue": lambda w, n: w.store.zadd(w.key(k.QUEUE, priority="high"), {str(n): 1}),
    "waiting for nothing": lambda w, n: w.store.zadd(w.key(k.INDEX_WAITING), {str(n): 1e12}),
    "claimed by nobody": lambda w, n: w.store.zadd(w.key(k.INDEX_CLAIMED), {str(n): 1}),
    "no array": lambda w, n: w.store.delete(w.key(k.OPEN_ISSUES)),
    "another array": lambda w, n: w.store.set(w.key(k.OPEN_ISSUES), "[]"),
    "the array was written over": lambda w, n: w.store.setrange(w.key(k.OPEN_ISSUES), 30, "x"),
    "no slots": lambda w, n: w.store.delete(w.key(k.INDEX_SLOTS)),
    "everything is gone": lambda w, n: w.store.flushall(),
}


@pytest.mark.django_db
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_rebuild_mends_whatever_happened_in_redis(
    world: World, shown: dict[str, Any], damage: Damage
) -> None:
    rebuild(world.repository, timezone.now())
    expected = comparable(world)
    number = Issue.objects.get(title="first").number
    damage(world, number)
    assert comparable(world) != expected
    rebuild(world.repository, timezone.now())
    assert comparable(world) == expected


def comparable(world: World) -> dict[str, Any]:
    """What a rebuild answers for: not when a status was first written, nor what the poll notes for itself."""
    found = everything(world.store)
    for key, (value, _ends) in found.items():
        if key.startswith(keyspace().stem(k.ISSUE_STATUS)):
            value.pop("updatedAt", None)
    return {key: value for key, value in found.items() if ":config:" not in key}


def test_an_operators_own_patterns_hold_wherever_their_field_stands(world: World, settings: Any) -> None:
    """The families that the file of seed 002 may rename, with everything behind the number."""
    patterns = {
        "issue_status": "issues/{number}/status",
        "issue_metadata": "issues/{number}/metadata",
        "process_info": "process:{process}:info",
        "process_heartbeat": "process:{process}:heartbeat",
        "task_info": "task:{id}:info",
        "task_result": "task:{id}:result",
        "queue": "waiting:{priority}:line",
    }
    settings.BROKER_KEYSPACE = Keyspace(dc_replace(keyspace().names, patterns=patterns))
    number = world.open_issue("P0", "BACKENDCODER")
    world.sync()
    assert world.store.hget(f"poppo:issues/{number}/status", "status") == "open"
    assert world.store.hget(f"poppo:issues/{number}/metadata", "repository") == world.repository.full_name
    assert world.store.zrange("poppo:waiting:high:line", 0, -1) == [str(number)]
    task = world.given()
    process = f"issue-{number}-agent-1"
    assert world.store.hget(f"poppo:issues/{number}/status", "status") == "processing"
    assert world.store.hget(f"poppo:process:{process}:info", "status") == "running"
    assert world.store.exists(f"poppo:process:{process}:heartbeat")
    assert world.store.hget(f"poppo:task:{task['assignment_id']}:info", "state") == "live"
    assert world.store.zcard("poppo:waiting:high:line") == 0
    world.post(f"/assignments/{task['assignment_id']}/complete", {})
    assert world.store.hget(f"poppo:task:{task['assignment_id']}:result", "state") == "completed"
    assert world.store.hget(f"poppo:issues/{number}/status", "status") == "needs-review"
    plain = Keyspace(dc_replace(keyspace().names, patterns={}))
    for name in patterns:
        assert list(world.store.scan_iter(plain.match(k.REGISTRY[name]))) == [], name
