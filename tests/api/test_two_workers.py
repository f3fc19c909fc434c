"""``uvicorn --workers 2``: what one worker did, the other knows. Each client here is tied to one of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.support.broker_process import wait_for
from tests.support.server import BrokerServer, BrokerWorld

pytestmark = pytest.mark.slow
CODE = "/github/repos/broker-sandbox/demo"
PERSON = {"Authorization": "token user:maintainer"}
ADMIN, PASSWORD = "chief", "a-long-enough-password"


class Pair:
    """A server of two workers; ``first`` and ``second`` are connections to one each."""

    def __init__(self, server: BrokerServer) -> None:
        self.server = server
        self.clients: list[httpx.Client] = []
        self.pids = wait_for(self._both, "two workers listen")
        self.first, self.second = self.client(self.pids[0]), self.client(self.pids[1])

    def _both(self) -> list[int] | None:
        pids = sorted(process.pid for process in self.server.worker_processes())
        return pids if len(pids) == 2 else None

    def client(self, pid: int) -> httpx.Client:
        """A client whose one connection was taken by that worker."""

        def look() -> httpx.Client | None:
            client = self.server.client(timeout=60, limits=httpx.Limits(max_connections=1))
            self.clients.append(client)
            port = ask_port(client)
            return client if port in remote_ports(pid) else None

        return wait_for(look, f"a connection to worker {pid}")

    def close(self) -> None:
        for client in self.clients:
            client.close()


def ask_port(client: httpx.Client) -> int:
    """The client's own port of the connection that it will use again."""
    with client.stream("GET", "/health") as answer:
        answer.read()
        port: int = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        return port


def remote_ports(pid: int) -> set[int]:
    return {
        connection.raddr.port
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED
    }


@pytest.fixture(scope="module")
def shared(_broker_world: BrokerWorld) -> Iterator[BrokerServer]:
    """One server for all tests here: each has agents of its own."""
    _broker_world.begin()
    yield _broker_world.start(workers=2, BROKER_PRIORITY_GATE="assignable")
    _broker_world.end()


@pytest.fixture
def pair(shared: BrokerServer) -> Iterator[Pair]:
    found = Pair(shared)
    yield found
    found.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def rows_of(pair: Pair, agent: str) -> int:
    found = pair.server.query(
        "SELECT a.id FROM tasks_assignment a JOIN tasks_agent g ON g.id = a.agent_id WHERE g.name = ?", agent
    )
    return len(found)


def ask(client: httpx.Client, agent: str, timeout: float = 0, **more: Any) -> httpx.Response:
    return client.post("/api/v1/request-task", json={"agent_id": agent, "timeout": timeout, **more})


def beat(client: httpx.Client, task: dict[str, Any]) -> httpx.Response:
    return client.post(f"/api/v1/assignments/{task['assignment_id']}/heartbeat", json={})


def close_everything(server: BrokerServer) -> None:
    state = server.sandbox.state("github")
    for issue in state["repositories"][0]["issues"]:
        issue |= {"state": "closed", "closed_at": issue["updated_at"]}
    server.sandbox.load("github", state)
    server.query("UPDATE tasks_issue SET is_open = false")
    server.query("UPDATE tasks_pullrequest SET is_open = false")
    server.redis.flushall()


def signed_webhook(server: BrokerServer, client: httpx.Client) -> dict[str, Any]:
    """A new issue on GitHub, told of over this very connection."""
    data = {"title": "new work", "body": "## 成果物\n- x", "labels": ["P0", "BACKENDCODER"]}
    issue: dict[str, Any] = server.sandbox.client.post(f"{CODE}/issues", json=data, headers=PERSON).json()
    repository = server.sandbox.client.get(CODE, headers=PERSON).json()
    payload = {"action": "opened", "issue": issue, "repository": repository, "sender": issue["user"]}
    body, headers = server.signed("issues", payload, uuid.uuid4().hex)
    assert client.post("/webhooks/github", content=body, headers=headers).status_code == 202
    return issue


