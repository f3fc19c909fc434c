"""A new version goes live: the web process is ended while agents wait, and the supervisor starts the next one.

Real supervisor, real agents. The listening socket belongs to the supervisor, so nobody is refused meanwhile.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sandbox.launcher import SandboxHandle, start_sandbox
from tests.client.agent_process import Start
from tests.client.conftest import CODE, PERSON
from tests.support.broker_process import BrokerProcess, wait_for

pytestmark = pytest.mark.process

AGENTS = 5
SECRET = "webhook-secret-of-this-test"
WEB = "broker_project.ops.supervisor.web"
WORK = {"title": "new work", "body": "## 成果物\n- x", "labels": ["P0", "BACKENDCODER"]}


class Installation:
    def __init__(self, broker: BrokerProcess, sandbox: SandboxHandle) -> None:
        self.broker = broker
        self.sandbox = sandbox

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.broker.var / "broker.sqlite3", timeout=30)) as database:
            return database.execute(sql, values).fetchall()

    def new_work(self) -> dict[str, Any]:
        """An issue on GitHub, and the delivery that tells of it."""
        github = self.sandbox.client
        issue = github.post(f"{CODE}/issues", json=WORK, headers=PERSON).json()
        repository = github.get(CODE, headers=PERSON).json()
        return {"action": "opened", "issue": issue, "repository": repository, "sender": issue["user"]}

    def tell(self, payload: dict[str, Any]) -> int:
        """Deliver it as GitHub would; the issue's number."""
        body = json.dumps(payload).encode()
        headers = {
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": uuid.uuid4().hex,
            "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
            "Content-Type": "application/json",
        }
        answer = httpx.post(
            self.broker.url("/webhooks/github"), content=body, headers=headers, timeout=60, trust_env=False
        )
        assert answer.status_code == 202, answer.text
        return int(payload["issue"]["number"])

    def replace_web(self) -> None:
        """SIGTERM to the web process, and its successor has answered."""
        old = self.broker.part(WEB)
        old.terminate()
        wait_for(lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE, "the old one is gone")
        wait_for(lambda: self.broker.part(WEB).pid != old.pid, "the new one is there")
        wait_for(lambda: self.broker.status("/health") == 200, "the new one answers")

    def waiting(self) -> int:
        connections = self.broker.part(WEB).net_connections("tcp")
        ours = [c for c in connections if c.laddr and c.laddr.port == self.broker.port]
        return sum(c.status == "ESTABLISHED" for c in ours)

    def assignments(self) -> list[tuple[str, int, str]]:
        """Agent, issue and state of each, oldest first."""
        return self.rows(
            "SELECT g.name, a.number, a.state FROM tasks_assignment a JOIN tasks_agent g ON g.id = a.agent_id"
            " ORDER BY a.id"
        )


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """With nothing on offer at first."""
    var = tmp_path / "var"
    var.mkdir()
    with start_sandbox() as sandbox:
        state = sandbox.state("github")
        for issue in state["repositories"][0]["issues"]:
            issue |= {"state": "closed", "closed_at": issue["updated_at"]}
        sandbox.load("github", state)
        broker = BrokerProcess(var, BROKER_SANDBOX_URL=sandbox.base_url, GITHUB_WEBHOOK_SECRET=SECRET)
        try:
            broker.wait_until_greeted()
            yield Installation(broker, sandbox)
        finally:
            broker.close()


@pytest.mark.slow
def test_waiting_agents_outlive_the_web_process(installation: Installation, start_agent: Start) -> None:
    url = installation.broker.url("")
    agents = [start_agent(url, "print('done')", agent=f"waiter-{number}") for number in range(AGENTS)]
    wait_for(lambda: installation.waiting() >= AGENTS, "all of them wait")
    installation.replace_web()
    wait_for(lambda: installation.waiting() >= AGENTS, "all of them wait again")
    # They were answered (204) and asked again: none of them saw a broken or refused connection.
    assert [agent.said for agent in agents] == [""] * AGENTS
    assert [agent.process.poll() for agent in agents] == [None] * AGENTS
    numbers = {installation.tell(installation.new_work()) for _ in range(AGENTS)}
    wait_for(
        lambda: [state for _, _, state in installation.assignments()].count("completed") == AGENTS,
        "all is done",
    )
    rows = installation.assignments()
    assert {number for _, number, _ in rows} == numbers
    assert len(rows) == AGENTS, "nothing was assigned twice"
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.wait() for agent in agents] == [0] * AGENTS, [agent.said for agent in agents]


@pytest.mark.slow
def test_a_task_assigned_while_the_web_process_ends_is_given_again(
    installation: Installation, start_agent: Start
) -> None:
    """GitHub does not answer the assignment for longer than the web process waits when it is ended."""
    agent = start_agent(installation.broker.url(""), "print('done')", agent="steady")
    wait_for(lambda: installation.waiting() >= 1, "it waits")
    payload = installation.new_work()
    old = installation.broker.part(WEB)
    installation.sandbox.process.send_signal(signal.SIGSTOP)
    try:
        number = installation.tell(payload)
        wait_for(
            lambda: installation.assignments() == [("steady", number, "claiming")], "it is being assigned"
        )
        old.terminate()
        # The server gives up on the open request, or the thread behind it keeps the process: the agent asks again.
        wait_for(lambda: agent.said or not old.is_running(), "the agent was cut off")
    finally:
        installation.sandbox.process.send_signal(signal.SIGCONT)
    agent.wait_until_said(f"issue {number} completed")
    assert installation.assignments() == [("steady", number, "completed")], agent.said
    labels = installation.sandbox.client.get(f"{CODE}/issues/{number}", headers=PERSON).json()["labels"]
    assert "in-progress" not in {label["name"] for label in labels}
