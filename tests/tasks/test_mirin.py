"""The ``mirin`` channels: requests over a real Redis, answered by listeners in threads and processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connections
from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from tasks.mirin import listener as mirin
from tasks.models import Agent, Assignment, Event
from tasks.services.fixes import request_fix
from tests.environment import REDIS
from tests.support.broker_process import wait_for
from tests.support.databases import database_url
from tests.support.template_database import make_migrated_database
from tests.support.warm_python import start_python
from tests.tasks.world import World

REQUESTS, RESPONSES = "poppo:channel:mirin:requests", "poppo:channel:mirin:responses"


class Asker:
    """Somebody on the other side of the channels."""

    def __init__(self) -> None:
        self.client: redis.Redis = redis.Redis.from_url(settings.REDIS_URL, decode_responses=True)
        self.pubsub = self.client.pubsub(ignore_subscribe_messages=True)
        self.pubsub.subscribe(RESPONSES)
        wait_for(lambda: self.client.pubsub_numsub(RESPONSES)[0][1] > 0, "the asker listens")

    def send(self, action: str | None = None, request_id: str = "", **fields: Any) -> str:
        request_id = request_id or uuid.uuid4().hex
        document = {"requestId": request_id, **({"action": action} if action else {}), **fields}
        self.client.publish(REQUESTS, json.dumps(document))
        return request_id

    def heard(self) -> dict[str, Any]:
        """The next response."""
        message = wait_for(lambda: self.pubsub.get_message(timeout=0.2), "a response")
        found: dict[str, Any] = json.loads(message["data"])
        return found

    def ask(self, action: str | None = None, request_id: str = "", **fields: Any) -> dict[str, Any]:
        """Send and wait; nothing else may be said in between."""
        sent = self.send(action, request_id, **fields)
        response = self.heard()
        assert response["requestId"] == sent
        return response

    def refused(self, action: str | None = None, **fields: Any) -> tuple[str, str]:
        response = self.ask(action, **fields)
        assert response["success"] is False, response
        return response["error"], response["message"]

    def silence(self) -> bool:
        """Whether everything that was said has been heard: a question of our own is answered next."""
        return bool(self.ask("list_processing_issues")["success"])


@contextmanager
def listening() -> Iterator[mirin.Listener]:
    listener = mirin.Listener()
    before = redis_client().pubsub_numsub(REQUESTS)[0][1]

    def run() -> None:
        try:
            listener.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: redis_client().pubsub_numsub(REQUESTS)[0][1] > before, "the listener hears")
        yield listener
    finally:
        listener.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def asker(world: World) -> Iterator[Asker]:
    """Somebody to ask, and one listener to answer."""
    with listening():
        found = Asker()
        yield found
        found.pubsub.close()
        found.client.close()


def test_a_checkout_is_an_assignment_like_any_other(world: World, asker: Asker) -> None:
    world.open_issue("P0", "BACKENDCODER")
    number = world.open_issue("P3", "DOCWRITER", title="later")
    world.sync()
    response = asker.ask("checkout_issue", issueNumber=number, agentId="poppo", taskType="development")
    assert response["success"] is True
    assert response["timestamp"]
    assert response["processId"] == f"issue-{number}-poppo"
    assert response["task"]["title"] == "later"
    assert response["task"]["assignment_id"] == response["assignmentId"]
    assert world.live() == [number]
    assert {"in-progress", "poppo"} <= world.labels(number)
    assert world.has_branch(f"feature/issue-{number}")
    assert world.status_of(number) == "processing"
    assert world.store.sismember(world.key(k.PROCESSES_ACTIVE), f"issue-{number}-poppo")
    for queue in ("high", "normal", "low"):
        assert world.store.zscore(world.key(k.QUEUE, priority=queue), number) is None
    assert not world.store.exists(world.key(k.ISSUE_LOCK, number=number))
    # The HTTP API sees the same.
    assert world.get("/agents/poppo/current-task").json()["issue_id"] == number
    assert world.given("agent-1")["issue_id"] != number


def test_a_second_checkout_is_refused(world: World, asker: Asker) -> None:
    first, second = world.open_issue("P1", "BACKENDCODER"), world.open_issue("P1", "BACKENDCODER")
    world.sync()
    assert asker.ask("checkout_issue", issueNumber=first, agentId="poppo")["success"]
    assert asker.refused("checkout_issue", issueNumber=first, agentId="other") == (
        "already_checked_out",
        f"Issue {first}: an agent has it.",
    )
    assert asker.refused("checkout_issue", issueNumber=second, agentId="poppo") == (
        "agent_busy",
        f"poppo works on issue {first}.",
    )
    assert world.live() == [first]


def test_what_cannot_be_handed_out_is_refused_in_the_words_of_explain(world: World, asker: Asker) -> None:
    numbers = {
        world.open_issue("P1", "BACKENDCODER", "parked"): "parked for a person",
        world.open_issue("P1", "BACKENDCODER", "in-progress"): "labelled in-progress",
        world.open_issue("P1", "BACKENDCODER", "epic"): "labelled epic",
        world.open_issue("P1"): "no role label",
        world.open_issue("BACKENDCODER"): "no priority label",
        world.open_issue("P1", "BACKENDCODER", body="nothing"): "no section 成果物",
        world.open_issue("P1", "BACKENDCODER", "needs-review"): "no open pull request is linked",
    }
    world.sync()
    explained = {
        row["number"]: row["reason"] for row in world.get("/explain?agent_id=poppo").json()["issues"]
    }
    for number, reason in numbers.items():
        assert explained[number] == reason
        code, message = asker.refused("checkout_issue", issueNumber=number, agentId="poppo")
        assert (code, message) == ("not_assignable", f"Issue {number}: {reason}.")
    assert asker.refused("checkout_issue", issueNumber=4711, agentId="poppo")[0] == "unknown_issue"
    assert world.live() == []


def test_roles_and_types_and_switched_off_agents_count(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    Agent.objects.create(name="writer", roles=["DOCWRITER"])
    Agent.objects.create(name="asleep", is_enabled=False)
    assert (
        "needs the role BACKENDCODER"
        in asker.refused("checkout_issue", issueNumber=number, agentId="writer")[1]
    )
    assert asker.refused("checkout_issue", issueNumber=number, agentId="asleep")[0] == "agent_disabled"
    wrong = asker.refused("checkout_issue", issueNumber=number, agentId="poppo", taskType="review")
    assert wrong == ("wrong_task_type", f"Issue {number} is a development task.")
    assert world.live() == []


def test_an_issue_that_is_being_assigned_is_refused(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    world.store.set(world.key(k.ISSUE_LOCK, number=number), "somebody", ex=60)
    code, message = asker.refused("checkout_issue", issueNumber=number, agentId="poppo")
    assert (code, message) == ("locked", f"Issue {number} is being assigned to somebody.")
    assert world.store.get(world.key(k.ISSUE_LOCK, number=number)) == "somebody"


def test_a_fix_task_can_be_checked_out(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    pull = world.open_pull(number, "feature/x")
    world.sync()
    request_fix(world.repository, pull, ["rename it"], "tester", timezone.now())
    response = asker.ask("checkout_issue", issueNumber=pull, agentId="poppo")
    assert response["taskType"] == "fix"
    assert response["branch"] == "feature/x"
    assert asker.ask("get_issue_status", issueNumber=pull)["status"] == "processing"


def test_maintenance_refuses_checkouts_and_nothing_else(world: World, asker: Asker) -> None:
    first, second = world.open_issue("P1", "BACKENDCODER"), world.open_issue("P1", "BACKENDCODER")
    world.sync()
    assert asker.ask("checkout_issue", issueNumber=first, agentId="poppo")["success"]
    world.store.set(world.key(k.FLAG_MAINTENANCE), json.dumps({"reason": "moving"}))
    assert asker.refused("checkout_issue", issueNumber=second, agentId="other") == (
        "maintenance",
        "Maintenance: moving",
    )
    assert asker.ask("get_issue_status", issueNumber=second)["status"] == "open"
    assert asker.ask("heartbeat", processId=f"issue-{first}-poppo")["success"]
    assert asker.ask("checkin_issue", issueNumber=first, agentId="poppo")["state"] == "completed"


@pytest.mark.parametrize(
    ("status", "state", "word"),
    [
        ("completed", "completed", "needs-review"),
        ("error", "failed", "error"),
        ("released", "released", "open"),
    ],
)
def test_checking_in_ends_the_work(world: World, asker: Asker, status: str, state: str, word: str) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    asker.ask("checkout_issue", issueNumber=number, agentId="poppo")
    response = asker.ask(
        "checkin_issue", issueNumber=number, agentId="poppo", status=status, result="it is so"
    )
    assert (response["success"], response["state"]) == (True, state)
    row = world.assignment(response["assignmentId"])
    assert row.state == state
    assert row.result == ("it is so" if state == "completed" else None)
    if state == "failed":
        assert row.reason == "it is so"
    assert world.live() == []
    assert not {"in-progress", "poppo"} & world.labels(number)
    assert world.status_of(number) == word
    assert asker.ask("get_issue_status", issueNumber=number)["status"] == word
    # The same once more, as another request: it is on record already.
    again = asker.ask("checkin_issue", processId=f"issue-{number}-poppo", status=status)
    assert (again["success"], again["state"]) == (True, state)
    assert Event.objects.filter(number=number, assignment=row).count() == 2


def test_only_the_owner_checks_in(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    asker.ask("checkout_issue", issueNumber=number, agentId="poppo")
    assert asker.refused("checkin_issue", issueNumber=number, agentId="other") == (
        "not_owner",
        f"Issue {number} is with poppo.",
    )
    assert asker.refused("heartbeat", processId=f"issue-{number}-other")[0] == "not_owner"
    assert asker.refused("checkin_issue", issueNumber=number)[0] == "bad_request"
    assert world.live() == [number]
    asker.ask("checkin_issue", issueNumber=number, agentId="poppo", status="released")
    assert asker.refused("checkin_issue", issueNumber=number, agentId="poppo")[0] == "not_owner"
    assert asker.refused("checkin_issue", issueNumber=number, agentId="other")[0] == "not_checked_out"
    assert asker.refused("heartbeat", issueNumber=number, agentId="poppo")[0] == "lease_lost"


def test_heartbeats_prolong_the_lease(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    given = asker.ask("checkout_issue", processId=f"issue-{number}-poppo")
    beat = asker.ask("heartbeat", issueNumber=number, agentId="poppo", progress="half")
    assert beat["leaseExpiresAt"] > given["leaseExpiresAt"]
    assert beat["cancel"] is False
    assert world.assignment(given["assignmentId"]).progress == "half"
    assert world.store.ttl(world.key(k.PROCESS_HEARTBEAT, process=f"issue-{number}-poppo")) > 1700


def test_status_and_list(world: World, asker: Asker) -> None:
    free, taken = world.open_issue("P2", "DOCWRITER", title="free"), world.open_issue("P1", "BACKENDCODER")
    world.sync()
    assert asker.ask("list_processing_issues")["issues"] == []
    task = world.given("agent-1")
    assert task["issue_id"] == taken
    (row,) = asker.ask("list_processing_issues")["issues"]
    assert (row["issueNumber"], row["agentId"], row["processId"]) == (
        taken,
        "agent-1",
        f"issue-{taken}-agent-1",
    )
    status = asker.ask("get_issue_status", issueNumber=free)
    assert (status["status"], status["title"]) == ("open", "free")
    status = asker.ask("get_issue_status", issueNumber=taken)
    assert (status["status"], status["agentId"]) == ("processing", "agent-1")
    assert asker.refused("get_issue_status", issueNumber=4711)[0] == "unknown_issue"


def test_a_process_can_be_cleaned_up(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    asker.ask("checkout_issue", issueNumber=number, agentId="poppo")
    process = f"issue-{number}-poppo"
    response = asker.ask("cleanup_process", processId=process)
    assert (response["success"], response["released"], response["state"]) == (True, True, "released")
    assert world.live() == []
    assert "in-progress" not in world.labels(number)
    assert not world.store.sismember(world.key(k.PROCESSES_ACTIVE), process)
    world.store.sadd(world.key(k.PROCESSES_ZOMBIES), process)
    assert asker.ask("cleanup_process", processId=process)["released"] is False
    assert not world.store.sismember(world.key(k.PROCESSES_ZOMBIES), process)
    assert asker.refused("cleanup_process", processId=f"issue-{number}-other")[0] == "unknown_process"
    assert asker.refused("cleanup_process", processId="poppo")[0] == "bad_request"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"action": "make_coffee"}, "unknown_action"),
        ({"action": None}, "unknown_action"),
        ({"action": ["heartbeat"]}, "unknown_action"),
        ({"action": "checkout_issue"}, "bad_request"),
        ({"action": "checkout_issue", "issueNumber": "1", "agentId": "poppo"}, "bad_request"),
        ({"action": "checkout_issue", "issueNumber": True, "agentId": "poppo"}, "bad_request"),
        ({"action": "checkout_issue", "issueNumber": 0, "agentId": "poppo"}, "bad_request"),
        ({"action": "checkout_issue", "issueNumber": 1, "agentId": "in-progress"}, "bad_request"),
        ({"action": "checkout_issue", "issueNumber": 1, "agentId": "a b"}, "bad_request"),
        ({"action": "checkout_issue", "issueNumber": 1, "processId": "issue-2-poppo"}, "bad_request"),
        ({"action": "checkin_issue", "issueNumber": 1, "agentId": "poppo", "status": "eaten"}, "bad_request"),
        ({"action": "heartbeat", "progress": "x" * 70_000}, "too_large"),
    ],
)
def test_bad_requests_are_answered_with_a_reason(
    world: World, asker: Asker, fields: dict[str, Any], code: str
) -> None:
    request_id = uuid.uuid4().hex
    asker.client.publish(REQUESTS, json.dumps({"requestId": request_id, **fields}))
    response = asker.heard()
    assert (response["requestId"], response["success"], response["error"]) == (request_id, False, code)
    assert response["message"].endswith(".")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe not text",
        b"[1, 2]",
        b'"text"',
        b"[" * 100_000,
        b'{"action": "list_processing_issues"}',
        b'{"action": "list_processing_issues", "requestId": 7}',
        b'{"action": "list_processing_issues", "requestId": ""}',
        b'{"action": "list_processing_issues", "requestId": "a\\u0000b"}',
        b'{"action": "list_processing_issues", "requestId": "' + b"x" * 91 + b'"}',
        b'{"requestId": "big", "x": "' + b"x" * 2_000_000 + b'"}',
    ],
)
def test_what_cannot_be_answered_disturbs_nobody(world: World, asker: Asker, data: bytes) -> None:
    redis_client().publish(REQUESTS, data)
    assert asker.silence()


def test_the_same_request_gets_the_same_response(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    wanted = {"issueNumber": number, "agentId": "poppo"}
    first = asker.ask("checkout_issue", "request-1", **wanted)
    assert [asker.ask("checkout_issue", "request-1", **wanted) for _ in range(3)] == [first] * 3
    refused = asker.ask("checkout_issue", "request-2", issueNumber=number, agentId="other")
    asker.ask("checkin_issue", "request-3", **wanted, status="released")
    assert asker.ask("checkout_issue", "request-2", issueNumber=number, agentId="other") == refused
    assert Assignment.objects.count() == 1
    keys = list(world.store.scan_iter("poppo:temp:mirin:*"))
    assert keys
    assert all(0 < world.store.ttl(key) <= 3600 for key in keys)
    # A Redis that forgot the response: the row remembers the checkout.
    world.store.delete(keyspace().key(k.TEMP, name="mirin:request:request-1"))
    again = asker.ask("checkout_issue", "request-1", **wanted)
    assert (again["task"], again["state"]) == (first["task"], "released")
    assert Assignment.objects.count() == 1


def test_each_request_is_handled_by_one_of_several_listeners(world: World, asker: Asker) -> None:
    numbers = [world.open_issue("P1", "BACKENDCODER") for _ in range(4)]
    world.sync()
    with listening(), listening():
        sent = {asker.send("checkout_issue", issueNumber=n, agentId=f"agent-{n}"): n for n in numbers}
        responses = [asker.heard() for _ in sent]
        assert {response["requestId"] for response in responses} == set(sent)
        assert all(response["success"] for response in responses)
        first = next(iter(sent))
        repeated = asker.ask("checkout_issue", first, issueNumber=sent[first], agentId=f"agent-{sent[first]}")
        assert repeated in responses
        assert asker.silence()
    assert asker.silence()
    assert Assignment.objects.count() == 4


def test_two_agents_after_the_same_issue_one_gets_it(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    with listening(), listening():
        for agent in ("one", "two", "three"):
            asker.send("checkout_issue", issueNumber=number, agentId=agent)
        responses = [asker.heard() for _ in range(3)]
    assert sorted(response["success"] for response in responses) == [False, False, True]
    assert world.live() == [number]


def test_the_request_of_a_dead_listener_goes_to_another(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    record = keyspace().key(k.TEMP, name="mirin:request:orphan")
    world.store.set(record, json.dumps({"listener": "gone"}), ex=3600)
    life = keyspace().key(k.TEMP, name="mirin:listener:gone")
    world.store.set(life, "now", ex=3600)  # still alive: leave it alone
    asker.send("checkout_issue", "orphan", issueNumber=number, agentId="poppo")
    assert asker.silence()
    assert world.live() == []
    world.store.delete(life)
    assert asker.ask("checkout_issue", "orphan", issueNumber=number, agentId="poppo")["success"]


def test_github_refusing_undoes_the_checkout_and_it_can_be_repeated(world: World, asker: Asker) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    world.sandbox.fault("github", "status", status=503, path="/labels", times=20)
    wanted = {"issueNumber": number, "agentId": "poppo"}
    response = asker.ask("checkout_issue", "again", **wanted)
    assert (response["success"], response["error"]) == (False, "github_failed")
    assert world.live() == []
    assert not world.store.exists(world.key(k.ISSUE_LOCK, number=number))
    world.sandbox.clear_faults()
    assert asker.ask("checkout_issue", "again", **wanted)["success"]


@pytest.mark.process
def test_it_goes_on_after_redis_was_restarted(world: World) -> None:
    number = world.open_issue("P1", "BACKENDCODER")
    world.sync()
    with listening():
        REDIS.restart()
        wait_for(_hears, "the listener hears again")
        asker = Asker()
        assert asker.ask("checkout_issue", issueNumber=number, agentId="poppo")["success"]
        asker.pubsub.close()
    assert world.live() == [number]


def _hears() -> bool:
    try:
        return bool(redis_client().pubsub_numsub(REQUESTS)[0][1])
    except redis.exceptions.RedisError:
        return False


@pytest.mark.process
def test_the_command_runs_until_it_is_told_to_stop(world: World, tmp_path) -> None:
    """As a process of its own: on an empty database, where every issue is unknown."""
    make_migrated_database(tmp_path)
    env = {**os.environ, "BROKER_VAR": str(tmp_path), "DATABASE_URL": database_url(tmp_path)}
    process = start_python("manage.py", "mirin", env=env)
    try:
        wait_for(_hears, "the command listens")
        asker = Asker()
        assert asker.refused("get_issue_status", issueNumber=7)[0] == "unknown_issue"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not list(redis_client().scan_iter("poppo:temp:mirin:listener:*"))
    finally:
        process.kill()
        process.wait()
