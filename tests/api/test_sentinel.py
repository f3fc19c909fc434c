"""Redis behind a sentinel: the broker works, and goes on when another server becomes master."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.broker_process import run_manage, wait_for
from tests.support.sentinel import SentinelWorld, sentinel_world
from tests.support.server import BrokerServer, BrokerWorld

pytestmark = [pytest.mark.slow, pytest.mark.process]
PASSWORD = "secret-of-the-master"
CODE = "/github/repos/broker-sandbox/demo"
PERSON = {"Authorization": "token user:maintainer"}


@pytest.fixture(scope="module")
def sentinel() -> Iterator[SentinelWorld]:
    with sentinel_world(PASSWORD) as world:
        yield world


@pytest.fixture
def server(broker_world: BrokerWorld, sentinel: SentinelWorld) -> Iterator[BrokerServer]:
    sentinel.client(sentinel.port_of_master()).flushall()
    started = broker_world.start(REDIS_URL=sentinel.url, BROKER_PRIORITY_GATE="assignable")
    yield started
    assert PASSWORD not in started.output


def ask(server: BrokerServer, agent: str, timeout: float = 0) -> httpx.Response:
    with server.client(timeout=90) as client:
        return client.post("/api/v1/request-task", json={"agent_id": agent, "timeout": timeout})


def get_task(server: BrokerServer, agent: str) -> dict[str, Any]:
    """A task, however often Redis is away meanwhile. 503 is the one excuse."""

    def look() -> dict[str, Any] | None:
        answer = ask(server, agent)
        assert answer.status_code in (200, 503), (answer.status_code, answer.text)
        return answer.json() if answer.status_code == 200 else None

    return wait_for(look, f"a task for {agent}")


def close_everything(server: BrokerServer) -> None:
    """Nothing on offer any more."""
    state = server.sandbox.state("github")
    for issue in state["repositories"][0]["issues"]:
        issue |= {"state": "closed", "closed_at": issue["updated_at"]}
    server.sandbox.load("github", state)
    server.query("UPDATE tasks_issue SET is_open = false")
    server.query("UPDATE tasks_pullrequest SET is_open = false")


def open_issue(server: BrokerServer) -> None:
    data = {"title": "new work", "body": "## 成果物\n- x", "labels": ["P0", "BACKENDCODER"]}
    issue = server.sandbox.client.post(f"{CODE}/issues", json=data, headers=PERSON).json()
    repository = server.sandbox.client.get(CODE, headers=PERSON).json()
    payload = {"action": "opened", "issue": issue, "repository": repository, "sender": issue["user"]}
    assert server.send_webhook("issues", payload, f"d-{issue['number']}").status_code == 202


def heartbeat(server: BrokerServer, task: dict[str, Any]) -> httpx.Response:
    with server.client() as client:
        return client.post(f"/api/v1/assignments/{task['assignment_id']}/heartbeat", json={})


def test_every_kind_of_connection(server: BrokerServer, sentinel: SentinelWorld) -> None:
    task = get_task(server, "agent-1")
    assert heartbeat(server, task).json()["cancel"] is False
    keys = sentinel.client(sentinel.port_of_master()).keys("*")
    assert "poppo:agent_current_task:agent-1" in keys
    with server.client() as client:
        assert client.get("/readyz").json()["redis"] == "ok"
        page = client.get("/admin/login/")
    assert page.status_code == 200
    assert "issues=" in server.poll("issues")
    assert "poppo:agent_current_task" in server.manage("keys", "list", "poppo:agent_current_task:*")


def test_another_master_by_order(server: BrokerServer, sentinel: SentinelWorld) -> None:
    task = get_task(server, "agent-1")
    port = sentinel.fail_over()
    # The lease is in the database: it stands, whatever Redis does.
    assert wait_for(lambda: heartbeat(server, task).status_code == 200, "a heartbeat")
    other = get_task(server, "agent-2")
    assert other["issue_id"] != task["issue_id"]

    # What was written to the former master in its last moment is gone; a heartbeat writes it again.
    def look() -> bool:
        assert heartbeat(server, other).status_code == 200
        return bool(sentinel.client(port).get("poppo:agent_current_task:agent-2") == str(other["issue_id"]))

    wait_for(look, "the new master knows what agent-2 does")


def test_a_killed_master(server: BrokerServer, sentinel: SentinelWorld) -> None:
    task = get_task(server, "agent-1")
    close_everything(server)
    sentinel.client(sentinel.port_of_master()).flushall()
    with ThreadPoolExecutor(1) as pool:
        assert wait_for(lambda: ask(server, "agent-9").status_code == 204, "nothing on offer")
        waiting = pool.submit(ask, server, "agent-2", 60)
        sentinel.kill_master()
        # Its time may go on if nothing was asked of Redis meanwhile; else it is told to come again.
        wait_for(lambda: heartbeat(server, task).status_code == 200, "a heartbeat")
        open_issue(server)
        answer = waiting.result(80)
        assert answer.status_code in (200, 503)
        if answer.status_code == 503:
            given = wait_for(lambda: next(iter(given_to(server, "agent-2")), None), "the task")
        else:
            given = answer.json()
        assert given["title"] == "new work"


def given_to(server: BrokerServer, agent: str) -> list[dict[str, Any]]:
    answer = ask(server, agent, 5)
    assert answer.status_code in (200, 204, 503)
    return [answer.json()] if answer.status_code == 200 else []


def test_a_master_that_nobody_knows_stops_the_start(
    broker_world: BrokerWorld, sentinel: SentinelWorld
) -> None:
    folder = broker_world.new_folder()
    for url, says in [
        (sentinel.url.replace("/mymaster", "/nobody"), "no sentinel there knows a master of that name"),
        (sentinel.url.replace(PASSWORD, "not-the-password"), "refuses this user or password"),
        (f"redis+sentinel://:{PASSWORD}@127.0.0.1:26379", "must name the master"),
    ]:
        env = {**BrokerServer(broker_world, folder, REDIS_URL=url).env, "PORT": "1"}
        done = run_manage("qcluster", env=env)
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert "REDIS_URL" in said
        assert says in said
        assert PASSWORD not in said
        assert "not-the-password" not in said
        assert "Traceback" not in said
