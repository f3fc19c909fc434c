"""Webhooks through HTTP: who may send, what is applied at once, what is ignored, and what a poll mends."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.conf import settings as django_settings
from django.test import Client
from django.utils import timezone

from sandbox.launcher import SandboxHandle, start_sandbox
from tasks.github.label_marks import mark_labels_changed
from tasks.models import Event, Issue, PullRequest, Repository, WebhookDelivery
from tasks.services.repositories import configured_repository
from tasks.services.sync import sync_repository
from tests.environment import REDIS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

URL = "/webhooks/github"
SECRET = "sandbox-webhook-secret"
FULL_NAME = "broker-sandbox/demo"


@pytest.fixture
def repository(store: redis.Redis) -> Repository:
    return configured_repository()


def issue_shape(number: int = 7, **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", ["P1", "BACKENDCODER"])
    return {
        "number": number,
        "title": "From a webhook",
        "body": "## 成果物\n- x",
        "state": "open",
        "html_url": f"https://example.com/{number}",
        "user": {"login": "somebody"},
        "labels": [{"name": name} for name in labels],
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:05Z",
        **more,
    }


def pull_shape(number: int = 9, **more: Any) -> dict[str, Any]:
    sides = {"head": {"ref": "feature/issue-7", "sha": "a" * 40}, "base": {"ref": "main", "sha": "b" * 40}}
    return {**issue_shape(number), **sides, "body": "Closes #7", **more}


def payload_of(action: str, **parts: Any) -> dict[str, Any]:
    return {"action": action, "repository": {"full_name": FULL_NAME}, "sender": {"login": "alice"}, **parts}


def sign(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def post(
    event: str, payload: Any, *, delivery: str = "d-1", signature: str | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    given = {
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": sign(body) if signature is None else signature,
        **headers,
    }
    given = {name: value for name, value in given.items() if value}
    content_type = given.pop("Content-Type", "application/json")
    answer = Client(enforce_csrf_checks=True).post(URL, body, content_type=content_type, headers=given)
    return answer.status_code, answer.json()


# Who may send


@pytest.mark.parametrize(
    "signature",
    [
        "sha256=" + "0" * 64,
        sign(b"another body"),
        sign(json.dumps(payload_of("opened", issue=issue_shape())).encode(), "another secret"),
        sign(json.dumps(payload_of("opened", issue=issue_shape())).encode()).removeprefix("sha256="),
        "sha1=0123",
        "ｓｈａ",
        "",
    ],
)
def test_wrong_signatures_are_refused_and_change_nothing(repository, signature: str):
    body = json.dumps(payload_of("opened", issue=issue_shape())).encode()
    status, answer = post("issues", body, signature=signature.encode("utf-8").decode("latin-1") or "")
    assert status == 401
    assert answer.keys() == {"error", "message"}
    assert Issue.objects.count() == WebhookDelivery.objects.count() == 0


def test_without_a_secret_webhooks_are_refused(repository, settings):
    settings.BROKER = replace(settings.BROKER, github=replace(settings.BROKER.github, webhook_secret=""))
    body = json.dumps(payload_of("opened", issue=issue_shape())).encode()
    status, answer = post("issues", body, signature=sign(body, ""))
    assert (status, answer["error"]) == (401, "webhooks_off")


def test_only_post():
    answer = Client().get(URL)
    assert answer.status_code == 405
    assert answer["Allow"] == "POST"
    assert answer.json()["error"] == "method_not_allowed"


def test_a_huge_body_is_refused_by_what_it_declares(repository):
    body = b"{}"
    headers = {"Content-Length": str(26 * 2**20)}
    answer = Client().post(
        URL, body, content_type="application/json", headers=headers, CONTENT_LENGTH=str(26 * 2**20)
    )
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large")


def test_up_to_25_megabytes_are_taken(repository):
    """More than the limit of the other pages."""
    padded = payload_of("opened", issue=issue_shape(), padding="x" * 3_000_000)
    assert post("issues", padded) == (202, {"status": "applied"})


@pytest.mark.parametrize(
    ("event", "body", "headers", "code"),
    [
        ("issues", b"not json", {}, "bad_payload"),
        ("issues", b"[]", {}, "bad_payload"),
        ("issues", b"\xff\xfe", {}, "bad_payload"),
        ("issues", b"[" * 100_000, {}, "bad_payload"),
        ("issues", json.dumps(payload_of("opened")).encode(), {}, "bad_payload"),
        ("issues", json.dumps(payload_of("opened", issue={"number": 1})).encode(), {}, "bad_payload"),
        (
            "pull_request",
            json.dumps(payload_of("opened", pull_request=issue_shape())).encode(),
            {},
            "bad_payload",
        ),
        ("issues", b"other=1", {"Content-Type": "application/x-www-form-urlencoded"}, "bad_payload"),
        ("", b"{}", {}, "bad_headers"),
        ("issues", b"{}", {"X-GitHub-Delivery": ""}, "bad_headers"),
        ("issues", b"{}", {"X-GitHub-Delivery": "x" * 101}, "bad_headers"),
    ],
)
def test_malformed_deliveries(repository, event: str, body: bytes, headers: dict[str, str], code: str):
    status, answer = post(event, body, **headers)
    assert (status, answer["error"]) == (400, code)
    assert answer["message"]
    assert WebhookDelivery.objects.count() == Issue.objects.count() == 0


# What is applied


def test_a_new_issue_is_on_offer_before_the_answer(repository, store):
    assert post("issues", payload_of("opened", issue=issue_shape())) == (202, {"status": "applied"})
    issue = Issue.objects.get(number=7)
    assert (issue.title, issue.priority, issue.author) == ("From a webhook", 1, "somebody")
    assert json.loads(str(store.get("poppo:issue:7"))) == issue.raw
    assert store.zrange("poppo:queue:high", 0, -1) == ["7"]
    assert Event.objects.get(number=7).who == "github:alice"


def test_a_form_is_understood(repository):
    body = urlencode({"payload": json.dumps(payload_of("opened", issue=issue_shape()))}).encode()
    status, _ = post("issues", body, **{"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 202
    assert Issue.objects.filter(number=7).exists()


def test_a_repeated_delivery_is_ignored(repository):
    assert post("issues", payload_of("opened", issue=issue_shape()))[1] == {"status": "applied"}
    Issue.objects.all().delete()
    assert post("issues", payload_of("opened", issue=issue_shape())) == (202, {"status": "repeated"})
    assert Issue.objects.count() == 0
    assert post("issues", payload_of("opened", issue=issue_shape()), delivery="d-2")[1] == {
        "status": "applied"
    }


def test_a_delivery_that_failed_may_come_again(repository):
    assert post("issues", payload_of("opened", issue={"number": 7}))[0] == 400
    assert post("issues", payload_of("opened", issue=issue_shape()))[1] == {"status": "applied"}


@pytest.mark.parametrize(
    ("event", "payload", "status"),
    [
        ("ping", {"zen": "x"}, "pong"),
        ("star", payload_of("created"), "ignored"),
        ("issues", {"action": "opened", "issue": issue_shape()}, "ignored"),
        (
            "issues",
            {**payload_of("opened", issue=issue_shape()), "repository": {"full_name": "a/b"}},
            "ignored",
        ),
    ],
)
def test_what_does_not_concern_us(repository, event: str, payload: Any, status: str):
    assert post(event, payload) == (202, {"status": status})
    assert Issue.objects.count() == WebhookDelivery.objects.count() == 0


def test_a_disabled_repository_is_left_alone(repository):
    Repository.objects.update(is_enabled=False)
    assert post("issues", payload_of("opened", issue=issue_shape()))[1] == {"status": "ignored"}


def test_the_configured_repository_needs_no_poll_before(store, db):
    assert post("issues", payload_of("opened", issue=issue_shape()))[1] == {"status": "applied"}
    assert Repository.objects.get().full_name == FULL_NAME


@pytest.mark.parametrize("action", ["closed", "deleted", "transferred"])
def test_an_issue_that_goes_leaves_the_offer(repository, store, action: str):
    post("issues", payload_of("opened", issue=issue_shape()))
    state = "closed" if action == "closed" else "open"
    post("issues", payload_of(action, issue=issue_shape(state=state)), delivery="d-2")
    assert not Issue.objects.get(number=7).is_open
    assert store.get("poppo:issue:7") is None
    assert store.zrange("poppo:queue:high", 0, -1) == []


def test_a_deleted_comment_does_not_delete_the_issue(repository):
    post("issues", payload_of("opened", issue=issue_shape()))
    later = issue_shape(updated_at="2026-01-02T03:05:00Z")
    post("issue_comment", payload_of("deleted", issue=later, comment={"id": 1}), delivery="d-2")
    issue = Issue.objects.get(number=7)
    assert issue.is_open
    assert issue.updated_at.minute == 5


def test_older_news_change_nothing(repository):
    post("issues", payload_of("opened", issue=issue_shape()))
    older = issue_shape(title="Old", updated_at="2026-01-02T03:04:04Z")
    assert post("issues", payload_of("edited", issue=older), delivery="d-2")[0] == 202
    assert Issue.objects.get(number=7).title == "From a webhook"


def test_a_pull_request_makes_its_issue_reviewable(repository, store):
    labels = ["P1", "BACKENDCODER", "needs-review"]
    post("issues", payload_of("opened", issue=issue_shape(labels=labels)))
    assert Issue.objects.get(number=7).review_detected_at is not None
    post("pull_request", payload_of("opened", pull_request=pull_shape()), delivery="d-2")
    pull = PullRequest.objects.get(number=9)
    assert (pull.closes, pull.head_ref, pull.is_open) == ([7], "feature/issue-7", True)
    pushed = pull_shape(head={"ref": "feature/issue-7", "sha": "c" * 40})
    post("pull_request", payload_of("synchronize", pull_request=pushed), delivery="d-3")
    assert PullRequest.objects.get(number=9).head_sha == "c" * 40
    closed = pull_shape(state="closed")
    post("pull_request", payload_of("closed", pull_request=closed), delivery="d-4")
    assert not PullRequest.objects.get(number=9).is_open


def test_a_pull_request_is_never_an_issue(repository):
    comment_on_pull = issue_shape(9, pull_request={"url": "x"})
    post("issue_comment", payload_of("created", issue=comment_on_pull, comment={"id": 1}))
    assert Issue.objects.count() == PullRequest.objects.count() == 0


def test_a_renamed_label_asks_for_a_full_listing(repository):
    Repository.objects.update(last_full_sync_at=timezone.now())
    post("label", payload_of("created", label={"name": "x"}))
    assert Repository.objects.get().last_full_sync_at is not None
    post("label", payload_of("edited", label={"name": "x"}, changes={}), delivery="d-2")
    assert Repository.objects.get().last_full_sync_at is None


def test_a_webhook_of_our_own_change_on_its_way_does_not_undo_it(repository):
    """We took ``in-progress`` off and put ``parked`` on; the first event shows the issue without either."""
    post("issues", payload_of("opened", issue=issue_shape(labels=["P1", "parked"])))
    Issue.objects.update(lost_attempts=3)
    mark_labels_changed(repository.pk, 7)
    between = payload_of("unlabeled", issue=issue_shape(labels=["P1"]), label={"name": "in-progress"})
    post("issues", between, delivery="d-2")
    assert Issue.objects.get(number=7).labels == ["P1", "parked"]
    assert Issue.objects.get(number=7).lost_attempts == 3
    by_hand = payload_of("unlabeled", issue=issue_shape(labels=["P1"]), label={"name": "parked"})
    post("issues", by_hand, delivery="d-3")
    assert Issue.objects.get(number=7).labels == ["P1"]
    assert Issue.objects.get(number=7).lost_attempts == 0
    added = payload_of("labeled", issue=issue_shape(labels=["P1", "P0"]), label={"name": "P0"})
    post("issues", added, delivery="d-4")
    assert Issue.objects.get(number=7).priority == 0


# With GitHub behind it


def person(sandbox: SandboxHandle, method: str, path: str, data: Any = None) -> Any:
    url = f"/github/repos/{FULL_NAME}{path}"
    answer = sandbox.client.request(
        method, url, json=data, headers={"Authorization": "token user:maintainer"}
    )
    answer.raise_for_status()
    return answer.json()


def poll(repository: Repository) -> dict[str, int]:
    repository.refresh_from_db()
    return dict(sync_repository(repository, timezone.now(), lambda text: None))


def test_a_review_comment_changes_the_fingerprint_at_once(sandbox, repository):
    poll(repository)
    before = PullRequest.objects.order_by("number").first()
    assert before is not None
    comment = {"body": "And this", "path": "services/delivery.py", "line": 1, "commit_id": before.head_sha}
    person(sandbox, "POST", f"/pulls/{before.number}/comments", comment)
    raw = person(sandbox, "GET", f"/pulls/{before.number}")
    told = payload_of("created", pull_request=raw, comment={"id": 5})
    assert post("pull_request_review_comment", told)[1] == {"status": "applied"}
    after = PullRequest.objects.get(pk=before.pk)
    assert after.fingerprint != before.fingerprint
    # Another comment of the same second may still come: the next poll looks once more.
    assert after.comments_seen_at is not None
    assert after.comments_seen_at < after.updated_at


def test_while_github_is_away_the_comment_waits_for_the_poll(sandbox, repository):
    poll(repository)
    before = PullRequest.objects.order_by("number").first()
    assert before is not None
    sandbox.set_clock(5)
    comment = {"body": "And this", "path": "services/delivery.py", "line": 1, "commit_id": before.head_sha}
    person(sandbox, "POST", f"/pulls/{before.number}/comments", comment)
    raw = person(sandbox, "GET", f"/pulls/{before.number}")
    sandbox.fault("github", "status", status=503)
    told = payload_of("created", pull_request=raw, comment={"id": 5})
    assert post("pull_request_review_comment", told)[1] == {"status": "applied"}
    assert PullRequest.objects.get(pk=before.pk).comments_digest == before.comments_digest
    poll(repository)
    assert PullRequest.objects.get(pk=before.pk).comments_digest != before.comments_digest


def test_a_missed_webhook_is_healed_by_the_next_poll(sandbox, repository):
    poll(repository)
    number = person(sandbox, "POST", "/issues", {"title": "Nobody told us", "labels": ["P0"]})["number"]
    poll(repository)
    assert Issue.objects.get(number=number).priority == 0


def test_a_late_webhook_of_the_same_second_is_mended_by_the_next_poll(sandbox, repository):
    """GitHub's times have whole seconds, so a late older snapshot cannot be told from a newer one."""
    number = person(sandbox, "POST", "/issues", {"title": "First", "labels": ["P0"]})["number"]
    stale = person(sandbox, "GET", f"/issues/{number}")
    state = sandbox.state("github")
    state["repositories"][0]["issues"][-1]["title"] = "Second"
    sandbox.load("github", state)
    poll(repository)
    poll(repository)
    assert poll(repository)["unchanged_issues"] == 1
    post("issues", payload_of("edited", issue=stale))
    assert Issue.objects.get(number=number).title == "First"
    poll(repository)
    assert Issue.objects.get(number=number).title == "Second"


