"""Webhook bodies: any bytes get one of the documented answers, and nothing half is written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks.models import Issue, WebhookDelivery
from tests.tasks.test_webhook import URL, issue_shape, payload_of, pull_shape, sign
from tests.tasks.world import World

pytestmark = pytest.mark.django_db(transaction=True)

EVENTS = [
    "issues",
    "issue_comment",
    "pull_request",
    "pull_request_review_comment",
    "label",
    "ping",
    "é",
    "x" * 80,
]
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=10),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.sampled_from(
        [
            "2026-99-99T00:00:00Z",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59-23:59",
            "\ud800",
            "\x00",
            "a" * 3000,
        ]
    ),
)
FIELDS = [
    "number",
    "title",
    "body",
    "state",
    "html_url",
    "user",
    "labels",
    "created_at",
    "updated_at",
    "head",
    "base",
]
FIELDS += ["author_association", "pull_request", "closed_at"]
shapes = st.builds(
    lambda base, changes: {**base, **changes},
    st.sampled_from([issue_shape(7), pull_shape(9)]),
    st.dictionaries(st.sampled_from(FIELDS), odd, max_size=3),
)
payloads = st.builds(
    lambda action, issue, pull, extra: {**payload_of(action, issue=issue, pull_request=pull), **extra},
    st.sampled_from(["opened", "edited", "deleted", "labeled", "closed", "transferred"]),
    shapes,
    shapes,
    st.dictionaries(
        st.sampled_from(["action", "sender", "label", "comment", "repository", "issue"]), odd, max_size=2
    ),
)
bodies = st.one_of(payloads.map(lambda value: json.dumps(value).encode()), st.binary(max_size=200))


def test_any_signed_body_gets_a_documented_answer(world: World) -> None:
    client = Client(raise_request_exception=False)
    counter = iter(range(10**9))

    def deliver(event: str, body: bytes) -> Any:
        return client.post(
            URL,
            body,
            content_type="application/json",
            headers={
                "X-GitHub-Event": event.encode("latin-1", "replace").decode("latin-1"),
                "X-GitHub-Delivery": f"fuzz-{next(counter)}",
                "X-Hub-Signature-256": sign(body),
            },
        )

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(EVENTS), bodies)
    @example(
        "issues",
        json.dumps(
            payload_of("opened", issue=issue_shape(8, updated_at="0001-01-01T00:00:00+23:59"))
        ).encode(),
    )
    @example(
        "issues",
        json.dumps(payload_of("opened", issue=issue_shape(8, labels=["\x00"], user={"login": 7}))).encode(),
    )
    @example("issues", json.dumps(payload_of("deleted", issue={"number": 2**70})).encode())
    @example("issues", json.dumps(payload_of("opened", issue=issue_shape(8, comments=math.inf))).encode())
    @example("issues", json.dumps(payload_of("opened", issue=issue_shape(8))).replace("8", "1e999").encode())
    @example(
        "issues", json.dumps(payload_of("opened", issue=issue_shape(8), sender={"login": "x" * 500})).encode()
    )
    def check(event: str, body: bytes) -> None:
        answer = deliver(event, body)
        assert answer.status_code in (202, 400), (answer.status_code, answer.content[:300])
        if answer.status_code == 400:
            assert set(answer.json()) == {"error", "message"}

    check()
    # The rows are still usable, whatever was among them.
    for issue in Issue.objects.all():
        assert str(issue)
    assert WebhookDelivery.objects.exists()
    world.sync()
    assert world.get("/explain?agent_id=agent-1").status_code == 200
