"""Redis shows what the rows say, whatever happened before, and nothing of it by halves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.ops.clock.pollers import PollOptions
from tasks.models import Assignment, Issue
from tasks.offers.projector import project, rebuild, write_projection
from tasks.pollers import sweep_zombies
from tests.tasks.test_cost import redis_cost_once
from tests.tasks.test_index import changes, everything
from tests.tasks.world import World

DEV = ("P0", "BACKENDCODER")


@pytest.fixture
def number(world: World) -> int:
    found = world.open_issue(*DEV)
    world.sync()
    return found


def events_of(world: World, act: Any) -> list[dict[str, Any]]:
    """What is published about statuses while ``act`` runs."""
    with world.store.pubsub() as heard:
        heard.subscribe(world.key(k.CHANNEL_EVENTS, type=k.ISSUE_STATUS_EVENTS))
        assert heard.get_message(timeout=5)
        act()
        messages = iter(lambda: heard.get_message(timeout=0.3), None)
        return [json.loads(message["data"]) for message in messages]


# What it costs


def test_a_development_issue_is_shown_with_two_queries_and_one_round_trip(world: World, number: int) -> None:
    world.given()

    def show() -> None:
        project(world.repository, [number], timezone.now())

    with CaptureQueriesContext(connection) as queries:
        show()
    assert len(queries) == 2, [query["sql"] for query in queries]
    trips, commands = redis_cost_once(world, show)
    assert trips == 1, commands


@pytest.mark.parametrize("ending", [None, "complete", "fail", "release"])
def test_what_redis_shows_of_work_is_not_written_again(world: World, number: int, ending: str | None) -> None:
    task = world.given()
    if ending:
        world.post(
            f"/assignments/{task['assignment_id']}/{ending}", {"reason": "x"} if ending == "fail" else {}
        )
    before, shown = changes(world.store), everything(world.store)
    for is_forced in (False, True):
        write_projection(world.repository, [number], timezone.now(), is_forced=is_forced)
    assert changes(world.store) == before
    assert everything(world.store) == shown


# What it shows


@pytest.mark.parametrize("ending", [None, "complete", "fail", "release", "lost"])
def test_a_flushed_redis_shows_the_same_after_a_rebuild(
    world: World, number: int, ending: str | None
) -> None:
    task = world.given()
    pk = task["assignment_id"]
    if ending == "lost":
        long_ago = timezone.now() - timedelta(seconds=1801)
        Assignment.objects.filter(pk=pk).update(last_heartbeat_at=long_ago)
        sweep_zombies(PollOptions())
    elif ending:
        world.post(f"/assignments/{pk}/{ending}", {"reason": "no disk"} if ending == "fail" else {})
    before = comparable(world)
    world.store.flushall()
    rebuild(world.repository, timezone.now())
    assert comparable(world) == before


def comparable(world: World) -> dict[str, Any]:
    """All keys but counters, settings and marks, which no row tells; statuses without the time of writing."""
    found = everything(world.store)
    for key, (value, _ends) in found.items():
        if key.startswith(world.key(k.ISSUE_STATUS, number=1)[:-1]):
            value.pop("updatedAt")
        if ":task:info:" in key:
            value.pop("saved", None)  # the heartbeats' own
    array = world.key(k.OPEN_ISSUES)
    found[array] = (json.loads(found[array][0]), False)  # where each issue stands in it is another matter
    apart = (":stats:", ":config:", ":temp:", ":cache:", ":index:slots")
    return {key: value for key, value in found.items() if not any(part in key for part in apart)}


def test_every_change_of_a_status_is_published_once_and_a_rebuild_publishes_none(
    world: World, number: int
) -> None:
    def work() -> None:
        task = world.given()
        world.post(f"/assignments/{task['assignment_id']}/fail", {"reason": "no disk"})
        project(world.repository, [number], timezone.now())

    told = events_of(world, work)
    process = f"issue-{number}-agent-1"
    assert [(event["status"], event["processId"]) for event in told] == [
        ("processing", process),
        ("error", process),
    ]
    assert set(told[0]) == {"issue", "status", "processId", "repository", "timestamp"}
    assert told[0]["issue"] == number
    assert told[0]["repository"] == world.repository.full_name

    def forget() -> None:
        world.store.flushall()
        rebuild(world.repository, timezone.now())

    assert events_of(world, forget) == []
    assert world.status_of(number) == "error"


def test_what_people_change_is_published_without_a_process(world: World, number: int) -> None:
    def park() -> None:
        world.github("POST", f"/issues/{number}/labels", {"labels": ["parked"]})
        world.sync()

    assert [(event["status"], event["processId"]) for event in events_of(world, park)] == [("parked", None)]


def test_a_review_asked_for_after_the_last_one_is_a_new_wish(world: World) -> None:
    number = world.open_issue(*DEV, "needs-review")
    world.open_pull(number, f"feature/issue-{number}")
    world.sync()
    Issue.objects.update(review_detected_at=timezone.now() - timedelta(minutes=6))
    project(world.repository, [number], timezone.now())
    task = world.given()
    world.post(f"/assignments/{task['assignment_id']}/complete")
    assert world.status_of(number) == "completed"
    Issue.objects.update(review_detected_at=timezone.now())
    project(world.repository, [number], timezone.now())
    assert world.status_of(number) == "needs-review"


def test_a_heartbeat_that_the_row_has_not_heard_of_is_kept(world: World, number: int) -> None:
    world.given()
    beat = world.key(k.PROCESS_HEARTBEAT, process=f"issue-{number}-agent-1")
    newer = (timezone.now() + timedelta(seconds=30)).isoformat()
    world.store.set(beat, newer, ex=1700)
    project(world.repository, [number], timezone.now())
    assert world.store.get(beat) == newer
    world.store.set(beat, "2020-01-01T00:00:00+00:00", ex=5)
    project(world.repository, [number], timezone.now())
    assert world.store.ttl(beat) > 1700


def test_an_agents_next_task_is_not_forgotten_with_its_last_one(world: World, number: int) -> None:
    second = world.open_issue(*DEV)
    world.sync()
    first = world.given()
    world.post(f"/assignments/{first['assignment_id']}/complete")
    assert world.given()["issue_id"] == second
    project(world.repository, [number], timezone.now())
    assert world.store.get(world.key(k.AGENT_CURRENT_TASK, agent="agent-1")) == str(second)


def test_a_process_that_somebody_has_seen_to_is_no_zombie_again(world: World, number: int) -> None:
    task = world.given()
    long_ago = timezone.now() - timedelta(seconds=1801)
    Assignment.objects.filter(pk=task["assignment_id"]).update(last_heartbeat_at=long_ago)
    sweep_zombies(PollOptions())
    zombies = world.key(k.PROCESSES_ZOMBIES)
    assert world.store.smembers(zombies) == {f"issue-{number}-agent-1"}
    world.store.delete(zombies)
    project(world.repository, [number], timezone.now())
    assert not world.store.exists(zombies)


def test_only_the_owners_lock_is_released(world: World, number: int) -> None:
    lock = world.key(k.ISSUE_LOCK, number=number)
    world.store.set(lock, "another", ex=600)
    project(world.repository, [number], timezone.now(), unlock={number: "agent-1"})
    assert world.store.get(lock) == "another"
    project(world.repository, [number], timezone.now(), unlock={number: "another"})
    assert not world.store.exists(lock)


# When Redis is not well


@contextmanager
def full_redis(store: redis.Redis) -> Iterator[None]:
    store.config_set("maxmemory", 1)
    try:
        yield
    finally:
        store.config_set("maxmemory", 0)


def test_a_redis_that_is_full_does_nothing_of_it(world: World, number: int) -> None:
    """It would let a script put in what it likes once that has taken something out."""
    Issue.objects.filter(number=number).update(is_open=False)
    shown = everything(world.store)
    with full_redis(world.store):
        with pytest.raises(redis.exceptions.ResponseError, match=r"OOM|maxmemory"):
            write_projection(world.repository, [number], timezone.now())
        assert project(world.repository, [number], timezone.now(), counts=["failed"]) == 0
    assert everything(world.store) == shown
    project(world.repository, [number], timezone.now())
    assert not world.store.exists(world.key(k.ISSUE, number=number))
    assert world.store.keys("*nothing*") == []


def test_a_key_that_cannot_take_its_part_stops_no_other(world: World, number: int) -> None:
    """Somebody has put a text where a set belongs."""
    active = world.key(k.PROCESSES_ACTIVE)
    world.store.set(active, "x")
    task = world.given()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        write_projection(world.repository, [number], timezone.now())
    assert world.status_of(number) == "processing"
    assert world.store.hget(world.key(k.TASK_INFO, id=task["assignment_id"]), "state") == "live"
    assert world.store.get(world.key(k.AGENT_CURRENT_TASK, agent="agent-1")) == str(number)


def test_hashes_and_texts_of_another_type_are_mended(world: World, number: int) -> None:
    expected = everything(world.store)
    for spec in (k.ISSUE_STATUS, k.ISSUE_METADATA, k.ISSUE):
        world.store.delete(world.key(spec, number=number))
        world.store.sadd(world.key(spec, number=number), "x")
    project(world.repository, [number], timezone.now())
    found = everything(world.store)
    for _, (value, _ends) in [*expected.items(), *found.items()]:
        if isinstance(value, dict):
            value.pop("updatedAt", None)
    assert found == expected


def test_a_redis_that_forgot_its_scripts_is_told_again(world: World, number: int) -> None:
    world.store.delete(world.key(k.ISSUE, number=number))
    world.store.script_flush()
    project(world.repository, [number], timezone.now())
    assert world.store.exists(world.key(k.ISSUE, number=number))


def test_nobody_sees_half_of_it(world: World, number: int) -> None:
    """The set of issues in processing and the status change in the same moment."""
    done = threading.Event()
    seen: set[tuple[bool, str]] = set()
    processing, status = world.key(k.ISSUES_PROCESSING), world.key(k.ISSUE_STATUS, number=number)

    def read() -> None:
        while not done.is_set():
            pipe = world.store.pipeline(transaction=True)
            pipe.sismember(processing, str(number))
            pipe.hget(status, "status")
            is_shown, word = pipe.execute()
            seen.add((bool(is_shown), str(word)))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        task = world.given()
        world.post(f"/assignments/{task['assignment_id']}/release")
    done.set()
    reader.join()
    assert seen == {(True, "processing"), (False, "open")}
