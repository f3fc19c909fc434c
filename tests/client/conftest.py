"""A real server for the client to talk to, and clients that are gone after the test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.agent_process import AgentProcess
from tests.support.server import BrokerServer, BrokerWorld, _broker_world, broker_server, broker_world

__all__ = ["_broker_world", "broker_server", "broker_world"]


@pytest.fixture(scope="module")
def server(_broker_world: BrokerWorld) -> Iterator[BrokerServer]:
    """One server for a whole module, whatever the priority: the tests use agents of their own."""
    _broker_world.begin()
    yield _broker_world.start(BROKER_PRIORITY_GATE="assignable")
    _broker_world.end()


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