def test_a_webhook_while_redis_takes_nothing_reaches_the_index_by_the_next_poll(sandbox, repository, store):
    poll(repository)
    poll(repository)
    raw = person(sandbox, "POST", "/issues", {"title": "Redis was full", "labels": ["P0", "BACKENDCODER"]})
    store.config_set("maxmemory", 1)
    try:
        assert post("issues", payload_of("opened", issue=raw))[1] == {"status": "applied"}
    finally:
        store.config_set("maxmemory", 0)
    assert Issue.objects.filter(number=raw["number"]).exists()
    assert store.get(f"poppo:issue:{raw['number']}") is None
    poll(repository)
    assert store.get(f"poppo:issue:{raw['number']}") is not None


@pytest.mark.process
def test_without_redis_a_webhook_is_still_applied(repository):
    REDIS.process.kill()
    REDIS.process.wait()
    try:
        assert post("issues", payload_of("opened", issue=issue_shape()))[1] == {"status": "applied"}
    finally:
        REDIS.restart()
    assert Issue.objects.filter(number=7).exists()


@pytest.mark.process
def test_the_stand_in_sends_webhooks_that_are_applied(live_server, store):
    """Over real sockets: the stand-in signs and sends, the application applies and answers 202."""
    assert django_settings.BROKER.github.webhook_secret == SECRET
    with start_sandbox(broker_url=live_server.url, webhook_secret=SECRET) as hooked:
        labels = ["P0", "BACKENDCODER"]
        number = person(hooked, "POST", "/issues", {"title": "By webhook", "labels": labels})["number"]
        person(hooked, "POST", f"/issues/{number}/labels", {"labels": ["needs-review"]})
        deliveries: list[dict[str, Any]] = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len(deliveries) < 4:
            deliveries = hooked.control("GET", "github/deliveries")["deliveries"]
            time.sleep(0.05)
        assert {item["status_code"] for item in deliveries} == {202}
        again = hooked.control("POST", f"github/deliveries/{deliveries[0]['guid']}/redeliver")
        assert again["guid"] == deliveries[0]["guid"]
    issue = Issue.objects.get(number=number)
    assert issue.labels == [*labels, "needs-review"]
    assert issue.review_detected_at is not None
    assert issue.review_detected_at < timezone.now() + timedelta(seconds=1)
