"""Agents over real HTTP: only with a token of their own, and not too often. The lean path and Django alike."""

from __future__ import annotations

import hashlib
import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.test_waiting import open_issue, waiting, webhook
from tests.support.broker_process import wait_for
from tests.support.server import WEBHOOK_SECRET, BrokerServer, BrokerWorld

TASK = "/api/v1/request-task"
NOBODYS = {"agent_id": "agent-1", "timeout": 0, "roles": ["UIUX"]}

# Every call of the API with a body that is good: none answers without a token, none for somebody else.
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/api/v1/request-task", {"agent_id": "agent-1", "timeout": 0}),
    ("POST", "/request-task", {"agent_id": "agent-1", "timeout": 0}),
    ("POST", "/api/v1/assignments/1/heartbeat", {}),
    ("POST", "/api/v1/assignments/1/complete", {}),
    ("POST", "/api/v1/assignments/1/fail", {"reason": "x"}),
    ("POST", "/api/v1/assignments/1/release", None),
    ("GET", "/api/v1/agents/agent-1/current-task", None),
    ("GET", "/api/v1/explain?agent_id=agent-1", None),
    ("POST", "/api/v1/tasks/fix", {"pull_request_number": 1, "review_comments": ["x"]}),
    ("POST", "/tasks/fix", {"pull_request_number": 1, "review_comments": ["x"]}),
]


def change(server: BrokerServer, name: str, deed: str) -> str:
    """Do something to an agent in a process of its own; what it printed."""
    return server.manage(
        "shell",
        "--no-imports",
        "-c",
        "from django.utils import timezone\n"
        "from tasks.models import Agent\n"
        "from tasks.services.agents import revoke_token, rotate_token, switch_agent\n"
        f"agent = Agent.objects.get(name={name!r})\n"
        f"print({deed})",
    ).strip()


def status(server: BrokerServer, token: str) -> int:
    with server.client(token) as client:
        return client.post(TASK, json={"agent_id": "agent-1", "timeout": 0}).status_code


def refused_by(server: BrokerServer, token: str, wanted: int) -> None:
    wait_for(lambda: status(server, token) == wanted, f"this process answers {wanted}")


@pytest.fixture
def guarded(broker_world: BrokerWorld) -> BrokerServer:
    return broker_world.start(BROKER_AGENT_AUTH="token")


def test_every_call_wants_a_token_before_it_looks_at_anything(guarded: BrokerServer) -> None:
    """A new call of the API that is not in the list above fails the test."""
    with guarded.client() as client:
        described = client.get("/api/v1/openapi.json").json()["paths"]
        listed = {path.replace("/1/", "/{assignment_id}/").partition("?")[0] for _, path, _ in CALLS}
        assert set(described) <= {path.replace("agents/agent-1", "agents/{agent_id}") for path in listed}
        for method, path, body in CALLS:
            for headers in ({}, {"Authorization": "Bearer brk_wrong"}, {"Authorization": "Basic YTpi"}):
                answer = client.request(method, path, json=body, headers=headers)
                assert (path, answer.status_code) == (path, 401)
                assert answer.json()["error"] == "unauthorised"
            if method == "POST":
                answer = client.request(
                    method, path, content=b"{", headers={"Content-Type": "application/json"}
                )
                assert (path, answer.status_code) == (path, 401), "a bad body does not tell more"


def test_a_token_ends_in_every_process_within_seconds(guarded: BrokerServer) -> None:
    old = guarded.create_agent("agent-1")
    servers = (guarded, guarded.another(BROKER_AGENT_AUTH="token"))
    for server in servers:
        assert status(server, old) in (200, 204)
    new = change(guarded, "agent-1", "rotate_token(agent, timezone.now())")
    for server in servers:
        refused_by(server, old, 401)
        assert status(server, new) in (200, 204)
    assert change(guarded, "agent-1", "switch_agent(agent, False, timezone.now())") == "True"
    for server in servers:
        refused_by(server, new, 403)
    # By a clock that is an hour behind, as on another machine: it must be noticed all the same.
    behind = "timezone.now() - timezone.timedelta(hours=1)"
    assert change(guarded, "agent-1", f"switch_agent(agent, True, {behind})") == "True"
    wait_for(lambda: status(guarded, new) in (200, 204), "it may ask again")
    change(guarded, "agent-1", f"revoke_token(agent, {behind})")
    for server in servers:
        refused_by(server, new, 401)


