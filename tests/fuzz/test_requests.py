"""Requests that once were, or might have been, too much for the server: each with the statuses that are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import BrokerServer, BrokerWorld

CORPUS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "fuzz" / "requests.json").read_text(encoding="utf-8")
)
LARGE = {"@deep": "[" * 1000 + "]" * 1000, "@digits": "9" * 1000, "@long": "x" * (3 * 2**20)}

pytestmark = pytest.mark.xdist_group("openapi")


@pytest.fixture(scope="module")
def server(_broker_world: BrokerWorld) -> Iterator[BrokerServer]:
    _broker_world.begin()
    yield _broker_world.start(BROKER_LONG_POLL_SECONDS="0")
    _broker_world.end()


@pytest.fixture
def assignment(server: BrokerServer) -> Iterator[int]:
    """A live one for each request, given back afterwards: none meets what another has ended."""
    with server.client() as client:
        answer = client.post("/api/v1/request-task", json={"agent_id": "holder", "timeout": 0})
        assert answer.status_code == 200, answer.text
        number = int(answer.json()["assignment_id"])
        yield number
        client.post(f"/api/v1/assignments/{number}/release")


def content_of(entry: dict[str, Any]) -> bytes:
    if "bytes" in entry:
        return bytes.fromhex(entry["bytes"])
    text = str(entry.get("body", ""))
    for name, value in LARGE.items():
        text = text.replace(name, value)
    return text.encode()


@pytest.mark.parametrize("entry", CORPUS, ids=[entry["was"] for entry in CORPUS])
def test_a_request_of_the_corpus(server: BrokerServer, assignment: int, entry: dict[str, Any]) -> None:
    path = entry["path"].replace("{live}", str(assignment))
    headers = {"Content-Type": "application/json"} | {
        name: value.encode("latin-1") for name, value in entry.get("headers", {}).items()
    }
    # Not through a client that would tidy the address up.
    request = httpx.Request(
        entry.get("method", "POST"), server.url + path, content=content_of(entry), headers=headers
    )
    with server.client() as client:
        answer = client.send(request)
    assert answer.status_code in entry["status"], (answer.status_code, answer.text[:300])
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error", "message"}
    assert "Traceback" not in answer.text
