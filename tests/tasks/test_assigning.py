"""From a request to an assignment, and what is left when something fails on the way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.utils import timezone

from broker_project.lib.redis import keys as k
from tasks.models import Assignment, Event, Repository
from tasks.offers.projector import rebuild
from tasks.services.recovery import sweep_labels
from tests.tasks.world import World

pytestmark = pytest.mark.database

DEV = ("P0", "BACKENDCODER")


def test_a_task_is_everything_that_seed_001_says_and_more(world: World) -> None:
    body = "## 成果物\n- x\n- **作業ブランチ (Feature Branch):** fix/issue-xx"
    number = world.open_issue(*DEV, title="二重登録", body=body)
    world.sync()
    world.sandbox.clear_calls()
    task = world.given()
    prompt = task.pop("prompt")
    assert task.pop("lease_expires_at")
    assert task == {
        "issue_id": number,
        "issue_url": f"{world.sandbox.base_url}/github/broker-sandbox/demo/issues/{number}",
        "title": "二重登録",
        "body": "## 成果物\n- x\n- **作業ブランチ (Feature Branch):** fix/issue-xx",
        "labels": ["P0", "BACKENDCODER", "in-progress", "agent-1"],
        "branch_name": f"fix/issue-{number}",
        "required_role": "BACKENDCODER",
        "task_type": "development",
        "gemini_response": None,
        "assignment_id": task["assignment_id"],
        "repository": "broker-sandbox/demo",
        "base_branch": "main",
        "pull_request_url": None,
        "heartbeat_seconds": 60,
    }
    assert f"fix/issue-{number}" in prompt
    assert "二重登録" in prompt
    assert world.labels(number) == {"P0", "BACKENDCODER", "in-progress", "agent-1"}
    assert world.has_branch(f"fix/issue-{number}")


def test_an_assignment_costs_three_requests_to_github(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    world.sandbox.clear_calls()
    world.given()
    assert world.requests() == [
        "GET /github/repos/broker-sandbox/demo/branches/main",
        "POST /github/repos/broker-sandbox/demo/git/refs",
        f"POST /github/repos/broker-sandbox/demo/issues/{number}/labels",
    ]


def test_redis_shows_who_works_on_what(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    task = world.given()
    store, process = world.store, f"issue-{number}-agent-1"
    assert world.status_of(number) == "processing"
    assert store.smembers(world.key(k.ISSUES_PROCESSING)) == {str(number)}
    assert store.smembers(world.key(k.PROCESSES_ACTIVE)) == {process}
    assert store.hget(world.key(k.PROCESS_INFO, process=process), "agent") == "agent-1"
    assert 1790 < store.ttl(world.key(k.PROCESS_HEARTBEAT, process=process)) <= 1800
    assert store.get(world.key(k.AGENT_CURRENT_TASK, agent="agent-1")) == str(number)
    assert 3590 < store.ttl(world.key(k.AGENT_CURRENT_TASK, agent="agent-1")) <= 3600
    candidate = json.loads(store.get(world.key(k.TASK_CANDIDATE, number=number, agent="agent-1")) or "")
    assert candidate["status"] == "assigned"
    assert store.hget(world.key(k.TASK_INFO, id=task["assignment_id"]), "agent") == "agent-1"
    assert store.exists(world.key(k.ISSUE_LOCK, number=number)) == 0, "the lock goes once the row is live"
    cached = json.loads(store.get(world.key(k.ISSUE, number=number)) or "")
    assert {label["name"] for label in cached["labels"]} >= {"in-progress", "agent-1"}
    listed = json.loads(store.get(world.key(k.OPEN_ISSUES)) or "")
    assert {label["name"] for label in listed[0]["labels"]} >= {"in-progress", "agent-1"}
    assert store.zcard(world.key(k.QUEUE, priority="high")) == 0


def test_nothing_to_give_is_204_with_a_time_to_come_back(world: World) -> None:
    answer = world.ask()
    assert answer.status_code == 204
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.content == b""


def test_an_existing_branch_is_fine(world: World) -> None:
    number = world.open_issue(*DEV)
    world.push(f"feature/issue-{number}")
    world.sync()
    assert world.given()["branch_name"] == f"feature/issue-{number}"


OUTAGES: list[tuple[str, dict[str, Any]]] = [
    ("status", {"status": 500}),
    ("status", {"status": 502}),
    ("status", {"status": 401}),
    ("status", {"status": 403}),
    ("status", {"status": 429, "headers": {"retry-after": "7"}}),
    ("drop", {}),
    ("lose_answer", {}),
    ("garbage", {}),
]
STEPS = ["GET .*/branches/main$", "POST .*/git/refs$", "POST .*/labels$"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("kind", "order"), OUTAGES)
def test_an_outage_at_any_step_undoes_everything(
    world: World, step: str, kind: str, order: dict[str, Any]
) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    method, path = step.split()
    world.sandbox.fault("github", kind, method=method, path=path, **order)
    answer = world.ask()
    assert answer.status_code == 502
    assert answer.json()["error"] == "github_failed"
    assert world.live() == []
    assert Assignment.objects.get().state == "aborted"
    assert not world.store.exists(world.key(k.ISSUE_LOCK, number=number))
    assert world.labels(number) == {"P0", "BACKENDCODER"}, "no labels without an assignment"
    world.sandbox.clear_faults()
    assert world.given("agent-2")["issue_id"] == number, "it is on offer again at once"


def test_labels_that_cannot_be_taken_back_now_are_taken_back_later(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    world.sandbox.fault("github", "lose_answer", method="POST", path="labels$")
    world.sandbox.fault("github", "status", method="DELETE", path="labels", status=503, times=0)
    assert world.ask().status_code == 502
    assert "in-progress" in world.labels(number)
    assert Assignment.objects.get().labels_due is not None
    world.sandbox.clear_faults()
    world.sync()
    assert world.labels(number) == {"P0", "BACKENDCODER"}
    assert Assignment.objects.get().labels_due is None


def test_a_repository_that_has_moved_is_no_word_about_one_issue(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    elsewhere = {"location": "http://elsewhere.example/"}
    world.sandbox.fault("github", "status", method="POST", path="git/refs$", status=307, headers=elsewhere)
    assert world.ask().status_code == 502
    assert world.issue(number).refused_reason == ""
    assert world.given()["issue_id"] == number


def test_labels_in_other_letters_are_the_same_labels(world: World) -> None:
    """GitHub writes a label as whoever made it wrote it, and takes it by any case."""
    number, epic = world.open_issue(*DEV), world.open_issue(*DEV, "Epic")
    for name in ("In-Progress", "Needs-Review", "AGENT-1"):
        world.github("POST", "/labels", {"name": name, "color": "ededed"})
    world.sync()
    task = world.given()
    assert {"In-Progress", "AGENT-1"} <= world.labels(number)
    assert {"in-progress", "agent-1"} <= set(task["labels"])
    world.sync()
    assert world.post(f"/assignments/{task['assignment_id']}/complete").status_code == 200
    assert world.labels(number) == {*DEV, "Needs-Review"}
    assert world.issue(number).labels == [*DEV, "needs-review"], "before any poll"
    world.sync()
    assert world.ask("agent-2").status_code == 204, "it waits for its review and is not developed again"
    reasons = {
        row["number"]: row["reason"] for row in world.get("/explain?agent_id=agent-2").json()["issues"]
    }
    assert reasons == {number: "no open pull request is linked", epic: "labelled epic"}
    world.github("POST", f"/issues/{number}/labels", {"labels": ["In-Progress", "AGENT-1"]})
    world.sync()
    assert sweep_labels(world.repository, timezone.now()) == 1
    assert world.labels(number) == {*DEV, "Needs-Review"}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("## 成果物\n- **ベースブランチ (Base Branch):** no-such-branch\n", None),
        (
            "## 成果物\n",
            ("POST", "git/refs$", {"status": 422, "body": '{"message": "Reference name is bad"}'}),
        ),
    ],
)
def test_a_refusal_of_this_issue_alone_skips_to_the_next(world: World, body: str, fault: Any) -> None:
    first = world.open_issue(*DEV, body=body)
    second = world.open_issue(*DEV)
    world.sync()
    if fault:
        method, path, order = fault
        world.sandbox.fault("github", "status", method=method, path=path, **order)
    assert world.given()["issue_id"] == second
    assert world.issue(first).refused_reason
    reasons = {
        row["number"]: row["reason"] for row in world.get("/explain?agent_id=agent-3").json()["issues"]
    }
    assert "GitHub refused" in reasons[first]


def test_a_base_branch_that_is_made_later_brings_its_issue_back(world: World) -> None:
    number = world.open_issue(*DEV, body="## 成果物\n- **ベースブランチ (Base Branch):** later\n")
    world.sync()
    assert world.ask().status_code == 204
    world.sync()
    assert world.ask().status_code == 204, "nothing has changed yet"
    world.push("later")
    world.sync()
    task = world.given()
    assert (task["issue_id"], task["base_branch"]) == (number, "later")


def test_what_github_refused_is_tried_again_after_the_next_full_listing(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    said = {"message": "Repository rule violations found"}
    world.sandbox.fault("github", "status", method="POST", path="git/refs$", status=422, body=said)
    assert world.ask().status_code == 204
    world.sync()
    assert "rule violations" in world.issue(number).refused_reason
    Repository.objects.update(last_full_sync_at=None)
    world.sync()
    assert world.given()["issue_id"] == number


def test_each_issue_goes_to_one_agent_when_many_ask_at_once(world: World) -> None:
    numbers = {world.open_issue(*DEV) for _ in range(5)}
    world.sync()

    def ask(position: int) -> tuple[int, Any]:
        answer = world.ask(f"agent-{position}")
        return answer.status_code, answer.json()["issue_id"] if answer.status_code == 200 else None

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    given = sorted(number for status, number in answers if status == 200)
    assert given == sorted(numbers)
    assert {status for status, _ in answers} == {200, 204}
    assert sorted(world.live()) == sorted(numbers)


def test_one_agent_that_asks_twice_at_once_gets_one_task(world: World) -> None:
    for _ in range(4):
        world.open_issue(*DEV)
    world.sync()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: world.ask("agent-1"), range(4)))
    assert len(world.live()) <= 1
    left = world.store.zcard(world.key(k.QUEUE, priority="high"))
    taken = Assignment.objects.filter(state__in=["live", "completed"]).count()
    assert left + taken == 4, "what was claimed and not given is back on offer"


def test_a_repeated_request_id_returns_the_very_task(world: World) -> None:
    world.open_issue(*DEV)
    world.open_issue(*DEV)
    world.sync()
    first = world.given(request_id="r-1")
    again = world.given(request_id="r-1")
    assert again.pop("state") == "live"
    assert again == first
    assert world.given("agent-2", request_id="r-1")["issue_id"] != first["issue_id"], "ids are per agent"
    world.post(f"/assignments/{first['assignment_id']}/complete")
    assert world.given(request_id="r-1")["state"] == "completed"


def test_the_next_request_finishes_what_the_agent_had(world: World) -> None:
    first = world.open_issue(*DEV)
    second = world.open_issue(*DEV)
    world.sync()
    one = world.given()
    assert one["issue_id"] == first
    assert world.given()["issue_id"] == second
    assert world.labels(first) == {"P0", "BACKENDCODER", "needs-review"}
    assert world.assignment(one["assignment_id"]).state == "completed"
    assert world.store.sismember(world.key(k.ISSUES_COMPLETED_TODAY), str(first))


def test_an_issue_that_only_carries_the_labels_is_finished_too(world: World) -> None:
    number = world.open_issue(*DEV, "in-progress", "agent-1")
    world.sync()
    assert world.ask().status_code == 204
    assert world.labels(number) == {"P0", "BACKENDCODER", "needs-review"}


def test_one_that_cannot_be_finished_does_not_stop_the_others(world: World) -> None:
    stuck = world.open_issue(*DEV, "in-progress", "agent-1")
    other = world.open_issue(*DEV, "in-progress", "agent-1")
    wanted = world.open_issue(*DEV)
    world.sync()
    world.sandbox.fault("github", "status", status=500, path=f"issues/{stuck}/", times=0)
    assert world.given()["issue_id"] == wanted
    assert "needs-review" in world.labels(other)
    world.sandbox.clear_faults()
    assert "in-progress" in world.labels(stuck)


def test_a_lock_of_somebody_else_is_respected_and_kept(world: World) -> None:
    first, second = world.open_issue(*DEV), world.open_issue(*DEV)
    world.sync()
    world.store.set(world.key(k.ISSUE_LOCK, number=first), "another", ex=600)
    assert world.given()["issue_id"] == second
    assert world.store.get(world.key(k.ISSUE_LOCK, number=first)) == "another"


def test_redis_that_forgot_everything_is_built_again(world: World) -> None:
    first, second = world.open_issue(*DEV), world.open_issue(*DEV)
    world.sync()
    task = world.given()
    world.store.flushall()
    assert world.given("agent-2")["issue_id"] == second
    assert world.store.smembers(world.key(k.ISSUES_PROCESSING)) == {str(first), str(second)}
    assert world.get("/agents/agent-1/current-task").json()["assignment_id"] == task["assignment_id"]


def test_maintenance_answers_503_with_its_reason(world: World) -> None:
    world.open_issue(*DEV)
    world.sync()
    world.store.set(world.key(k.FLAG_MAINTENANCE), '{"reason": "moving house"}')
    answer = world.ask()
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "moving house" in answer.json()["message"]


def test_every_assignment_leaves_its_events(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    task = world.given()
    world.post(f"/assignments/{task['assignment_id']}/fail", {"reason": "no network"})
    events = Event.objects.filter(number=number, assignment_id=task["assignment_id"]).order_by("id")
    assert [(e.what, e.from_status, e.to_status, e.who) for e in events] == [
        ("assigned", "open", "processing", "agent-1"),
        ("failed", "processing", "error", "agent-1"),
    ]


def test_roles_asked_for_narrow_the_choice(world: World) -> None:
    world.open_issue(*DEV)
    front = world.open_issue("P0", "FRONTENDCODER")
    world.sync()
    assert world.given(roles=["FRONTENDCODER"])["issue_id"] == front
    assert world.ask("agent-2", roles=["UIUX"]).status_code == 204


def test_what_an_agent_has_shows_both_labels_before_any_poll_and_after_redis_forgot(world: World) -> None:
    number = world.open_issue("P0", "BACKENDCODER")
    other = world.open_issue("P0", "BACKENDCODER")
    world.sync()
    assert world.given("agent-1")["issue_id"] == number

    def shown() -> tuple[set[str], dict[int, set[str]]]:
        one = json.loads(world.store.get(world.key(k.ISSUE, number=number)) or "{}")
        every = json.loads(world.store.get(world.key(k.OPEN_ISSUES)) or "[]")
        return {label["name"] for label in one["labels"]}, {
            row["number"]: {label["name"] for label in row["labels"]} for row in every
        }

    expected = {"P0", "BACKENDCODER", "in-progress", "agent-1"}
    for _ in range(2):
        single, listed = shown()
        assert single == listed[number] == expected
        assert listed[other] == {"P0", "BACKENDCODER"}
        world.store.flushall()
        rebuild(world.repository, timezone.now())
    # The labels came back with the index, so the agent's next request still ends what it has.
    assert world.given("agent-1")["issue_id"] == other
    assert world.labels(number) == {"P0", "BACKENDCODER", "needs-review"}
    assert world.issue(number).labels == ["P0", "BACKENDCODER", "needs-review"]
