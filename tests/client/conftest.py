"""A real server for the client to talk to, and clients that are gone after the test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.agent_process import AgentProcess
from tests.support.server import BrokerServer, BrokerWorld, _broker_world, broker_server, broker_world

__all__ = ["_broker_world", "broker_server", "broker_world"]


CODE = "/github/repos/broker-sandbox/demo"
PERSON = {"Authorization": "token user:maintainer"}


@pytest.fixture(scope="module")
def shared_server(_broker_world: BrokerWorld) -> Iterator[BrokerServer]:
    """One server for a whole module, whatever the priority: the tests use agents of their own."""
    _broker_world.begin()
    yield _broker_world.start(BROKER_PRIORITY_GATE="assignable")
    _broker_world.end()


@pytest.fixture
def server(shared_server: BrokerServer) -> BrokerServer:
    """The shared server with new work on offer: the test before may have done all there was."""
    github = shared_server.sandbox.client
    repository = github.get(CODE, headers=PERSON).json()
    for _ in range(4):
        data = {"title": "new work", "body": "## 成果物\n- x", "labels": ["P0", "BACKENDCODER"]}
        issue = github.post(f"{CODE}/issues", json=data, headers=PERSON).json()
        payload = {"action": "opened", "issue": issue, "repository": repository, "sender": issue["user"]}
        assert shared_server.send_webhook("issues", payload, uuid.uuid4().hex).status_code == 202
    return shared_server


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """``start_agent(url, script, *options, agent="…", **env)``: a running client, with a name of its own."""
    started: list[AgentProcess] = []

    def start(url: str, script: str, *options: str, agent: str = "", **env: str) -> AgentProcess:
        folder = tmp_path / f"agent-{len(started)}"
        folder.mkdir()
        started.append(
            AgentProcess(folder, url, script, *options, agent=agent or f"coder-{uuid.uuid4().hex[:8]}", **env)
        )
        return started[-1]

    yield start
    for client in started:
        client.close()
