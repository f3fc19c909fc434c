"""The optional gates: who wrote an issue, and whether it still says what was approved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from tasks.models import EditedIssue, Event
from tasks.offers.candidates import candidates
from tests.tasks.world import BODY, CODE, World

FOREIGN_AUTHOR = "its author may not write to the repository"
EDITED = "edited after its approval; the difference waits for a look"

DEV = ("P0", "BACKENDCODER")
STRANGER = {"Authorization": "token user:stranger"}


@pytest.fixture
def author_gate() -> Iterator[None]:
    with override_settings(BROKER=replace(settings.BROKER, author_gate="writers")):
        yield


@pytest.fixture
def approval_gate() -> Iterator[None]:
    with override_settings(BROKER=replace(settings.BROKER, approval_gate=True)):
        yield


def stranger_opens(world: World, *labels: str) -> int:
    data = {"title": "from outside", "body": BODY}
    answer = world.sandbox.client.post(f"{CODE}/issues", json=data, headers=STRANGER)
    answer.raise_for_status()
    number: int = answer.json()["number"]
    world.github("POST", f"/issues/{number}/labels", {"labels": list(labels)})
    return number


def edit(world: World, number: int, **fields: Any) -> None:
    world.github("PATCH", f"/issues/{number}", fields)
    world.sync()


def explained(world: World, number: int) -> str:
    rows = world.get("/explain?agent_id=agent-1").json()["issues"]
    return next(str(row["reason"]) for row in rows if row["number"] == number)


def events(world: World, number: int) -> list[str]:
    rows = Event.objects.filter(repository=world.repository, number=number).order_by("pk")
    return [f"{event.what}: {event.reason}" if event.reason else event.what for event in rows]


# Who wrote it


def test_by_default_anybodys_issue_is_offered(world: World) -> None:
    number = stranger_opens(world, *DEV)
    world.sync()
    assert world.given()["issue_id"] == number


@pytest.mark.usefixtures("author_gate")
def test_only_issues_of_writers_are_offered(world: World) -> None:
    foreign, own = stranger_opens(world, *DEV), world.open_issue(*DEV)
    world.sync()
    assert world.issue(foreign).author_association == "NONE"
    assert explained(world, foreign) == FOREIGN_AUTHOR
    assert f"skipped: {FOREIGN_AUTHOR}" in events(world, foreign)
    assert world.given("agent-1")["issue_id"] == own
    assert world.ask("agent-2").status_code == 204


def test_a_gate_that_was_switched_counts_from_the_next_poll(world: World) -> None:
    number = stranger_opens(world, *DEV)
    world.sync()
    with override_settings(BROKER=replace(settings.BROKER, author_gate="writers")):
        # The index still offers it; the claim looks again.
        assert world.ask().status_code == 204
        world.sync()
        assert explained(world, number) == FOREIGN_AUTHOR
    world.sync()
    assert world.given()["issue_id"] == number


# What it says


def test_by_default_an_edited_issue_stays_on_offer(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    edit(world, number, body=BODY + "more")
    assert not EditedIssue.objects.exists()
    assert world.given()["issue_id"] == number


def test_off_the_gates_cost_no_query(world: World) -> None:
    world.open_issue(*DEV)
    world.sync()
    with CaptureQueriesContext(connection) as off:
        list(candidates(world.repository))
    with override_settings(BROKER=replace(settings.BROKER, approval_gate=True, author_gate="writers")):
        with CaptureQueriesContext(connection) as on:
            list(candidates(world.repository))
    assert len(on) == len(off) + 1


@pytest.mark.usefixtures("approval_gate")
@pytest.mark.parametrize("field", ["title", "body"])
def test_an_edit_withdraws_the_issue_until_it_is_approved(world: World, boss: Client, field: str) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    edit(world, number, **{field: f"{BODY}<script>x</script>\u202e"})
    assert explained(world, number) == EDITED
    assert world.ask().status_code == 204
    assert events(world, number) == ["opened", f"edited: {EDITED}"]

    issue = world.issue(number)
    page = boss.get(f"/admin/tasks/issue/{issue.pk}/change/").content.decode()
    address = f"/admin/tasks/issue/{issue.pk}/difference/"
    assert EDITED in page
    assert address in page
    listed = boss.get("/admin/tasks/issue/?state=edited").content.decode()
    assert f"#{number}</a>" in listed
    assert boss.get("/status/").context["needs"][-1].url == "/admin/tasks/issue/?state=edited"
    shown = boss.get(address)
    text = shown.content.decode()
    assert "<script>x" not in text
    assert "&lt;script&gt;x" in text
    assert "[U+202E]" in text
    assert "\u202e" not in text
    assert "1 hidden character" in text

    assert boss.post(address, {"digest": "0" * 64}).status_code == 302
    assert world.ask().status_code == 204, "approved what nobody saw"
    answer = boss.post(address, {"digest": shown.context["digest"]}, follow=True)
    assert [str(message) for message in answer.context["messages"]][-1:] == ["The new text is approved."]
    assert LogEntry.objects.filter(change_message="approve", object_id=str(issue.pk)).count() == 1
    assert events(world, number)[-1] == "approved"
    assert world.given()["issue_id"] == number


@pytest.mark.usefixtures("approval_gate")
def test_what_was_edited_again_is_not_approved(world: World, boss: Client) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    edit(world, number, body=BODY + "harmless")
    address = f"/admin/tasks/issue/{world.issue(number).pk}/difference/"
    digest = boss.get(address).context["digest"]
    edit(world, number, body=BODY + "rm -rf /")
    answer = boss.post(address, {"digest": digest}, follow=True)
    assert "edited again" in str(next(iter(answer.context["messages"])))
    assert answer.context["digest"] != digest
    assert explained(world, number) == EDITED
    assert not LogEntry.objects.filter(change_message="approve").exists()


@pytest.mark.usefixtures("approval_gate")
def test_the_approved_words_need_no_second_look(world: World) -> None:
    number = world.open_issue(*DEV, body=BODY)
    world.sync()
    edit(world, number, body="other")
    edit(world, number, body=BODY)
    assert events(world, number)[-1] == "edit taken back"
    assert world.given()["issue_id"] == number


@pytest.mark.usefixtures("approval_gate")
def test_an_issue_is_approved_by_its_labels(world: World) -> None:
    number = world.open_issue("P0", body="draft")
    world.sync()
    edit(world, number, body=BODY)
    world.github("POST", f"/issues/{number}/labels", {"labels": ["BACKENDCODER"]})
    world.sync()
    assert world.given()["issue_id"] == number
    assert not EditedIssue.objects.exists()


@pytest.mark.usefixtures("approval_gate")
def test_a_running_assignment_is_not_withdrawn(world: World) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    task = world.given()
    edit(world, number, body=BODY + "more")
    beat = world.post(f"/assignments/{task['assignment_id']}/heartbeat").json()
    assert beat["cancel"] is False
    assert explained(world, number) == "an agent has it"
    assert world.post(f"/assignments/{task['assignment_id']}/release").status_code == 200
    assert explained(world, number) == EDITED
    assert world.ask("agent-2").status_code == 204


@pytest.mark.usefixtures("approval_gate")
@pytest.mark.parametrize(("group", "approves"), [("viewer", False), ("operator", True), ("admin", True)])
def test_who_may_approve(world: World, group: str, approves: bool) -> None:
    number = world.open_issue(*DEV)
    world.sync()
    edit(world, number, body=BODY + "more")
    user = User.objects.create_user("somebody", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    address = f"/admin/tasks/issue/{world.issue(number).pk}/difference/"
    shown = client.get(address)
    assert shown.status_code == 200
    data = {"digest": shown.context["digest"]}
    assert client.post(address, data).status_code == 403, "without a CSRF token"
    data["csrfmiddlewaretoken"] = str(shown.context["csrf_token"])
    assert client.post(address, data).status_code == (302 if approves else 403)
    assert EditedIssue.objects.exists() is not approves
    assert Client().post(address, data).status_code == 302  # to the log-in page


def test_known_issues_learn_their_authors_part_when_migrating(world: World) -> None:
    number = stranger_opens(world, *DEV)
    world.sync()
    try:
        call_command("migrate", "tasks", "0001", verbosity=0)
    finally:
        call_command("migrate", "tasks", verbosity=0)
    assert world.issue(number).author_association == "NONE"
