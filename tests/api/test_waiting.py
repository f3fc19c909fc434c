"""The lean path over real HTTP: waiting, waking, leaving, stopping."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from tests.support.broker_process import http_status, wait_for
from tests.support.server import BrokerServer

KEYS = Keyspace(RedisNames())
CODE = "/github/repos/broker-sandbox/demo"
PERSON = {"Authorization": "token user:maintainer"}


def ask(server: BrokerServer, agent: str, timeout: float = 0, **more: Any) -> httpx.Response:
    with server.client(timeout=60) as client:
        return client.post("/api/v1/request-task", json={"agent_id": agent, "timeout": timeout, **more})


@pytest.fixture
def idle(broker_server: BrokerServer) -> BrokerServer:
    """A server with nothing on offer: every issue of the seed is closed, on GitHub and in the rows."""
    state = broker_server.sandbox.state("github")
    for issue in state["repositories"][0]["issues"]:
        issue |= {"state": "closed", "closed_at": issue["updated_at"]}
    broker_server.sandbox.load("github", state)
    broker_server.query("UPDATE tasks_issue SET is_open = false")
    broker_server.query("UPDATE tasks_pullrequest SET is_open = false")
    broker_server.redis.flushall()
    assert ask(broker_server, "agent-0").status_code == 204
    return broker_server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as made:
        yield made


def open_issue(server: BrokerServer, *labels: str, title: str = "new work") -> dict[str, Any]:
    data = {"title": title, "body": "## 成果物\n- x", "labels": list(labels) or ["P0", "BACKENDCODER"]}
    answer = server.sandbox.client.post(f"{CODE}/issues", json=data, headers=PERSON)
    answer.raise_for_status()
    issue: dict[str, Any] = answer.json()
    return issue


def webhook(server: BrokerServer, issue: dict[str, Any], action: str = "opened") -> None:
    repository = server.sandbox.client.get(CODE, headers=PERSON).json()
    payload = {"action": action, "issue": issue, "repository": repository, "sender": issue["user"]}
    answer = server.send_webhook("issues", payload, f"d-{issue['number']}-{action}-{time.monotonic_ns()}")
    assert answer.status_code == 202, answer.text


def waiting(server: BrokerServer) -> int:
    """Connections that the server holds open for agents."""
    assert server.process is not None
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(
        1 for c in connections if c.status == "ESTABLISHED" and c.laddr and c.laddr.port == server.port
    )


def start_waiting(
    server: BrokerServer, pool: ThreadPoolExecutor, *agents: str, **more: Any
) -> dict[str, Future[httpx.Response]]:
    asked = {agent: pool.submit(ask, server, agent, 30, **more) for agent in agents}
    wait_for(lambda: waiting(server) >= len(agents), "the agents wait")
    return asked


def test_a_webhook_reaches_one_waiting_agent(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, *(f"agent-{n}" for n in range(5)))
    issue = open_issue(idle)
    webhook(idle, issue)
    wait_for(lambda: sum(future.done() for future in asked.values()) == 1, "one of them is answered")
    given = [future.result() for future in asked.values() if future.done()]
    assert given[0].json()["issue_id"] == issue["number"]
    idle.stop()
    assert sorted(future.result().status_code for future in asked.values()) == [200, 204, 204, 204, 204]


def test_a_poll_in_another_process_wakes_as_well(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, "agent-1")
    issue = open_issue(idle)
    idle.poll("issues")
    assert asked["agent-1"].result().json()["issue_id"] == issue["number"]


def test_work_goes_to_the_agent_with_the_role(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    backend = start_waiting(idle, pool, "agent-b", roles=["BACKENDCODER"])
    front = start_waiting(idle, pool, "agent-f", roles=["FRONTENDCODER"])
    webhook(idle, open_issue(idle, "P0", "FRONTENDCODER"))
    assert front["agent-f"].result().status_code == 200
    assert not backend["agent-b"].done()
    idle.stop()
    assert backend["agent-b"].result().status_code == 204


def test_many_new_tasks_wake_as_many_agents(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, *(f"agent-{n}" for n in range(12)))
    numbers = {open_issue(idle)["number"] for _ in range(12)}
    idle.poll("issues")
    answers = [future.result() for future in asked.values()]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["issue_id"] for answer in answers} == numbers


def test_a_lost_signal_is_made_up_for(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, "agent-1")
    # Kick the subscription out of Redis just before the work arrives; nobody rings.
    idle.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    answer = asked["agent-1"].result()
    assert answer.status_code == 503, "a broken subscription is not waited on in silence"
    assert answer.json()["error"] == "redis_down"
    issue = open_issue(idle)
    idle.poll("issues")
    assert ask(idle, "agent-1", 20).json()["issue_id"] == issue["number"]


def test_nothing_is_claimed_for_a_client_that_has_gone(idle: BrokerServer) -> None:
    body = json.dumps({"agent_id": "agent-gone", "timeout": 60})
    with socket.create_connection(("127.0.0.1", idle.port)) as connection:
        request = (
            f"POST /api/v1/request-task HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        connection.sendall(request.encode())
        wait_for(lambda: waiting(idle) == 1, "the agent waits")
    wait_for(lambda: waiting(idle) == 0, "the server noticed")
    issue = open_issue(idle)
    webhook(idle, issue)
    assert ask(idle, "agent-here").json()["issue_id"] == issue["number"]


def test_shutdown_sends_waiting_agents_home(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, *(f"agent-{n}" for n in range(8)))
    assert idle.process is not None
    idle.process.send_signal(signal.SIGTERM)
    assert [future.result().status_code for future in asked.values()] == [204] * 8
    idle.process.wait(15)


def test_maintenance_reaches_those_who_wait(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, "agent-1", "agent-2")
    idle.redis.set(KEYS.key(k.FLAG_MAINTENANCE), '{"reason": "moving"}')
    for future in asked.values():
        assert future.result().status_code == 503
        assert "moving" in future.result().json()["message"]


def test_redis_dying_ends_the_wait_with_503(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    asked = start_waiting(idle, pool, "agent-1")
    idle.world.redis_server.process.kill()
    idle.world.redis_server.process.wait()
    try:
        assert asked["agent-1"].result().status_code == 503
        answer = ask(idle, "agent-1")
        assert (answer.status_code, answer.json()["error"]) == (503, "redis_down")
        assert answer.headers["Retry-After"]
        assert http_status(idle.port, "/readyz") == 503
        assert http_status(idle.port, "/health") == 200
    finally:
        idle.world.redis_server.restart()
    issue = open_issue(idle)
    idle.poll("issues")
    assert ask(idle, "agent-1", 20).json()["issue_id"] == issue["number"], "an empty Redis is filled again"


def test_endings_work_while_redis_is_away(broker_server: BrokerServer) -> None:
    tasks = [ask(broker_server, f"agent-{n}").json() for n in range(4)]
    broker_server.world.redis_server.process.kill()
    broker_server.world.redis_server.process.wait()
    try:
        with broker_server.client() as client:
            calls: tuple[tuple[str, dict[str, str]], ...] = (
                ("heartbeat", {}),
                ("complete", {}),
                ("fail", {"reason": "x"}),
                ("release", {}),
            )
            for task, (call, body) in zip(tasks, calls, strict=True):
                path = f"/api/v1/assignments/{task['assignment_id']}/{call}"
                assert (call, client.post(path, json=body).status_code) == (call, 200)
                assert (call, client.post(path, json=body).status_code) == (call, 200)
            figures = client.get("/metrics")
            assert (figures.status_code, "broker_open_issues" in figures.text) == (200, True)
    finally:
        broker_server.world.redis_server.restart()


def test_a_redis_that_is_back_is_not_told_as_down(broker_server: BrokerServer) -> None:
    """Its restart closed the connections that the server keeps."""
    assert ask(broker_server, "agent-1").status_code == 200
    broker_server.world.redis_server.process.kill()
    broker_server.world.redis_server.process.wait()
    broker_server.world.redis_server.restart()
    assert ask(broker_server, "agent-2").status_code == 200


def test_waiting_agents_cost_no_threads(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    assert idle.process is not None
    process = psutil.Process(idle.process.pid)
    # A crowd first: the bounded pool for what blocks may have grown to its size before it is counted.
    assert {
        future.result().status_code for future in [pool.submit(ask, idle, f"a{n}") for n in range(40)]
    } == {204}
    before = process.num_threads()
    start_waiting(idle, pool, *(f"agent-{n}" for n in range(30)))
    assert process.num_threads() <= before + 2, "the pool may have grown a little, not by agents"
    idle.stop()


def test_a_crowd_that_asks_at_once_is_served_in_turn(idle: BrokerServer) -> None:
    async def crowd() -> list[int]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=idle.url, limits=limits, timeout=60, trust_env=False, verify=False
        ) as client:
            asked = [
                client.post("/api/v1/request-task", json={"agent_id": f"agent-{n}", "timeout": 0})
                for n in range(200)
            ]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert set(asyncio.run(crowd())) == {204}


def test_a_repeated_request_waits_for_the_first_one_in_flight(
    idle: BrokerServer, pool: ThreadPoolExecutor
) -> None:
    """Whatever its own time-out: a 204 would make the agent ask anew and end a task it never heard of."""
    lock = KEYS.key(k.ISSUE_LOCK, number=open_issue(idle)["number"])
    open_issue(idle)
    idle.poll("issues")
    github = psutil.Process(idle.sandbox.process.pid)
    github.suspend()
    try:
        first = pool.submit(ask, idle, "agent-1", 0, request_id="r-1")
        wait_for(lambda: bool(idle.redis.exists(lock)), "the first one is being assigned")
        again = pool.submit(ask, idle, "agent-1", 0, request_id="r-1")
        wait_for(lambda: again.done() or waiting(idle) >= 2, "the second one asks")
    finally:
        github.resume()
    assert (first.result().status_code, again.result().status_code) == (200, 200)
    assert again.result().json()["assignment_id"] == first.result().json()["assignment_id"]


def test_who_is_in_work_when_patience_ends_is_told_to_come_back(
    idle: BrokerServer, pool: ThreadPoolExecutor
) -> None:
    """GitHub hangs while the server is told to stop: 503 for the lean path and for Django, and nothing is lost."""
    idle.stop()
    idle.drain_seconds = 1
    idle.start()
    open_issue(idle)
    idle.poll("issues")
    complete = f"/api/v1/assignments/{ask(idle, 'agent-2').json()['assignment_id']}/complete"

    def finish() -> httpx.Response:
        with idle.client(timeout=60) as client:
            return client.post(complete, json={"result": {"summary": "done"}})

    lock = KEYS.key(k.ISSUE_LOCK, number=open_issue(idle)["number"])
    idle.poll("issues")
    github = psutil.Process(idle.sandbox.process.pid)
    github.suspend()
    try:
        asked = pool.submit(ask, idle, "agent-1", 0, request_id="r-1")
        wait_for(lambda: bool(idle.redis.exists(lock)), "the task is being assigned")
        finished = pool.submit(finish)
        wait_for(lambda: waiting(idle) >= 2, "both are in work")
        assert idle.process is not None
        idle.process.terminate()
        for told in (asked.result(), finished.result()):
            assert (told.status_code, told.json()["error"]) == (503, "stopping")
            assert told.headers["Retry-After"] == "5"
    finally:
        github.resume()
    idle.process.wait(30)
    assert "Traceback" not in idle.output
    idle.start()
    again = ask(idle, "agent-1", 0, request_id="r-1")
    assert again.status_code == 200
    assert finish().status_code == 200
    assert len(idle.query("SELECT 1 FROM tasks_assignment WHERE number = ?", again.json()["issue_id"])) == 1


def test_a_waiting_twin_hears_of_the_task_in_the_end(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    twins = [pool.submit(ask, idle, "agent-1", 4, request_id="r-1") for _ in range(2)]
    wait_for(lambda: waiting(idle) >= 2, "both wait")
    webhook(idle, open_issue(idle))
    answers = [twin.result() for twin in twins]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({answer.json()["assignment_id"] for answer in answers}) == 1


@pytest.mark.database
def test_an_issue_that_is_closed_cancels_with_the_very_next_heartbeat(idle: BrokerServer) -> None:
    """Heartbeats are answered from Redis between two writes to the row."""
    issue = open_issue(idle)
    webhook(idle, issue)
    heartbeat = f"/api/v1/assignments/{ask(idle, 'agent-1').json()['assignment_id']}/heartbeat"
    with idle.client() as client:
        assert [client.post(heartbeat).json()["cancel"] for _ in range(2)] == [False, False]
        closed = idle.sandbox.client.patch(
            f"{CODE}/issues/{issue['number']}", json={"state": "closed"}, headers=PERSON
        ).json()
        webhook(idle, closed, "closed")
        assert client.post(heartbeat).json()["cancel"] is True


@pytest.mark.database
def test_two_servers_share_the_work(idle: BrokerServer, pool: ThreadPoolExecutor) -> None:
    second = idle.another()
    here = start_waiting(idle, pool, "agent-1", "agent-2")
    there = start_waiting(second, pool, "agent-3", "agent-4")
    numbers = {open_issue(idle)["number"] for _ in range(4)}
    idle.poll("issues")
    answers = [future.result() for future in (*here.values(), *there.values())]
    assert {answer.json()["issue_id"] for answer in answers} == numbers