def test_an_agent_that_is_disabled_while_it_waits_is_given_nothing(guarded: BrokerServer) -> None:
    """Its role has no work; when some comes, it is no longer welcome, and somebody else gets it."""
    token, other = guarded.create_agent("agent-1", "UIUX"), guarded.create_agent("agent-2", "UIUX")
    ask = {"agent_id": "agent-1", "timeout": 0}
    with guarded.client(token) as client:
        while client.post(TASK, json=ask).status_code == 200:  # take what the seed has for this role
            pass
    with ThreadPoolExecutor(1) as pool, guarded.client(token, timeout=400) as client:
        before = waiting(guarded)
        asked = pool.submit(client.post, TASK, json={**ask, "timeout": 300})
        wait_for(lambda: waiting(guarded) > before, "the agent waits")
        assert change(guarded, "agent-1", "switch_agent(agent, False, timezone.now())") == "True"
        refused_by(guarded, token, 403)  # the server has noticed: that takes it two seconds at the most
        issue = open_issue(guarded, "P0", "UIUX")
        webhook(guarded, issue)
        answer = asked.result()
    assert (answer.status_code, answer.json()["error"]) == (403, "agent_disabled")
    with guarded.client(other) as client:
        given = client.post(TASK, json={"agent_id": "agent-2", "timeout": 25})
    assert given.json()["issue_id"] == issue["number"]


RATES: dict[str, Any] = {
    "BROKER_AGENT_AUTH": "token",
    "BROKER_RATE_EXEMPT": "none",
    "BROKER_RATE_AGENT_PER_MINUTE": "12",
    "BROKER_RATE_ADDRESS_PER_MINUTE": "10",
    "BROKER_RATE_REFUSED_PER_MINUTE": "3",
    "BROKER_RATE_WEBHOOK_PER_MINUTE": "6",
    "BROKER_RATE_FIX_PER_MINUTE": "2",
    "BROKER_RATE_EXPLAIN_PER_MINUTE": "2",
}
PATIENCE = 60  # calls; buckets fill up again while a slow machine sends them


class Caller:
    """Stands where a proxy on this machine stands: trusted to say for whom it calls."""

    def __init__(self, server: BrokerServer, address: str, token: str = "") -> None:
        self.server = server
        self.headers = {"X-Forwarded-For": address}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        with self.server.client() as client:
            return client.request(method, path, headers={**self.headers, **(headers or {})}, **more)

    def passes(self, number: int, method: str, path: str, **more: Any) -> set[int]:
        """So many calls, none of them refused as too many; what they got."""
        found = {self.call(method, path, **more).status_code for _ in range(number)}
        assert 429 not in found
        return found

    def is_stopped(self, method: str, path: str, **more: Any) -> None:
        """Sooner or later it is told to come back: in JSON, with a header."""
        for _ in range(PATIENCE):
            answer = self.call(method, path, **more)
            if answer.status_code == 429:
                assert answer.json()["error"] == "too_many_requests"
                assert answer.json()["message"]
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                return
        raise AssertionError(f"{PATIENCE} calls passed")


@pytest.fixture
def counting(broker_world: BrokerWorld) -> BrokerServer:
    return broker_world.start(**RATES)


