"""The poll against the stand-in: rows and index follow GitHub, a quiet repository costs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from broker_project.lib import errors
from broker_project.lib.config.dynamic import RateLimit, record_rate_limit
from broker_project.ops.clock.pollers import PollOptions
from sandbox.launcher import SandboxHandle
from tasks.github.label_marks import mark_labels_changed
from tasks.models import Agent, Assignment, Event, Issue, PullRequest, Repository
from tasks.offers.projector import project
from tasks.pollers import poll_issues
from tasks.services.labels import apply_pending_label_changes
from tasks.services.repositories import configured_repository
from tasks.services.snapshot_labels import SnapshotSource
from tasks.services.snapshots import apply_issues, apply_pull
from tasks.services.sync import Budget, budget_for, sync_repository

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

CODE = "/github/repos/broker-sandbox/demo"
SETTLED = timedelta(seconds=10)  # after which no change of the same second can follow
PERSON = {"Authorization": "token user:maintainer"}


def say(text: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def hub(sandbox: SandboxHandle, store: redis.Redis) -> SandboxHandle:
    """The stand-in, with an empty Redis and without traces in the journal."""
    sandbox.clear_calls()
    return sandbox


@pytest.fixture
def repository(db) -> Repository:
    return configured_repository()


def apply_issue(repository: Repository, raw: Any, now: datetime) -> set[int]:
    return apply_issues(repository, [raw], SnapshotSource(now)).numbers


def sync(repository: Repository, at: datetime | None = None) -> dict[str, int]:
    repository.refresh_from_db()
    return dict(sync_repository(repository, at or timezone.now(), say))


def person(hub: SandboxHandle, method: str, path: str, data: Any = None) -> Any:
    answer = hub.client.request(method, CODE + path, json=data, headers=PERSON)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def open_issue(
    hub: SandboxHandle, title: str = "New", labels: tuple[str, ...] = ("P1", "BACKENDCODER")
) -> int:
    body = "## 成果物\n- code\n"
    return int(
        person(hub, "POST", "/issues", {"title": title, "body": body, "labels": list(labels)})["number"]
    )


def calls(hub: SandboxHandle, method: str = "") -> list[str]:
    found = [f"{call['method']} {call['path'].removeprefix(CODE)}" for call in hub.calls("github")]
    hub.clear_calls()
    return [call for call in found[::-1] if call.startswith(method)]


def hub_labels(hub: SandboxHandle, number: int) -> set[str]:
    return {label["name"] for label in person(hub, "GET", f"/issues/{number}/labels")}


def issue_of(repository: Repository, number: int) -> Issue:
    return Issue.objects.get(repository=repository, number=number)


def whats(repository: Repository, number: int) -> list[str]:
    events = Event.objects.filter(repository=repository, number=number).order_by("id")
    return list(events.values_list("what", flat=True))


# What comes and goes


def test_the_first_poll_reads_everything_that_is_open(hub, repository, store):
    counts = sync(repository)
    listed = hub.state("github")["repositories"][0]["issues"]
    wanted = {i["number"] for i in listed if i["state"] == "open" and not i["pull"]}
    assert set(Issue.objects.filter(is_open=True).values_list("number", flat=True)) == wanted
    assert counts["opened"] == len(wanted) == Issue.objects.count()
    assert PullRequest.objects.filter(is_open=True).count() == 2
    assert not set(PullRequest.objects.values_list("number", flat=True)) & wanted
    repository.refresh_from_db()
    assert repository.default_branch == "main"
    assert repository.last_full_sync_at is not None
    cached = json.loads(str(store.get("poppo:open_issues")))
    assert {issue["number"] for issue in cached} == wanted
    first = Issue.objects.order_by("number").first()
    assert first is not None
    assert json.loads(str(store.get(f"poppo:issue:{first.number}"))) == first.raw


def test_every_open_issue_shows_how_it_stands_also_after_redis_forgot(hub, repository, store):
    plain, waiting = open_issue(hub), open_issue(hub, "Done", ("P1", "BACKENDCODER", "needs-review"))
    parked = open_issue(hub, "Stuck", ("P1", "parked"))
    for _ in range(2):
        sync(repository)
        words = {n: store.hget(f"poppo:issue:status:{n}", "status") for n in (plain, waiting, parked)}
        assert words == {plain: "open", waiting: "needs-review", parked: "parked"}
        shown: Any = store.hgetall(f"poppo:issue:metadata:{plain}")
        assert (shown["title"], json.loads(shown["labels"])) == ("New", ["P1", "BACKENDCODER"])
        assert shown["url"].endswith(f"/issues/{plain}")
        assert store.ttl(f"poppo:issue:status:{plain}") == -1
        store.flushdb()
    sync(repository)
    person(hub, "PATCH", f"/issues/{plain}", {"state": "closed"})
    sync(repository)
    assert store.hget(f"poppo:issue:status:{plain}", "status") == "completed"
    assert 0 < store.ttl(f"poppo:issue:metadata:{plain}") <= 7 * 86400


def test_a_quiet_repository_costs_nothing_and_writes_nothing(hub, repository):
    sync(repository)
    sync(repository, timezone.now() + SETTLED)  # the first look since the full listing
    hub.clear_calls()
    used = hub.control("GET", "github/settings")["rate_used"]
    repository.refresh_from_db()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        counts = sync_repository(repository, timezone.now(), say)
    assert counts["unchanged_issues"] == counts["unchanged_pulls"] == 1
    assert "full_listing" not in counts
    assert len(calls(hub)) == 3
    assert hub.control("GET", "github/settings")["rate_used"] == used
    assert [q["sql"] for q in queries if q["sql"].startswith(("INSERT", "UPDATE", "DELETE"))] == []


def test_new_changed_closed_and_reopened_issues_follow(hub, repository, store):
    sync(repository)
    number = open_issue(hub)
    assert sync(repository)["opened"] == 1
    person(hub, "PATCH", f"/issues/{number}", {"title": "Other", "body": "## 成果物\nmore"})
    person(hub, "POST", f"/issues/{number}/labels", {"labels": ["P0"]})
    sync(repository)
    issue = issue_of(repository, number)
    assert (issue.title, issue.priority, issue.labels) == ("Other", 0, ["P1", "BACKENDCODER", "P0"])
    assert issue.raw["title"] == "Other"
    person(hub, "PATCH", f"/issues/{number}", {"state": "closed"})
    assert sync(repository)["closed"] == 1
    assert not issue_of(repository, number).is_open
    assert store.get(f"poppo:issue:{number}") is None
    person(hub, "PATCH", f"/issues/{number}", {"state": "open"})
    sync(repository)
    assert issue_of(repository, number).is_open
    assert store.get(f"poppo:issue:{number}") is not None
    assert whats(repository, number) == ["opened", "closed", "reopened"]


def test_an_issue_that_comes_with_an_old_time_is_seen_by_the_next_poll(hub, repository):
    """As one that was moved here from another repository; nothing else has changed."""
    sync(repository)
    sync(repository, timezone.now() + SETTLED)
    old = (timezone.now() - timedelta(days=30)).isoformat()
    item = {"title": "Moved here", "labels": ["P1"], "created_at": old, "updated_at": old}
    number = hub.control("POST", "github/issues", {"issues": [item]})["numbers"][0]
    counts = sync(repository, timezone.now() + SETTLED)
    assert counts["unchanged_issues"] == 1, "the listing of changes does not show it"
    assert counts["opened"] == 1
    assert issue_of(repository, number).is_open


def test_what_was_opened_and_closed_between_two_polls_is_no_news(hub, repository):
    sync(repository)
    number = open_issue(hub)
    person(hub, "PATCH", f"/issues/{number}", {"state": "closed"})
    sync(repository)
    assert not Issue.objects.filter(number=number).exists()


def vanish(hub: SandboxHandle, number: int) -> None:
    """As if it had been moved to another repository: no listing names it any more."""
    state = hub.state("github")
    repo = state["repositories"][0]
    repo["issues"] = [issue for issue in repo["issues"] if issue["number"] != number]
    hub.load("github", state)


def test_an_issue_that_vanished_from_a_small_repository_is_closed_at_once(hub, repository):
    number = open_issue(hub)
    sync(repository)
    vanish(hub, number)
    hub.clear_calls()
    assert sync(repository)["full_listing"] == 1
    assert not issue_of(repository, number).is_open
    assert f"GET /issues/{number}" in calls(hub)
    assert whats(repository, number) == ["opened", "closed"]


def test_an_issue_that_vanished_from_a_large_one_is_closed_by_the_daily_full_listing(hub, repository):
    number = open_issue(hub)
    many = [{"title": f"issue {n}", "labels": ["P3"]} for n in range(100)]
    hub.control("POST", "github/issues", {"issues": many})
    sync(repository)
    vanish(hub, number)
    assert "full_listing" not in sync(repository)
    assert issue_of(repository, number).is_open
    assert sync(repository, timezone.now() + timedelta(days=1))["full_listing"] == 1
    assert not issue_of(repository, number).is_open


def test_what_slipped_by_a_listing_is_asked_for_and_stays(hub, repository):
    """A full listing that lacks everything, as after a fault on the far side, closes nothing."""
    number = open_issue(hub)
    sync(repository)
    hub.fault("github", "status", status=200, body=[], path="/issues$", skip=1)
    repository.refresh_from_db()
    sync_repository(repository, timezone.now(), say, force_full=True)
    assert issue_of(repository, number).is_open


@pytest.mark.parametrize("listing", ["issues", "pulls"])
def test_one_that_makes_no_sense_does_not_keep_the_others_back(hub, repository, listing: str):
    first, second = open_issue(hub, "First"), open_issue(hub, "Second")
    person(
        hub,
        "POST",
        "/git/refs",
        {"ref": "refs/heads/x", "sha": person(hub, "GET", "/branches/main")["commit"]["sha"]},
    )
    hub.control("POST", "github/push", {"branch": "x"})
    pull = person(
        hub, "POST", "/pulls", {"title": "PR", "head": "x", "base": "main", "body": f"Closes #{first}"}
    )
    items = person(hub, "GET", f"/{listing}?state=open&per_page=100")
    spoilt = pull["number"] if listing == "pulls" else first
    given = [{**item, "updated_at": None} if item["number"] == spoilt else item for item in items]
    hub.fault("github", "status", status=200, body=given, path=f"/{listing}$")
    assert sync(repository)["unreadable"] == 1
    assert issue_of(repository, second).is_open
    rows = PullRequest if listing == "pulls" else Issue
    assert not rows.objects.filter(number=spoilt).exists()
    sync(repository, timezone.now() + SETTLED)
    assert rows.objects.filter(number=spoilt).exists(), "the next poll asks again"
    alone = {**person(hub, "GET", f"/{listing}/{spoilt}"), "title": None}
    hub.fault("github", "status", status=200, body=[], path=f"/{listing}$", times=0)
    hub.fault("github", "status", status=200, body=alone, path=f"/{listing}/{spoilt}$", times=0)
    sync(repository, timezone.now() + SETTLED)
    assert rows.objects.get(number=spoilt).is_open, "a single look that makes no sense closes nothing"


def test_an_older_snapshot_never_wins(hub, repository):
    number = open_issue(hub)
    old = person(hub, "GET", f"/issues/{number}")
    hub.set_clock(60)
    person(hub, "PATCH", f"/issues/{number}", {"title": "Newer"})
    new = person(hub, "GET", f"/issues/{number}")
    now = timezone.now()
    assert apply_issue(repository, new, now) == {number}
    assert apply_issue(repository, old, now) == set()
    assert apply_issue(repository, new, now) == set()
    assert issue_of(repository, number).title == "Newer"
    equal = {**new, "title": "The same second"}
    assert apply_issue(repository, equal, now) == {number}


@pytest.mark.parametrize(
    "spoilt",
    [
        {"number": None},
        {"number": True},
        {"title": 7},
        {"state": "?"},
        {"updated_at": "soon"},
        {"labels": 7},
        {"body": []},
    ],
)
def test_an_issue_without_sense_is_refused_whole(hub, repository, spoilt: dict[str, Any]):
    raw = person(hub, "GET", f"/issues/{open_issue(hub)}")
    with pytest.raises(errors.BadAnswer):
        apply_issue(repository, {**raw, **spoilt}, timezone.now())
    assert Issue.objects.count() == 0


def test_a_refusal_is_forgotten_when_the_issue_changes(hub, repository):
    number = open_issue(hub)
    sync(repository)
    Issue.objects.update(refused_reason="GitHub refused: no base")
    sync(repository)
    assert issue_of(repository, number).refused_reason
    person(hub, "PATCH", f"/issues/{number}", {"body": "## 成果物\nother base"})
    sync(repository)
    assert issue_of(repository, number).refused_reason == ""


@pytest.mark.slow
def test_ten_thousand_issues(hub, repository, store):
    begun_at = datetime.now(UTC) - timedelta(days=30)
    items = [
        {
            "title": f"Issue {n}",
            "body": "## 成果物\n- x",
            "labels": ["P1", "BACKENDCODER"],
            "updated_at": (begun_at + timedelta(minutes=n)).isoformat(),
        }
        for n in range(10_000)
    ]
    hub.control("POST", "github/issues", {"issues": items})
    hub.clear_calls()
    statements: list[str] = []

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql.split(" ", 1)[0])
        return execute(sql, *rest)

    with connection.execute_wrapper(count):
        counts = sync(repository)
    assert counts["opened"] >= 10_000
    assert len(calls(hub)) < 110
    # A handful of statements a page, not one an issue.
    assert len(statements) < 1500
    assert len(json.loads(str(store.get("poppo:open_issues")))) == counts["opened"]
    number = open_issue(hub)
    hub.clear_calls()
    assert sync(repository)["opened"] == 1
    assert issue_of(repository, number).is_open
    assert len(calls(hub)) < 8


def test_many_changes_at_once_are_not_read_for_ever(hub, repository):
    sync(repository)
    hub.control("POST", "github/issues", {"issues": [{"title": f"Issue {n}"} for n in range(120)]})
    assert sync(repository)["opened"] == 120
    state = hub.state("github")
    for issue in state["repositories"][0]["issues"]:
        issue["updated_at"] = (datetime.now(UTC) - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    Repository.objects.update(synced_until_at=timezone.now() - timedelta(hours=4))
    hub.load("github", state)
    sync(repository)
    hub.clear_calls()
    sync(repository)
    assert len([call for call in calls(hub) if "/issues?" in call]) == 1


# Pull requests and reviews


def reviewed(repository: Repository) -> tuple[Issue, PullRequest]:
    pull = PullRequest.objects.filter(repository=repository).order_by("number").first()
    assert pull is not None
    return issue_of(repository, pull.closes[0]), pull


def test_pull_requests_are_linked_by_their_text(hub, repository):
    sync(repository)
    issue, pull = reviewed(repository)
    assert pull.head_ref == f"feature/issue-{issue.number}"
    assert pull.base_ref == "main"
    assert len(pull.head_sha) == 40
    assert "needs-review" in issue.labels
    assert len(pull.comments_digest) == 39


def test_the_wish_for_a_review_is_timed_and_forgotten_with_the_label(hub, repository, store):
    number = open_issue(hub)
    sync(repository)
    assert issue_of(repository, number).review_detected_at is None
    person(hub, "POST", f"/issues/{number}/labels", {"labels": ["needs-review"]})
    first_at = timezone.now()
    sync(repository, first_at)
    person(hub, "PATCH", f"/issues/{number}", {"title": "Changed meanwhile"})
    sync(repository, first_at + timedelta(minutes=3))
    assert issue_of(repository, number).review_detected_at == first_at
    for name in ("review_issue_detected_timestamp:", "review_delay_"):
        assert datetime.fromisoformat(str(store.get(f"poppo:{name}{number}"))) == first_at
    person(hub, "DELETE", f"/issues/{number}/labels/needs-review")
    sync(repository)
    assert issue_of(repository, number).review_detected_at is None
    assert store.get(f"poppo:review_delay_{number}") is None
    assert "review wanted" in whats(repository, number)


def test_review_done_comes_after_ten_minutes_on_linked_pull_requests_only(hub, repository):
    sync(repository)
    issue, pull = reviewed(repository)
    assert "review-done" in hub_labels(hub, pull.number)
    assert "review-done" not in hub_labels(hub, issue.number)
    assert "review-done" in PullRequest.objects.get(pk=pull.pk).labels
    hub.clear_calls()
    sync(repository)
    assert calls(hub, "POST") == []


@pytest.mark.parametrize(("minutes", "is_done"), [(9, False), (11, True)])
def test_review_done_waits_ten_minutes(hub, repository, minutes: int, is_done: bool):
    sync(repository)
    _, pull = reviewed(repository)
    person(hub, "DELETE", f"/issues/{pull.number}/labels/review-done")
    opened_at = timezone.now()
    state = hub.state("github")
    for issue in state["repositories"][0]["issues"]:
        if issue["number"] == pull.number:
            issue["created_at"] = opened_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    hub.load("github", state)
    sync(repository, opened_at + timedelta(minutes=minutes))
    assert ("review-done" in hub_labels(hub, pull.number)) is is_done


def test_a_new_review_comment_changes_the_fingerprint(hub, repository):
    sync(repository)
    _, pull = reviewed(repository)
    sync(repository, timezone.now() + SETTLED)
    hub.clear_calls()
    sync(repository)
    assert not [call for call in calls(hub) if "/comments" in call]
    hub.set_clock(5)
    path = f"/pulls/{pull.number}/comments"
    comment = {"body": "One more", "path": "services/delivery.py", "line": 1, "commit_id": pull.head_sha}
    person(hub, "POST", path, comment)
    sync(repository)
    again = PullRequest.objects.get(pk=pull.pk)
    assert again.fingerprint != pull.fingerprint
    assert again.head_sha == pull.head_sha


def test_a_push_changes_the_fingerprint(hub, repository):
    sync(repository)
    _, pull = reviewed(repository)
    hub.set_clock(5)
    hub.control("POST", "github/push", {"branch": pull.head_ref})
    sync(repository)
    assert PullRequest.objects.get(pk=pull.pk).head_sha != pull.head_sha


def test_a_merged_pull_request_closes_with_its_issue(hub, repository):
    sync(repository)
    issue, pull = reviewed(repository)
    person(hub, "PUT", f"/pulls/{pull.number}/merge")
    sync(repository)
    assert not PullRequest.objects.get(pk=pull.pk).is_open
    assert not issue_of(repository, issue.number).is_open


def test_a_pull_request_that_left_the_list_is_looked_at(hub, repository):
    sync(repository)
    _, pull = reviewed(repository)
    PullRequest.objects.create(
        repository=repository, number=4321, title="Gone", head_ref="x", head_sha="1", base_ref="main",
        opened_at=timezone.now(), updated_at=timezone.now(),
    )  # fmt: skip
    Repository.objects.update(pulls_etag="")
    sync(repository)
    assert not PullRequest.objects.get(number=4321).is_open
    assert PullRequest.objects.get(pk=pull.pk).is_open


def test_applying_a_pull_request_names_the_issues_that_it_touches(hub, repository):
    sync(repository)
    sync(repository)  # review-done has changed it
    issue, pull = reviewed(repository)
    raw = person(hub, "GET", f"/pulls/{pull.number}")
    assert apply_pull(repository, raw, timezone.now()) == set()
    moved = {**raw, "body": "Closes #9999"}
    assert apply_pull(repository, moved, timezone.now()) == {pull.number, issue.number, 9999}


# Labels of ours, people's labels


@pytest.fixture
def agent(db) -> Agent:
    return Agent.objects.create(name="agent-1")


def make_assignment(repository: Repository, agent: Agent, number: int, **fields: Any) -> Assignment:
    now = timezone.now()
    values = {
        "task_type": "development",
        "state": "live",
        "created_at": now,
        "last_heartbeat_at": now,
        **fields,
    }
    return Assignment.objects.create(repository=repository, agent=agent, number=number, **values)


def test_closing_an_issue_cancels_the_work_on_it(hub, repository, agent):
    number = open_issue(hub)
    sync(repository)
    live = make_assignment(repository, agent, number)
    person(hub, "PATCH", f"/issues/{number}", {"state": "closed"})
    sync(repository)
    live.refresh_from_db()
    assert live.is_cancelled
    assert live.state == "live"
    assert whats(repository, number) == ["opened", "closed", "cancelled"]


def test_taking_the_parked_label_off_begins_anew(hub, repository):
    number = open_issue(hub, labels=("P1", "BACKENDCODER", "parked"))
    sync(repository)
    Issue.objects.filter(number=number).update(lost_attempts=3)
    person(hub, "DELETE", f"/issues/{number}/labels/parked")
    sync(repository)
    assert issue_of(repository, number).lost_attempts == 0
    assert whats(repository, number) == ["opened", "parked", "unparked"]


def test_labels_changed_by_us_after_the_listing_was_asked_for_are_kept(hub, repository):
    number = open_issue(hub)
    sync(repository)
    stale = {**person(hub, "GET", f"/issues/{number}"), "title": "A person's change"}
    asked_at = timezone.now()
    Issue.objects.filter(number=number).update(labels=["P1", "BACKENDCODER", "parked"], lost_attempts=3)
    mark_labels_changed(repository.pk, number)
    changes = apply_issues(repository, [stale], SnapshotSource(timezone.now(), asked_at=asked_at))
    issue = issue_of(repository, number)
    assert issue.labels == ["P1", "BACKENDCODER", "parked"]
    assert [label["name"] for label in issue.raw["labels"]] == issue.labels
    assert issue.title == "A person's change"
    assert issue.lost_attempts == 3
    assert changes.held == {number}
    later = apply_issues(repository, [stale], SnapshotSource(timezone.now(), asked_at=timezone.now()))
    assert later.held == set()
    assert issue_of(repository, number).lost_attempts == 0


def leave_pending(repository: Repository, agent: Agent, hub: SandboxHandle) -> tuple[int, Assignment]:
    """A completed task whose labels GitHub does not know yet."""
    number = open_issue(hub, labels=("P1", "BACKENDCODER", "in-progress", "agent-1"))
    due = {"add": ["needs-review"], "remove": ["in-progress", "agent-1"]}
    ended = make_assignment(
        repository, agent, number, state="completed", ended_at=timezone.now(), labels_due=due
    )
    return number, ended


def test_pending_labels_are_applied_after_an_outage(hub, repository, agent):
    number, ended = leave_pending(repository, agent, hub)
    hub.fault("github", "status", status=503, path="labels", times=2)
    assert apply_pending_label_changes(repository, 10) == 0
    ended.refresh_from_db()
    assert ended.labels_due is not None
    hub.clear_faults()
    assert sync(repository)["labels_settled"] == 1
    ended.refresh_from_db()
    assert ended.labels_due is None
    assert hub_labels(hub, number) == {"P1", "BACKENDCODER", "needs-review"}
    assert set(issue_of(repository, number).labels) == {"P1", "BACKENDCODER", "needs-review"}


def test_while_labels_are_pending_the_row_has_them_already(hub, repository, agent):
    number = open_issue(hub)
    sync(repository)
    person(hub, "POST", f"/issues/{number}/labels", {"labels": ["in-progress", "agent-1"]})
    due = {"add": ["needs-review"], "remove": ["in-progress", "agent-1"]}
    make_assignment(repository, agent, number, state="completed", ended_at=timezone.now(), labels_due=due)
    hub.fault("github", "drop", method="POST", path="labels")
    sync(repository)
    assert set(issue_of(repository, number).labels) == {"P1", "BACKENDCODER", "needs-review"}


def test_labels_pending_for_an_issue_that_is_gone_are_given_up(hub, repository, agent):
    ended = make_assignment(
        repository,
        agent,
        99999,
        state="lost",
        ended_at=timezone.now(),
        labels_due={"add": [], "remove": ["in-progress"]},
    )
    sync(repository)
    ended.refresh_from_db()
    assert ended.labels_due is None
    assert whats(repository, 99999) == ["labels given up"]


# The budget

RESET = datetime(2026, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("limit", "remaining", "minutes_to_reset", "wanted"),
    [
        (5000, 5000, 30, Budget.PLENTY),
        (5000, 500, 30, Budget.PLENTY),
        (5000, 499, 30, Budget.LOW),
        (5000, 100, 30, Budget.LOW),
        (5000, 99, 30, Budget.SPENT),
        (5000, 0, 30, Budget.SPENT),
        (5000, 0, 0, Budget.PLENTY),  # a new hour has begun
        (5000, 0, -5, Budget.PLENTY),
        (500, 99, 30, Budget.LOW),
        (500, 100, 30, Budget.PLENTY),
    ],
)
def test_budget_rules(limit: int, remaining: int, minutes_to_reset: int, wanted: Budget):
    now = RESET - timedelta(minutes=minutes_to_reset)
    assert budget_for(RateLimit(limit, remaining, RESET), now) is wanted


def test_an_unknown_budget_is_plenty():
    assert budget_for(None, RESET) is Budget.PLENTY


def test_with_little_left_only_what_changed_is_asked_for(hub, repository):
    sync(repository)
    number = open_issue(hub)
    hub.control("PATCH", "github/settings", {"rate_used": 4700})
    record_rate_limit(5000, 300, timezone.now() + timedelta(hours=1))
    hub.clear_calls()
    counts = sync(repository, timezone.now() + timedelta(minutes=50))
    assert counts["slowed_by_rate_limit"] == 1
    assert issue_of(repository, number).is_open
    assert len(calls(hub)) == 2
    Repository.objects.update(last_full_sync_at=None)
    assert "full_listing" not in sync(repository)


def test_with_nothing_left_nothing_is_asked(hub, repository):
    record_rate_limit(5000, 10, timezone.now() + timedelta(minutes=10))
    assert sync(repository) == {"waiting_for_rate_limit": 1}
    assert calls(hub) == []
    assert "full_listing" in sync(repository, timezone.now() + timedelta(minutes=11))


def test_running_into_the_limit_stops_the_next_polls_until_its_end(hub, repository):
    sync(repository)
    hub.control("PATCH", "github/settings", {"rate_used": 5000})
    Repository.objects.update(issues_etag="")
    with pytest.raises(errors.RateLimited):
        sync(repository)
    hub.clear_calls()
    assert sync(repository) == {"waiting_for_rate_limit": 1}
    assert calls(hub) == []


# Several repositories, failures, settings


def test_one_failing_repository_does_not_stop_the_others(hub, repository):
    Repository.objects.create(full_name="broker-sandbox/absent", namespace="absent")
    counts = poll_issues(PollOptions())
    assert counts["repositories"] == 2
    assert counts["failed"] == 1
    assert counts["opened"] > 0
    absent = Repository.objects.get(namespace="absent")
    assert absent.last_error.startswith("Missing: ")
    repository.refresh_from_db()
    assert repository.last_error == ""


def test_if_all_fail_so_does_the_run_and_a_good_one_clears_the_record(hub, repository):
    hub.fault("github", "status", status=500, times=0)
    with pytest.raises(errors.ServerFault):
        poll_issues(PollOptions())
    repository.refresh_from_db()
    assert repository.last_error.startswith("ServerFault: ")
    hub.clear_faults()
    poll_issues(PollOptions())
    repository.refresh_from_db()
    assert repository.last_error == ""


def test_what_was_applied_before_a_failure_is_known_to_the_index(hub, repository, store):
    sync(repository)
    number = open_issue(hub)
    hub.fault("github", "drop", path="/pulls$")
    with pytest.raises(errors.Unreachable):
        sync(repository)
    assert store.get(f"poppo:issue:{number}") is not None


def test_each_repository_has_its_own_keys(hub, repository, store):
    hub.control("POST", "github/repositories", {"repository": "broker-sandbox/second"})
    issues = [{"title": "Over there", "labels": ["P0", "BACKENDCODER"]}]
    hub.control("POST", "github/issues", {"repository": "broker-sandbox/second", "issues": issues})
    Repository.objects.create(full_name="broker-sandbox/second", namespace="second")
    poll_issues(PollOptions())
    assert json.loads(str(store.get("second:issue:1")))["title"] == "Over there"
    assert "Over there" not in str(store.get("poppo:open_issues"))


def test_a_disabled_repository_rests(hub, repository):
    Repository.objects.update(is_enabled=False)
    assert poll_issues(PollOptions()) == {"repositories": 0, "failed": 0}
    assert calls(hub) == []


def test_another_configured_repository_takes_over_the_namespace(settings, repository):
    github = replace(settings.BROKER.github, repository="owner/other")
    settings.BROKER = replace(settings.BROKER, github=github)
    other = configured_repository()
    assert (other.full_name, other.namespace, other.is_enabled) == ("owner/other", "poppo", True)
    repository.refresh_from_db()
    assert repository.namespace == f"poppo-{repository.pk}"
    assert not repository.is_enabled
    back = replace(settings.BROKER.github, repository="Broker-Sandbox/Demo")
    settings.BROKER = replace(settings.BROKER, github=back)
    again = configured_repository()
    assert (again.pk, again.namespace, again.is_enabled) == (repository.pk, "poppo", True)
    assert Repository.objects.count() == 2


def test_a_killed_run_leaves_nothing_behind(hub, repository, store):
    """Rows committed, index not told, place not noted: the next poll looks at the same window again."""
    sync(repository)
    number = open_issue(hub)
    apply_issue(repository, person(hub, "GET", f"/issues/{number}"), timezone.now())
    assert store.get(f"poppo:issue:{number}") is None
    sync(repository)
    assert store.get(f"poppo:issue:{number}") is not None


def test_an_empty_redis_is_filled_by_the_next_poll(hub, repository, store):
    sync(repository)
    sync(repository)
    before = store.get("poppo:open_issues")
    store.flushall()
    sync(repository)
    assert store.get("poppo:open_issues") == before
    project(repository, [], timezone.now())