def test_a_request_id_is_replayed_by_the_other(pair: Pair) -> None:
    request_id = uuid.uuid4().hex
    first = ask(pair.first, "replay-1", request_id=request_id).json()
    again = ask(pair.second, "replay-1", request_id=request_id).json()
    assert again.pop("state") == "live"
    assert again == first
    assert rows_of(pair, "replay-1") == 1


@pytest.mark.database
def test_twins_at_both_get_one_task(pair: Pair, pool: ThreadPoolExecutor) -> None:
    request_id = uuid.uuid4().hex
    twins = [
        pool.submit(ask, client, "twin-1", 20, request_id=request_id) for client in (pair.first, pair.second)
    ]
    answers = [twin.result(60).json() for twin in twins]
    assert len({answer["assignment_id"] for answer in answers}) == 1
    assert rows_of(pair, "twin-1") == 1


def test_heartbeats_and_the_end_at_the_other(pair: Pair) -> None:
    task = ask(pair.first, "ender-1").json()
    for client in (pair.second, pair.first, pair.second):
        assert beat(client, task).json()["cancel"] is False
    done = pair.client(pair.pids[1]).post(f"/api/v1/assignments/{task['assignment_id']}/complete", json={})
    assert done.status_code == 200
    assert [beat(client, task).status_code for client in (pair.client(pair.pids[0]), pair.second)] == [
        409,
        409,
    ]


def test_what_an_admin_cancels_at_one_the_other_tells(pair: Pair) -> None:
    task = ask(pair.first, "cancelled-1").json()
    assert [beat(client, task).json()["cancel"] for client in (pair.first, pair.second)] == [False, False]
    pair.server.manage(
        "shell",
        "--no-imports",
        "-c",
        "from django.contrib.auth import get_user_model as g;"
        f"g().objects.create_superuser('{ADMIN}', '', '{PASSWORD}')",
    )
    admin = pair.client(pair.pids[1])
    page = admin.get("/admin/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token
    form = {"username": ADMIN, "password": PASSWORD, "csrfmiddlewaretoken": token[1], "next": "/status/"}
    assert admin.post("/admin/login/", data=form, headers={"Referer": pair.server.url}).status_code == 302
    # The session was made at the second worker; the first knows it.
    other = pair.client(pair.pids[0])
    other.cookies = admin.cookies
    assert other.get("/status/").status_code == 200
    action = {
        "action": "release",
        "_selected_action": str(task["assignment_id"]),
        "confirmed": "yes",
        "csrfmiddlewaretoken": admin.cookies["csrftoken"],
    }
    released = admin.post("/admin/tasks/assignment/", data=action, headers={"Referer": pair.server.url})
    assert released.status_code == 302, released.text[:2000]
    assert beat(pair.client(pair.pids[0]), task).json()["cancel"] is True


def test_an_agent_that_is_switched_off_is_refused_by_both(pair: Pair) -> None:
    for pid in pair.pids:
        assert ask(pair.client(pid), "off-1").status_code in (200, 204)
    pair.server.manage(
        "shell",
        "--no-imports",
        "-c",
        "from tasks.models import Agent; agent = Agent.objects.get(name='off-1');"
        "agent.is_enabled = False; agent.save()",
    )
    for pid in pair.pids:
        client = pair.client(pid)
        assert wait_for(lambda client=client: ask(client, "off-1").status_code == 403, "it is refused")  # type: ignore[misc]


def test_a_webhook_at_one_wakes_an_agent_at_the_other(pair: Pair, pool: ThreadPoolExecutor) -> None:
    close_everything(pair.server)
    for waiting_at, told_at in ((pair.pids[0], pair.pids[1]), (pair.pids[1], pair.pids[0])):
        agent = f"agent-{waiting_at}"
        assert ask(pair.client(waiting_at), agent).status_code == 204
        future: Future[httpx.Response] = pool.submit(ask, pair.client(waiting_at), agent, 50)
        issue = signed_webhook(pair.server, pair.client(told_at))
        answer = future.result(60)
        assert (answer.status_code, answer.json()["issue_id"]) == (200, issue["number"])
