"""Tasks in the admin: what people see, and what their actions really do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tasks.models import Agent, Assignment, Event, FixTask, Issue, PromptTemplate, Repository
from tests.tasks.world import World

pytestmark = pytest.mark.database

DEV = ("P0", "BACKENDCODER")
HOSTILE = "<script>alert(1)</script>\u202e🙂" + "x" * 200


@pytest.fixture
def boss(transactional_db: None) -> Client:
    user = User.objects.create_superuser("boss")
    client = Client(headers={"accept-language": "en"})
    client.force_login(user)
    return client


def in_group(name: str) -> Client:
    user = User.objects.create_user(f"a-{name}", is_staff=True)
    user.groups.add(Group.objects.get(name=name))
    client = Client(headers={"accept-language": "en"})
    client.force_login(user)
    return client


@pytest.fixture
def task(world: World) -> dict[str, Any]:
    world.open_issue(*DEV)
    world.sync()
    return world.given()


def act(client: Client, model: str, action: str, *keys: object, confirmed: bool = True) -> Any:
    data: dict[str, Any] = {"action": action, "_selected_action": [str(key) for key in keys]}
    if confirmed:
        data["confirmed"] = "yes"
    return client.post(f"/admin/{model}/", data, follow=True)


def said(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


# Release, park, offer again


def test_an_action_asks_first_and_changes_nothing(boss: Client, world: World, task: dict[str, Any]) -> None:
    answer = act(boss, "tasks/assignment", "release", task["assignment_id"], confirmed=False)
    text = answer.content.decode()
    assert 'name="action" value="release"' in text
    assert f'name="_selected_action" value="{task["assignment_id"]}"' in text
    assert world.assignment(task["assignment_id"]).state == "live"


def test_release_frees_the_issue_and_the_agent_hears_cancel(
    boss: Client, world: World, task: dict[str, Any]
) -> None:
    pk, number = task["assignment_id"], task["issue_id"]
    answer = act(boss, "tasks/assignment", "release", pk)
    assert said(answer) == ["1 assignment released"]
    row = world.assignment(pk)
    assert (row.state, row.is_cancelled) == ("released", True)
    assert world.labels(number) == set(DEV)
    beat = world.post(f"/assignments/{pk}/heartbeat")
    assert (beat.status_code, beat.json()["cancel"]) == (200, True)
    row.refresh_from_db()
    assert row.state == "released"
    assert world.post(f"/assignments/{pk}/complete").status_code == 409
    assert world.post(f"/assignments/{pk}/fail", {"reason": "x"}).status_code == 409
    assert world.given("agent-2")["issue_id"] == number
    event = Event.objects.get(number=number, what="released")
    assert event.who == "boss"
    log = LogEntry.objects.get(object_id=str(pk))
    assert (log.user.username, log.change_message) == ("boss", "release: 1 assignment released")


def test_what_has_ended_is_left_alone_and_said_so(boss: Client, world: World, task: dict[str, Any]) -> None:
    world.post(f"/assignments/{task['assignment_id']}/complete")
    world.open_issue(*DEV, title="second")
    world.sync()
    second = world.given("agent-2")["assignment_id"]
    answer = act(boss, "tasks/assignment", "release", task["assignment_id"], second)
    assert said(answer) == ["1 assignment released, 1 left alone (completed)"]
    assert world.assignment(task["assignment_id"]).state == "completed"


def test_park_takes_a_live_assignment_back_and_offer_again_undoes_it(
    boss: Client, world: World, task: dict[str, Any]
) -> None:
    pk, number = task["assignment_id"], task["issue_id"]
    assert said(act(boss, "tasks/assignment", "park", pk)) == ["1 assignment parked"]
    assert world.assignment(pk).state == "released"
    assert world.labels(number) == {*DEV, "parked"}
    comments = world.github("GET", f"/issues/{number}/comments")
    assert "Parked by boss" in comments[-1]["body"]
    assert world.status_of(number) == "parked"
    assert world.ask("agent-2").status_code == 204
    assert world.post(f"/assignments/{pk}/heartbeat").json()["cancel"] is True
    Issue.objects.filter(number=number).update(lost_attempts=3)

    assert said(act(boss, "tasks/assignment", "offer_again", pk)) == ["1 assignment offered again"]
    assert world.labels(number) == set(DEV)
    assert world.issue(number).lost_attempts == 0
    assert world.given("agent-2")["issue_id"] == number


def test_an_issue_without_attempts_can_be_parked_and_offered_again(boss: Client, world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    pk = world.issue(number).pk
    assert said(act(boss, "tasks/issue", "park", pk)) == ["1 issue parked"]
    assert "parked" in world.labels(number)
    assert said(act(boss, "tasks/issue", "park", pk)) == ["0 issues parked, 1 left alone (parked already)"]
    assert world.ask().status_code == 204
    assert said(act(boss, "tasks/issue", "offer_again", pk)) == ["1 issue offered again"]
    assert world.given()["issue_id"] == number
    again = said(act(boss, "tasks/issue", "offer_again", pk))
    assert again == ["0 issues offered again, 1 left alone (an agent has it)"]


def test_while_github_is_away_parking_is_owed_or_refused(
    boss: Client, world: World, task: dict[str, Any]
) -> None:
    pk, number = task["assignment_id"], task["issue_id"]
    world.post(f"/assignments/{pk}/release")
    fresh = world.open_issue(*DEV)
    world.sync()
    world.sandbox.fault("github", "status", status=503, times=50)
    issues = [world.issue(number).pk, world.issue(fresh).pk]
    answer = act(boss, "tasks/issue", "park", *issues)
    assert said(answer) == ["1 issue parked, 1 left alone (GitHub does not answer)"]
    due = world.assignment(pk).labels_due
    assert due is not None
    assert due["add"] == ["parked"]
    assert "parked" not in world.issue(fresh).labels
    world.sandbox.clear_faults()
    world.sync()
    assert "parked" in world.labels(number)
    assert "parked" in world.issue(number).labels


def test_a_parked_fix_task_can_be_offered_again(boss: Client, world: World) -> None:
    number = world.open_issue(*DEV)
    pull = world.open_pull(number, "feature/x", "BACKENDCODER", "P0")
    world.sync()
    world.post("/tasks/fix", {"pull_request_number": pull, "review_comments": ["mend it"]})
    given = world.given()
    assert given["task_type"] == "fix"
    assert said(act(boss, "tasks/assignment", "park", given["assignment_id"])) == ["1 assignment parked"]
    assert "parked" in world.labels(pull)
    FixTask.objects.update(lost_attempts=2)
    assert said(act(boss, "tasks/assignment", "offer_again", given["assignment_id"])) == [
        "1 assignment offered again"
    ]
    assert "parked" not in world.labels(pull)
    assert FixTask.objects.get().lost_attempts == 0
    assert world.given("agent-2")["issue_id"] == pull


# Pages


def test_an_issue_page_says_why_it_is_not_moving(boss: Client, world: World) -> None:
    number = world.open_issue("P1", title="no role")
    waits = world.open_issue("P2", "BACKENDCODER", title="behind")
    world.sync()
    text = boss.get(f"/admin/tasks/issue/{world.issue(number).pk}/change/").content.decode()
    assert "no role label" in text
    assert "Add the label of a role from the agents file." in text
    text = boss.get(f"/admin/tasks/issue/{world.issue(waits).pk}/change/").content.decode()
    assert "behind P1" in text
    japanese = boss.get(
        f"/admin/tasks/issue/{world.issue(number).pk}/change/", headers={"accept-language": "ja"}
    )
    assert "no role label" not in japanese.content.decode()


def test_an_issue_page_shows_its_history_and_only_allowed_actions(
    boss: Client, world: World, task: dict[str, Any]
) -> None:
    url = f"/admin/tasks/issue/{world.issue(task['issue_id']).pk}/change/"
    text = boss.get(url).content.decode()
    assert "agent-1" in text
    assert 'value="park"' in text
    assert 'value="offer_again"' not in text
    assert "assigned" in text
    viewer = in_group("viewer")
    assert 'value="park"' not in viewer.get(url).content.decode()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=open", 3),
        ("state=on_offer", 1),
        ("state=at_work", 1),
        ("state=parked", 1),
        ("state=closed", 0),
        ("is_open__exact=1&priority=0", 2),
        ("q=special", 1),
    ],
)
def test_filters_of_issues_combine_and_live_in_the_address(
    boss: Client, world: World, query: str, found: int
) -> None:
    world.open_issue(*DEV, title="first")
    world.open_issue(*DEV, title="special")
    world.open_issue("P3", "BACKENDCODER", "parked", title="third")
    world.sync()
    world.given()
    answer = boss.get(f"/admin/tasks/issue/?{query}")
    assert answer.status_code == 200
    assert len(answer.context["cl"].result_list) == found


def test_assignments_by_state_as_django_filters(boss: Client, world: World, task: dict[str, Any]) -> None:
    assert len(boss.get("/admin/tasks/assignment/?state__exact=live").context["cl"].result_list) == 1
    assert len(boss.get("/admin/tasks/assignment/?state__exact=lost").context["cl"].result_list) == 0


def test_evidence_cannot_be_edited(boss: Client, world: World, task: dict[str, Any]) -> None:
    url = f"/admin/tasks/assignment/{task['assignment_id']}/change/"
    assert boss.post(url, {"state": "completed"}).status_code == 403
    assert boss.get("/admin/tasks/assignment/add/").status_code == 403
    assert world.assignment(task["assignment_id"]).state == "live"


def test_hostile_titles_are_text(boss: Client, world: World) -> None:
    number = world.open_issue(*DEV, title=HOSTILE)
    world.sync()
    world.given()
    for url in (
        "/admin/tasks/issue/",
        f"/admin/tasks/issue/{world.issue(number).pk}/change/",
        "/admin/tasks/assignment/",
    ):
        text = boss.get(url).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def test_a_list_costs_the_same_however_many_rows(boss: Client, world: World) -> None:
    now = timezone.now()

    def add(count: int, start: int) -> None:
        Issue.objects.bulk_create(
            Issue(
                repository=world.repository,
                number=start + i,
                title=f"t{i}",
                labels=list(DEV),
                priority=0,
                opened_at=now,
                updated_at=now,
            )
            for i in range(count)
        )
        agent = Agent.objects.get_or_create(name="many")[0]
        Assignment.objects.bulk_create(
            Assignment(
                agent=agent,
                repository=world.repository,
                number=start + i,
                task_type="development",
                state="completed",
                created_at=now,
                last_heartbeat_at=now,
                ended_at=now,
            )
            for i in range(count)
        )

    def queries(url: str) -> int:
        with CaptureQueriesContext(
            connection,
        ) as caught:
            assert boss.get(url).status_code == 200
        return len(caught)

    add(3, 1000)
    urls = ["/admin/tasks/issue/", "/admin/tasks/assignment/", "/admin/tasks/agent/", "/admin/tasks/event/"]
    few = {url: queries(url) for url in urls}
    add(400, 2000)
    many = {url: queries(url) for url in urls}
    assert all(many[url] <= few[url] for url in urls), (few, many)  # fewer: figures are kept for a moment
    assert max(many.values()) < 25, many


# Agents


def make_agent(client: Client, **data: Any) -> Any:
    return client.post("/admin/tasks/agent/add/", {"is_enabled": "on", **data})


def test_an_agents_token_is_shown_once_and_lets_it_in(boss: Client, settings: Any, world: World) -> None:
    answer = make_agent(boss, name="worker-7", roles=["BACKENDCODER"])
    token = answer.context["token"]
    assert token in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    agent = Agent.objects.get(name="worker-7")
    assert agent.roles == ["BACKENDCODER"]
    page = boss.get(f"/admin/tasks/agent/{agent.pk}/change/").content.decode()
    assert token not in page
    assert token[-4:] in page
    assert token not in "".join(LogEntry.objects.values_list("change_message", flat=True))

    asked = boss.get(f"/admin/tasks/agent/{agent.pk}/rotate/")
    assert asked.status_code == 200
    second = boss.post(f"/admin/tasks/agent/{agent.pk}/rotate/").context["token"]
    assert second != token
    agent.refresh_from_db()
    assert agent.token_hint == second[-4:]
    assert said(act(boss, "tasks/agent", "revoke", agent.pk)) == ["1 agent without a token now"]
    agent.refresh_from_db()
    assert agent.token_hash == ""


@pytest.mark.parametrize("name", ["parked", "P1", "BACKENDCODER", "", "-x", "a b", "x" * 51])
def test_names_that_mean_something_else_are_refused(boss: Client, name: str) -> None:
    answer = make_agent(boss, name=name)
    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors["name"]
    assert not Agent.objects.exists()


def test_a_role_outside_the_agents_file_is_refused(boss: Client) -> None:
    assert "roles" in make_agent(boss, name="ok", roles=["KING"]).context["adminform"].form.errors


def test_switching_an_agent_moves_its_time(boss: Client) -> None:
    make_agent(boss, name="worker")
    agent = Agent.objects.get()
    Agent.objects.update(changed_at=timezone.now() - timedelta(days=1))
    assert said(act(boss, "tasks/agent", "disable", agent.pk)) == ["1 agent disabled"]
    agent.refresh_from_db()
    assert agent.is_enabled is False
    assert timezone.now() - agent.changed_at < timedelta(hours=1)
    assert said(act(boss, "tasks/agent", "disable", agent.pk)) == [
        "0 agents disabled, 1 left alone (disabled already)"
    ]


# Prompts and repositories


def test_an_unknown_placeholder_is_refused_with_its_name(boss: Client) -> None:
    data = {"task_type": "development", "language": "ja", "is_enabled": "on"}
    answer = boss.post("/admin/tasks/prompttemplate/add/", {**data, "body": "Do {titel}"})
    assert "{titel}" in str(answer.context["adminform"].form.errors["body"])
    assert boss.post("/admin/tasks/prompttemplate/add/", {**data, "body": "{"}).status_code == 200
    assert not PromptTemplate.objects.exists()
    answer = boss.post("/admin/tasks/prompttemplate/add/", {**data, "body": "Do {title}"})
    assert answer.status_code == 302
    assert PromptTemplate.objects.get().changed_by == "boss"


def test_a_prompt_can_be_tried_without_saving_it(boss: Client) -> None:
    answer = boss.post("/admin/tasks/prompttemplate/preview/", {"body": "On {branch}: {body} <b>"})
    text = answer.content.decode()
    assert "On feature/issue-123" in text
    assert "&lt;b&gt;" in text
    assert boss.post("/admin/tasks/prompttemplate/preview/", {"body": "{nope}"}).status_code == 422
    form = boss.get("/admin/tasks/prompttemplate/add/").content.decode()
    assert "{branch}" in form


@pytest.mark.parametrize(
    ("name", "namespace", "field"),
    [
        ("no-slash", "other", "full_name"),
        ("owner/na me", "other", "full_name"),
        ("BROKER-sandbox/demo", "other", "full_name"),
        ("owner/name", "poppo", "namespace"),
        ("owner/name", "a:b", "namespace"),
    ],
)
def test_bad_repositories_are_refused(
    boss: Client, world: World, name: str, namespace: str, field: str
) -> None:
    data = {"full_name": name, "namespace": namespace, "is_enabled": "on"}
    answer = boss.post("/admin/tasks/repository/add/", data)
    assert field in answer.context["adminform"].form.errors
    assert Repository.objects.count() == 1


def test_a_second_repository_is_polled_and_can_be_switched_off(boss: Client, world: World) -> None:
    from tasks.repositories import enabled_repositories

    data = {"full_name": "owner/name", "namespace": "second", "is_enabled": "on"}
    assert boss.post("/admin/tasks/repository/add/", data).status_code == 302
    assert [row.full_name for row in enabled_repositories()] == ["broker-sandbox/demo", "owner/name"]
    pk = Repository.objects.get(namespace="second").pk
    assert said(act(boss, "tasks/repository", "disable", pk))[-1:] == ["1 repository disabled"]
    assert [row.full_name for row in enabled_repositories()] == ["broker-sandbox/demo"]


# Who may


@pytest.mark.parametrize(
    ("group", "sees", "acts", "makes_agents", "people"),
    [
        ("viewer", True, False, False, False),
        ("operator", True, True, False, False),
        ("admin", True, True, True, True),
    ],
)
def test_groups_may_what_their_names_say(
    world: World,
    task: dict[str, Any],
    group: str,
    sees: bool,
    acts: bool,
    makes_agents: bool,
    people: bool,
) -> None:
    client = in_group(group)
    assert (client.get("/admin/tasks/assignment/").status_code == 200) is sees
    answer = act(client, "tasks/assignment", "release", task["assignment_id"])
    assert (world.assignment(task["assignment_id"]).state == "released") is acts, answer.content[:500]
    assert (client.get("/admin/tasks/agent/add/").status_code == 200) is makes_agents
    assert (client.get("/admin/auth/user/add/").status_code == 200) is people
