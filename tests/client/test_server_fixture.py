"""The server fixture itself: several processes on the same stores, and a fresh start for every test."""

from __future__ import annotations

from tests.support.server import BrokerServer


def ask(server: BrokerServer, agent: str) -> dict:
    with server.client() as client:
        answer = client.post("/api/v1/request-task", json={"agent_id": agent, "timeout": 0})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_two_processes_share_one_queue(broker_server: BrokerServer) -> None:
    other = broker_server.another()
    first, second = ask(broker_server, "one"), ask(other, "two")
    assert first["issue_id"] != second["issue_id"]
    other.kill()
    with broker_server.client() as client:
        assert client.get("/api/v1/agents/two/current-task").json()["issue_id"] == second["issue_id"]


def test_every_test_begins_anew_and_a_server_can_be_started_again(broker_server: BrokerServer) -> None:
    first = ask(broker_server, "one")
    assert first["assignment_id"] == 1
    broker_server.stop()
    broker_server.start()
    with broker_server.client() as client:
        assert client.get("/api/v1/agents/one/current-task").json()["assignment_id"] == 1
