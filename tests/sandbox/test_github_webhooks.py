"""Webhooks received by a real HTTP server, and the life that fills them."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import github
import pytest
from github import Auth

from sandbox.core import World
from sandbox.github import GitHub
from sandbox.github_life import MAX_ACTIONS, PULL_DELAY_SECONDS, STEP_SECONDS
from sandbox.launcher import SandboxHandle, start_sandbox

pytestmark = pytest.mark.process

SECRET = "a secret of the tests"


class Receiver:
    """A broker that only listens. `status` is what it answers."""

    def __init__(self) -> None:
        self.deliveries: queue.Queue[tuple[str, dict[str, str], bytes]] = queue.Queue()
        self.status = 202
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.deliveries.put((self.path, headers, body))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next(self) -> tuple[str, dict[str, Any], dict[str, str], bytes]:
        path, headers, body = self.deliveries.get(timeout=10)
        assert path == "/webhooks/github"
        return headers["x-github-event"], json.loads(body), headers, body

    def events(self, count: int) -> list[str]:
        found = [self.next() for _ in range(count)]
        return [f"{event} {payload['action']}" for event, payload, _, _ in found]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def hooked(receiver: Receiver) -> Iterator[SandboxHandle]:
    with start_sandbox(broker_url=receiver.url, webhook_secret=SECRET) as running:
        yield running


@pytest.fixture
def repo(hooked: SandboxHandle, receiver: Receiver):
    hooked.reset()
    receiver.status = 202
    while not receiver.deliveries.empty():
        receiver.deliveries.get()
    client = github.Github(
        base_url=hooked.github_url,
        auth=Auth.Token("any"),
        retry=None,
        seconds_between_requests=None,
        seconds_between_writes=None,
    )
    return client.get_repo("broker-sandbox/demo")


def test_a_delivery_is_signed_over_its_bytes(repo, receiver):
    repo.get_issue(16).add_to_labels("in-progress")
    event, payload, headers, body = receiver.next()
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-hub-signature-256"] == f"sha256={digest}"
    assert headers["content-type"] == "application/json"
    assert len(headers["x-github-delivery"]) == 36
    assert (event, payload["action"], payload["label"]["name"]) == ("issues", "labeled", "in-progress")
    assert payload["issue"]["number"] == 16
    assert "in-progress" in [label["name"] for label in payload["issue"]["labels"]]
    assert payload["repository"]["full_name"] == "broker-sandbox/demo"
    assert payload["sender"]["login"] == "broker-bot"


def test_each_change_sends_its_event_in_order(repo, receiver, hooked):
    issue = repo.create_issue("new", labels=["P1"])
    issue.edit(title="newer")
    issue.add_to_labels("never seen before")
    issue.remove_from_labels("P1")
    issue.create_comment("hello")
    issue.edit(state="closed")
    issue.edit(state="open")
    pull = repo.get_pull(32)
    pull.create_review_comment("Hm.", repo.get_commit(pull.head.sha), "services/delivery.py", line=3)
    hooked.control("POST", "github/push", {"branch": pull.head.ref})
    pull.add_to_labels("review-done")
    assert receiver.events(12) == [
        "issues opened",
        "issues labeled",
        "issues edited",
        "label created",
        "issues labeled",
        "issues unlabeled",
        "issue_comment created",
        "issues closed",
        "issues reopened",
        "pull_request_review_comment created",
        "pull_request synchronize",
        "pull_request labeled",
    ]
    assert receiver.deliveries.empty()


def test_a_redelivery_is_the_same_once_more(repo, receiver, hooked):
    repo.get_issue(16).add_to_labels("in-progress")
    _, _, headers, body = receiver.next()
    # The delivery is remembered once its answer is in.
    for _ in range(100):
        known = hooked.control("GET", "github/deliveries")["deliveries"]
        if known and known[0]["guid"] == headers["x-github-delivery"]:
            break
        time.sleep(0.02)
    hooked.control("POST", f"github/deliveries/{headers['x-github-delivery']}/redeliver")
    _, _, again, same_body = receiver.next()
    assert again["x-github-delivery"] == headers["x-github-delivery"]
    assert same_body == body


def test_webhooks_can_be_switched_off(repo, receiver, hooked):
    hooked.control("PATCH", "github/settings", {"webhooks": False})
    repo.get_issue(16).add_to_labels("unheard")
    hooked.control("PATCH", "github/settings", {"webhooks": True})
    repo.get_issue(16).add_to_labels("heard")
    assert receiver.events(1) == ["label created"]
    assert receiver.next()[1]["label"]["name"] == "heard"


def test_a_refused_delivery_is_journalled_and_not_repeated(repo, receiver, hooked):
    receiver.status = 500
    repo.get_issue(16).add_to_labels("in-progress")
    receiver.next()
    receiver.status = 202
    repo.get_issue(16).remove_from_labels("in-progress")
    assert receiver.next()[1]["action"] == "unlabeled"
    notes = [(call["note"], call["status"]) for call in hooked.calls("github") if call["note"]]
    assert ("webhook issues labeled", 500) in notes


def test_a_broker_that_is_away_does_not_stop_the_stand_in():
    with start_sandbox(broker_url="http://127.0.0.1:9", webhook_secret=SECRET) as lonely:
        client = github.Github(base_url=lonely.github_url, auth=Auth.Token("any"), retry=None)
        client.get_repo("broker-sandbox/demo").get_issue(16).add_to_labels("in-progress")
        notes: list[str] = []
        for _ in range(500):
            notes = [call["note"] for call in lonely.calls("github") if call["note"]]
            if notes:
                break
            time.sleep(0.02)
        assert "dropped" in notes[0]


# Life, driven step by step by the clock


@pytest.fixture
def lively() -> GitHub:
    world = World(lively=True)
    world.add_systems([GitHub])
    world.start()
    system = world.systems["github"]
    assert isinstance(system, GitHub)
    return system


def test_people_act_every_45_seconds_and_not_for_ever(lively):
    repo = lively.state.find("broker-sandbox", "demo")
    before = len(repo.issues) + len(repo.comments)
    lively.life.step()
    lively.life.step()
    assert len(repo.issues) + len(repo.comments) == before
    for _ in range(MAX_ACTIONS + 10):
        lively.world.clock.offset_seconds += STEP_SECONDS + 1
        lively.life.step()
    assert len(repo.issues) + len(repo.comments) == before + MAX_ACTIONS


def test_finished_work_becomes_a_pull_request(lively):
    repo = lively.state.find("broker-sandbox", "demo")
    changes, issue = lively.changes, repo.issues[5]
    changes.create_branch(repo, "feature/issue-5", repo.branches["main"])
    changes.add_labels(repo, "broker-bot", issue, ["in-progress", "agent-1"])
    changes.set_labels(repo, "broker-bot", issue, ["P0", "BACKENDCODER", "needs-review"])
    lively.life.step()
    assert repo.last_number == max(repo.issues) == 35
    lively.world.clock.offset_seconds += timedelta(seconds=PULL_DELAY_SECONDS + 1).total_seconds()
    lively.life.step()
    pull = repo.issues[36]
    assert pull.pull.head == "feature/issue-5"
    assert pull.body == "Closes #5"


def test_review_without_work_before_opens_nothing(lively):
    repo = lively.state.find("broker-sandbox", "demo")
    lively.changes.create_branch(repo, "feature/issue-5", repo.branches["main"])
    lively.changes.add_labels(repo, "broker-bot", repo.issues[5], ["needs-review"])
    lively.world.clock.offset_seconds += PULL_DELAY_SECONDS + 1
    lively.life.step()
    assert repo.last_number == 35
