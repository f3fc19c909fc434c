"""Who may call, and what a bad call gets. Over real HTTP: the lean path has no Django around it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.support.server import BrokerServer, BrokerWorld


def post(server: BrokerServer, path: str, token: str = "", **request: Any) -> httpx.Response:
    with server.client(token) as client:
        return client.post(path, **request)


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "Invalid JSON"),
    (b"{", "Invalid JSON"),
    (b"[]", "object"),
    (b'"text"', "object"),
    (b"{}", "agent_id"),
    (b'{"agent_id": 5}', "agent_id"),
    (b'{"agent_id": null}', "agent_id"),
    (b'{"agent_id": ""}', "agent_id"),
    (b'{"agent_id": "a b"}', "agent_id"),
    (b'{"agent_id": "in-progress"}', "agent_id"),
    (b'{"agent_id": "BACKENDCODER"}', "agent_id"),
    (b'{"agent_id": "P1"}', "agent_id"),
    (b'{"agent_id": "a", "timeout": -1}', "timeout"),
    (b'{"agent_id": "a", "timeout": 601}', "timeout"),
    (b'{"agent_id": "a", "timeout": "5"}', "timeout"),
    (b'{"agent_id": "a", "timeout": true}', "timeout"),
    (b'{"agent_id": "a", "timeout": NaN}', "timeout"),
    (b'{"agent_id": "a", "roles": "X"}', "roles"),
    (b'{"agent_id": "a", "roles": [1]}', "roles"),
    (b'{"agent_id": "a", "request_id": ""}', "request_id"),
    (b'{"agent_id": "a", "request_id": 7}', "request_id"),
    (b'{"agent_id": "a", "surprise": 1}', "surprise"),
    (b'{"agent_id": "a\xff"}', "Invalid JSON"),
]


@pytest.mark.parametrize("path", ["/api/v1/request-task", "/request-task"])
def test_bad_bodies_get_422_with_a_code_and_a_sentence(broker_server: BrokerServer, path: str) -> None:
    with broker_server.client() as client:
        for body, part in BAD_BODIES:
            answer = client.post(path, content=body)
            assert (body, answer.status_code) == (body, 422)
            assert answer.json()["error"] == "bad_request"
            assert part in answer.json()["message"], answer.json()
    assert broker_server.redis.scard("poppo:issues:processing") == 0, "nothing changed"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/request-task", 405, "method_not_allowed"),
        ("GET", "/request-task", 405, "method_not_allowed"),
        ("DELETE", "/tasks/fix", 405, "method_not_allowed"),
        ("GET", "/webhooks/github", 405, "method_not_allowed"),
        ("POST", "/api/v1/no-such-call", 404, "not_found"),
        ("POST", "/api/v1/assignments/x/complete", 404, "not_found"),
    ],
)
def test_a_wrong_address_or_method_is_told_in_json(
    broker_server: BrokerServer, method: str, path: str, status: int, code: str
) -> None:
    with broker_server.client() as client:
        answer = client.request(method, path)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert answer.json()["message"]
    assert ("allow" in answer.headers) == (status == 405)


def test_a_huge_body_is_refused(broker_server: BrokerServer) -> None:
    answer = post(broker_server, "/api/v1/request-task", content=b'{"agent_id": "' + b"a" * 100_000 + b'"}')
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large")


@pytest.mark.parametrize(
    "body", [{"agent_id": "agent-1", "timeout": 0}, {"agent_id": "agent-1", "timeout": None}]
)
def test_no_waiting_when_none_is_asked_for(broker_server: BrokerServer, body: dict[str, Any]) -> None:
    assert post(broker_server, "/request-task", json=body).status_code == 200


@pytest.fixture
def guarded(broker_world: BrokerWorld) -> BrokerServer:
    return broker_world.start(BROKER_AGENT_AUTH="token")


def test_tokens_say_who_is_asking(guarded: BrokerServer) -> None:
    one, two = guarded.create_agent("agent-1"), guarded.create_agent("agent-2", "FRONTENDCODER")
    path = "/api/v1/request-task"
    nobody = post(guarded, path, json={"agent_id": "agent-1", "timeout": 0})
    assert (nobody.status_code, nobody.json()["error"]) == (401, "unauthorised")
    assert post(guarded, path, "brk_wrong", json={"agent_id": "agent-1", "timeout": 0}).status_code == 401
    assert post(guarded, path, json={}).status_code == 401, "a bad body does not tell more"
    other = post(guarded, path, one, json={"agent_id": "agent-2", "timeout": 0})
    assert (other.status_code, other.json()["error"]) == (403, "wrong_agent")
    task = post(guarded, path, one, json={"agent_id": "agent-1", "timeout": 0}).json()
    front = post(guarded, path, two, json={"agent_id": "agent-2", "timeout": 0}).json()
    assert front["required_role"] == "FRONTENDCODER"
    for call, body in (("heartbeat", {}), ("complete", {}), ("fail", {"reason": "x"}), ("release", {})):
        answer = post(guarded, f"/api/v1/assignments/{task['assignment_id']}/{call}", two, json=body)
        assert (call, answer.status_code, answer.json()["error"]) == (call, 403, "wrong_agent")
        assert (
            post(guarded, f"/api/v1/assignments/{task['assignment_id']}/{call}", json=body).status_code == 401
        )
    with guarded.client(two) as client:
        assert client.get("/api/v1/agents/agent-1/current-task").status_code == 403
        assert client.get("/api/v1/explain?agent_id=agent-1").status_code == 403
        assert client.get("/api/v1/agents/agent-2/current-task").json() == {**front}


def test_the_description_covers_the_api_and_asks_no_foreign_host(broker_server: BrokerServer) -> None:
    with broker_server.client() as client:
        described = client.get("/api/v1/openapi.json").json()
        assert described["components"]["securitySchemes"]["AgentToken"]["scheme"] == "bearer"
        paths = described["paths"]
        assert set(paths) == {
            "/api/v1/request-task",
            "/api/v1/assignments/{assignment_id}/heartbeat",
            "/api/v1/assignments/{assignment_id}/complete",
            "/api/v1/assignments/{assignment_id}/fail",
            "/api/v1/assignments/{assignment_id}/release",
            "/api/v1/agents/{agent_id}/current-task",
            "/api/v1/explain",
            "/api/v1/tasks/fix",
        }
        page = client.get("/api/v1/docs")
        assert page.status_code == 200
        addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert addresses
        assert [address for address in addresses if not address.startswith(("/static/", "data:"))] == []


def test_explain_needs_an_agent(broker_server: BrokerServer) -> None:
    with broker_server.client() as client:
        missing = client.get("/api/v1/explain")
        assert (missing.status_code, missing.json()["error"]) == (422, "bad_request")
        rows = client.get("/api/v1/explain?agent_id=agent-1").json()
        assert (rows["agent_id"], rows["gate"]) == ("agent-1", "open")
        assert set(rows["issues"][0]) == {"number", "title", "priority", "offered", "reason"}


def test_github_off_answers_503(broker_world: BrokerWorld) -> None:
    server = broker_world.start(BROKER_SANDBOX="0")
    token = server.create_agent("agent-1")
    answer = post(server, "/api/v1/request-task", token, json={"agent_id": "agent-1", "timeout": 0})
    assert (answer.status_code, answer.json()["error"]) == (503, "github_off")
