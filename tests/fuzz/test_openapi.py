"""Whatever the OpenAPI description allows, and much that it does not, sent to a real server.

No answer is a fault of ours; every status is a documented one and every body fits its schema. The hot path answers
``request-task`` and ``heartbeat`` here, by the same description.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tasks.agents_api.api import api
from tests.support.server import BrokerServer, BrokerWorld

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
TOKEN_AGENT = "fuzzer"

pytestmark = pytest.mark.xdist_group("openapi")

DESCRIPTION = json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/v1/"), default=str))
schema = schemathesis.openapi.from_dict(DESCRIPTION)
# A request costs more than a call of a function: a third of what the profile asks for, beside the boundary cases.
few = settings(max_examples=settings().max_examples // 3)


def sent(case: Case, server: BrokerServer, **options: Any) -> None:
    """Send it and check the answer. Nobody waits: a time-out that would be kept is nought.

    Here and not in a hook: schemathesis' own boundary cases pass no hooks.
    """
    body = case.body
    if isinstance(body, dict):
        given = body.get("timeout")
        if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= 600:
            case.body = {**body, "timeout": 0}
    number = case.path_parameters.get("assignment_id") if case.path_parameters else None
    if LIVE and isinstance(number, int) and number % 2 == 0:
        case.path_parameters["assignment_id"] = LIVE[-1]
    # Another host's name is refused before anything of the API is reached; tests/fuzz/test_requests.py has that.
    for name in [name for name in case.headers or {} if name.lower() == "host"]:
        del case.headers[name]
    case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=30, **options)


LIVE: list[int] = []  # an assignment that exists, for half of the calls about one


@pytest.fixture(scope="module")
def open_server(_broker_world: BrokerWorld) -> Iterator[BrokerServer]:
    _broker_world.begin()
    yield _broker_world.start(BROKER_LONG_POLL_SECONDS="0")
    LIVE.clear()
    _broker_world.end()


@pytest.fixture(scope="module")
def token(open_server: BrokerServer) -> str:
    return open_server.create_agent(TOKEN_AGENT)


@pytest.fixture(scope="module")
def token_server(open_server: BrokerServer, token: str) -> BrokerServer:
    """A second process on the same stores that lets nobody in without a token."""
    return open_server.another(BROKER_LONG_POLL_SECONDS="0", BROKER_AGENT_AUTH="token")


def hold_a_task(server: BrokerServer) -> None:
    """Somebody is at work, so that some calls meet a live assignment."""
    with server.client() as client:
        answer = client.post("/api/v1/request-task", json={"agent_id": "holder", "timeout": 0})
        if answer.status_code == 200:
            LIVE.append(int(answer.json()["assignment_id"]))


def test_the_served_description_is_the_one_that_is_tried(open_server: BrokerServer) -> None:
    with open_server.client() as client:
        assert client.get("/api/v1/openapi.json").json() == DESCRIPTION


@schema.parametrize()
@few
def test_every_answer_is_as_described(case: Case, open_server: BrokerServer) -> None:
    if not LIVE:
        hold_a_task(open_server)
    sent(case, open_server)


@schema.parametrize()
@few
def test_every_answer_to_a_token_is_as_described(case: Case, token_server: BrokerServer, token: str) -> None:
    if isinstance(case.body, dict) and "agent_id" in case.body:
        case.body["agent_id"] = TOKEN_AGENT
    sent(case, token_server, headers={"Authorization": f"Bearer {token}"})