def test_who_calls_too_often_is_told_to_come_back(counting: BrokerServer) -> None:
    one, two, three = (counting.create_agent(f"agent-{n}") for n in (1, 2, 3))
    explain, current = "/api/v1/explain?agent_id=agent-{}", "/api/v1/agents/agent-{}/current-task"

    # Bad tokens, on the lean path and through Django, count together by address; a good one still passes.
    stranger = Caller(counting, "203.0.113.1", "brk_bad")
    assert stranger.passes(2, "POST", TASK, json=NOBODYS) == {401}
    assert stranger.passes(1, "GET", explain.format(1)) == {401}
    stranger.is_stopped("GET", explain.format(1))
    stranger.is_stopped("POST", TASK, json=NOBODYS)
    assert Caller(counting, "203.0.113.2", "brk_bad").passes(1, "POST", TASK, json=NOBODYS) == {401}
    Caller(counting, "203.0.113.1", two).passes(1, "GET", current.format(2))
    # One agent, whatever its addresses, on all calls together. Another is not disturbed.
    Caller(counting, "203.0.113.3", one).passes(6, "POST", TASK, json=NOBODYS)
    Caller(counting, "203.0.113.4", one).passes(6, "POST", "/api/v1/assignments/999/heartbeat", json={})
    Caller(counting, "203.0.113.5", one).is_stopped("GET", current.format(1))
    Caller(counting, "203.0.113.5", one).is_stopped("POST", TASK, json=NOBODYS)
    # tasks/fix and explain have limits of their own.
    busy, fix = (
        Caller(counting, "203.0.113.6", two),
        {"pull_request_number": 999_999, "review_comments": ["x"]},
    )
    busy.passes(2, "GET", explain.format(2))
    busy.is_stopped("GET", explain.format(2))
    busy.passes(2, "POST", "/tasks/fix", json=fix)
    busy.is_stopped("POST", "/tasks/fix", json=fix)
    # One address, whatever its tokens; of an IPv6 customer all of them. What its own header says changes nothing.
    Caller(counting, "2001:db8:0:1::1", three).passes(10, "GET", current.format(3))
    Caller(counting, "127.0.0.1, 2001:db8:0:1::99", three).is_stopped("GET", current.format(3))
    Caller(counting, "2001:db8:0:2::1", three).passes(1, "GET", current.format(3))
    # The health of the server is never a question of how often.
    assert Caller(counting, "203.0.113.1").passes(40, "GET", "/health") == {200}
    assert "rate limit reached" in counting.output
    assert not [token for token in (one, two, three) if token in counting.output]


def test_webhooks_have_limits_of_their_own_and_unsigned_ones_end_sooner(counting: BrokerServer) -> None:
    payload = json.dumps({"zen": "x"}).encode()
    signature = "sha256=" + hmac.new(WEBHOOK_SECRET.encode(), payload, hashlib.sha256).hexdigest()
    given = {"X-GitHub-Event": "ping", "X-GitHub-Delivery": "d-1", "Content-Type": "application/json"}
    good, bad = ({**given, "X-Hub-Signature-256": text} for text in (signature, "sha256=00"))
    path = "/webhooks/github"
    github, stranger = Caller(counting, "203.0.113.7"), Caller(counting, "203.0.113.8")
    assert github.passes(6, "POST", path, content=payload, headers=good) == {202}
    github.is_stopped("POST", path, content=payload, headers=good)
    assert stranger.passes(3, "POST", path, content=payload, headers=bad) == {401}
    stranger.is_stopped("POST", path, content=payload, headers=bad)
    # An agent at the same address is not disturbed by it.
    assert Caller(counting, "203.0.113.8").passes(1, "POST", TASK, json=NOBODYS) == {401}


def test_this_machine_is_not_counted_by_default(guarded: BrokerServer) -> None:
    """A benchmark, a fleet on one machine and these tests call thousands of times a second from here."""
    token = guarded.create_agent("agent-1")
    with guarded.client(token) as client:
        found = {client.post(TASK, json=NOBODYS).status_code for _ in range(1500)}
        bad = {
            client.post(TASK, json=NOBODYS, headers={"Authorization": "Bearer x"}).status_code
            for _ in range(80)
        }
    assert (found, bad) == ({200, 204}, {401}), "what the seed has for this role is given out first"
