"""Status pages, dashboard and pollers' admin: who may, what they say, what they cost."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation
from django_q.models import OrmQ, Schedule

from broker_project.console.status.charts import Bars
from broker_project.lib.config.dynamic import record_rate_limit, set_flag
from broker_project.lib.redis import keys as k
from broker_project.models import Poller, PollerRun
from broker_project.ops.clock.pollers import poller_table
from broker_project.ops.clock.schedules import sync_schedules
from broker_project.people.groups import make_groups
from feeds.models import Item, ItemEvent
from fixtures.models import FixtureStatus
from tasks.models import Agent, Assignment, Event, Issue, Repository

PAGES = ["/status/", "/status/tasks/", "/status/feeds/", "/status/fixtures/"]
pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _clean(store: redis.Redis) -> None:
    """Figures that an earlier test kept are gone."""


def person(name: str = "", *, staff: bool = False, superuser: bool = False) -> Client:
    user = User.objects.create_user(f"p-{name or 'nobody'}", is_staff=staff, is_superuser=superuser)
    if name and not superuser:
        user.groups.add(Group.objects.get(name=name))
    client = Client(headers={"accept-language": "en"})
    client.force_login(user)
    return client


def boss() -> Client:
    return person("boss", staff=True, superuser=True)


# Who may


@pytest.mark.parametrize("page", PAGES)
def test_strangers_log_in_and_others_are_refused(page: str) -> None:
    answer = Client().get(page)
    assert answer.status_code == 302
    assert answer["Location"] == f"/admin/login/?next={page}"
    refused = person().get(page)
    assert refused.status_code == 403
    assert "You may not see this" in refused.content.decode()


@pytest.mark.parametrize("group", ["viewer", "operator", "admin"])
@pytest.mark.parametrize("page", PAGES)
def test_members_of_the_groups_see_the_pages_without_links_to_the_admin(page: str, group: str) -> None:
    answer = person(group).get(page)
    assert answer.status_code == 200
    assert "/admin/tasks" not in answer.content.decode()


def test_a_viewer_without_admin_rights_logs_in_by_the_form() -> None:
    user = User.objects.create_user("watcher", password="quite a long one")
    data = {"username": "watcher", "password": "quite a long one", "next": "/status/"}
    client = Client(headers={"accept-language": "en"})
    assert client.post("/admin/login/?next=/status/", {**data, "password": "wrong"}).status_code == 200
    refused = client.post("/admin/login/?next=/status/", data, follow=True)
    assert refused.status_code == 403
    user.groups.add(Group.objects.get(name="viewer"))
    assert client.post("/admin/login/?next=/status/", data, follow=True).status_code == 200
    # Logged in is not let in: the admin itself stays shut.
    assert client.get("/admin/")["Location"] == "/admin/login/?next=/admin/"
    assert "not authorized" in client.get("/admin/", follow=True).content.decode()


def test_the_groups_are_right_after_migrating() -> None:
    names: dict[str, set[str]] = {
        group.name: {f"{p.content_type.app_label}.{p.codename}" for p in group.permissions.all()}
        for group in Group.objects.all()
    }
    assert set(names) == {"viewer", "operator", "admin"}
    assert all(".view_" in name for name in names["viewer"])
    assert {"tasks.view_issue", "feeds.view_item", "fixtures.view_report", "broker.view_poller"} <= names[
        "viewer"
    ]
    assert {"tasks.change_assignment", "feeds.change_item", "broker.change_poller"} <= names["operator"]
    assert not {"tasks.change_agent", "tasks.add_agent", "broker.change_redis"} & names["operator"]
    assert {
        "tasks.add_agent",
        "broker.change_redis",
        "tasks.change_prompttemplate",
        "auth.add_user",
    } <= names["admin"]
    assert names["viewer"] < names["operator"] < names["admin"]


def test_permissions_given_by_hand_stay() -> None:
    group = Group.objects.get(name="viewer")
    extra = Permission.objects.get(codename="add_feed")
    group.permissions.add(extra)
    make_groups()
    assert extra in group.permissions.all()


def test_the_front_door() -> None:
    assert Client().get("/")["Location"] == "/admin/login/?next=/status/"
    assert person("viewer").get("/")["Location"] == "/status/"


# What they say


def make_items(count: int, start: int = 0, **fields: Any) -> None:
    now = timezone.now()
    Item.objects.bulk_create(
        Item(
            url=f"https://example.org/{start + i}",
            title=f"item {i}",
            published_at=now,
            created_at=now,
            last_checked_at=now,
            **fields,
        )
        for i in range(count)
    )


def make_tasks(count: int, start: int = 1) -> Repository:
    now = timezone.now()
    repository, _made = Repository.objects.get_or_create(full_name="o/n", defaults={"namespace": "poppo"})
    Issue.objects.bulk_create(
        Issue(
            repository=repository,
            number=start + i,
            title="t",
            labels=["parked"],
            opened_at=now,
            updated_at=now,
        )
        for i in range(count)
    )
    agents = [Agent(name=f"a{start + i}") for i in range(count)]
    Agent.objects.bulk_create(agents)
    Assignment.objects.bulk_create(
        Assignment(
            agent=agent,
            repository=repository,
            number=start + i,
            task_type="development",
            state="live",
            created_at=now,
            last_heartbeat_at=now - timedelta(days=1),
            answer={"title": "<script>alert(1)</script>"},
        )
        for i, agent in enumerate(agents)
    )
    Event.objects.bulk_create(
        Event(repository=repository, number=start + i, what="completed", at=now, who="a")
        for i in range(count)
    )
    return repository


def test_items_by_status_are_plain_numbers() -> None:
    make_items(1234, status=0)
    make_items(3, start=5000, status=1, reason=2)
    make_items(2, start=6000, status=3, reason=6)
    text = person("viewer").get("/status/").content.decode()
    counts = re.findall(r'<span class="count">(\d+)</span> <span class="label">([^<]+)</span>', text)
    assert ("1234", "unprocessed") in counts
    assert ("3", "deferred") in counts
    assert ("0", "pending") in counts
    assert ("2", "processed") in counts


def test_what_needs_a_person_is_named_and_linked() -> None:
    make_tasks(2)
    make_items(3, status=3, reason=6)
    FixtureStatus.objects.create(
        fixture_id="9",
        date="2026-01-01",
        kickoff_jst="2026-01-01T20:00:00+09:00",
        status="failed",
        attempts=3,
    )
    PollerRun.objects.create(name="zombies", by="schedule", started_at=timezone.now() - timedelta(days=1))
    record_rate_limit(5000, 10, timezone.now() + timedelta(minutes=5))
    answer = boss().get("/status/")
    found = {need.text: need.count for need in answer.context["needs"]}
    assert found == {
        "pollers late or failed": 1,
        "agents without a heartbeat": 2,
        "issues parked": 2,
        "items given up": 3,
        "matches failed": 1,
        "request budgets nearly used up": 1,
    }
    text = answer.content.decode()
    for url in ("/admin/tasks/issue/?state=parked", "/admin/feeds/item/?status__exact=3&amp;reason__exact=6"):
        assert f'href="{url}"' in text
    assert "<script>alert" not in text


def test_a_good_day_says_so() -> None:
    answer = person("viewer").get("/status/")
    assert answer.context["needs"] == []
    assert "Everything goes its way" in answer.content.decode()


def test_maintenance_and_stand_ins_are_shown_with_the_reason() -> None:
    set_flag(k.FLAG_MAINTENANCE, "moving house")
    text = person("viewer").get("/status/").content.decode()
    assert "Maintenance" in text
    assert "moving house" in text
    assert "Stand-ins serve for GitHub" in text


def test_throughput_counts_by_hour_and_day() -> None:
    repository = make_tasks(3)
    old = timezone.now() - timedelta(days=3)
    Event.objects.create(repository=repository, number=1, what="completed", at=old)
    Event.objects.create(repository=repository, number=1, what="failed", at=timezone.now())
    charts = person("viewer").get("/status/tasks/").context["charts"]
    assert charts.finished_hours.total == 3
    assert charts.finished_days.values[3] == 1
    assert charts.finished_days.total == 4


@translation.override("en")
def test_a_chart_is_read_out_and_inert() -> None:
    svg = Bars("<b>", [0, 2, 1.5], ["a", '"b', "c"]).svg()
    assert "&lt;b&gt;: 3.5 in all, most in &quot;b (2)" in svg
    assert svg.count('class="bar"') == 3
    assert "<b>" not in svg
    assert "nothing yet" in Bars("x", [0, 0], ["a", "b"]).summary


@pytest.mark.parametrize("language", ["ja", "en"])
@pytest.mark.parametrize("page", [*PAGES, "/admin/"])
def test_every_page_in_both_languages_with_its_zone(page: str, language: str) -> None:
    client = boss()
    answer = client.get(page, headers={"accept-language": language})
    assert answer.status_code == 200
    text = answer.content.decode()
    assert f'<html lang="{language}"' in text
    assert "JST" in text
    assert ("タスク" in text) is (language == "ja")
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|<style|\sstyle=", text)
    assert not re.search(r'(?:src|href)="https?://', text)


def test_the_policy_allows_nothing_inline_anywhere() -> None:
    client = boss()
    strict = client.get("/status/")["Content-Security-Policy"]
    assert strict.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';")
    for page in ("/admin/redis/", "/nowhere", "/api/v1/openapi.json", "/admin/login/"):
        assert client.get(page)["Content-Security-Policy"] == strict, page
    docs = client.get("/api/v1/docs")["Content-Security-Policy"]
    assert docs == strict.replace("img-src 'self'", "img-src 'self' data:")


def test_the_language_switch_stays() -> None:
    client = person("viewer")
    client.post("/i18n/setlang/", {"language": "ja", "next": "/status/"})
    assert '<html lang="ja"' in client.get("/status/").content.decode()


def test_no_such_page() -> None:
    answer = Client(headers={"accept-language": "en"}).get("/nowhere")
    assert answer.status_code == 404
    assert "There is no such page" in answer.content.decode()


# What they cost


@pytest.mark.parametrize("page", [*PAGES, "/admin/"])
def test_the_number_of_queries_does_not_grow_with_the_rows(page: str) -> None:
    client = boss()
    make_tasks(1)
    make_items(1)
    client.get(page)

    def queries() -> int:
        with CaptureQueriesContext(connection) as caught:
            assert client.get(page).status_code == 200
        return len(caught)

    few = queries()
    make_tasks(60, start=100)
    make_items(60, start=100, status=2)
    now = timezone.now()
    ItemEvent.objects.bulk_create(
        ItemEvent(item=item, what="yes", to_status="pending", at=now) for item in Item.objects.all()
    )
    PollerRun.objects.bulk_create(
        PollerRun(name=name, by="schedule", started_at=now, outcome="done") for name in poller_table()
    )
    assert queries() <= few + 1  # the newest runs are read once there are any
    assert few < 45


# Pollers


def act(client: Client, action: str, *names: str) -> list[str]:
    data = {"action": action, "_selected_action": list(names), "confirmed": "yes"}
    answer = client.post("/admin/broker/poller/", data, follow=True)
    return [str(message) for message in answer.context["messages"]]


def test_pollers_are_listed_paused_and_resumed() -> None:
    client = person("operator", staff=True)
    sync_schedules()
    listed = client.get("/admin/broker/poller/")
    assert {row.name for row in listed.context["cl"].result_list} == set(poller_table())
    assert act(client, "pause", "feeds", "items") == ["2 pollers paused"]
    assert act(client, "pause", "feeds") == ["0 pollers paused, 1 left alone (paused already)"]
    assert Poller.objects.get(name="feeds").paused_by == "p-operator"
    assert "paused by p-operator" in client.get("/admin/broker/poller/feeds/change/").content.decode()
    assert act(client, "resume", "feeds") == ["1 poller resumed"]
    assert LogEntry.objects.filter(object_id="feeds").count() == 3
    assert Schedule.objects.count() == len(poller_table())


def test_run_now_queues_a_run_unless_it_must_stand_still() -> None:
    client = person("operator", staff=True)
    client.get("/admin/broker/poller/")
    act(client, "pause", "feeds")
    assert act(client, "run_now", "issues", "feeds") == ["1 poller about to run, 1 left alone (paused)"]
    [queued] = OrmQ.objects.all()
    assert queued.func() == "broker_project.ops.clock.pollers.run_scheduled"
    assert queued.task["args"] == ("issues",)
    assert queued.task["kwargs"] == {"by": "p-operator"}
    set_flag(k.FLAG_MAINTENANCE, "")
    assert act(client, "run_now", "issues") == ["0 pollers about to run, 1 left alone (maintenance)"]


def test_a_viewer_cannot_pause() -> None:
    client = person("viewer", staff=True)
    client.get("/admin/broker/poller/")
    act(client, "pause", "feeds")
    assert not Poller.objects.filter(paused_at__isnull=False).exists()


def test_a_poller_page_shows_its_runs() -> None:
    PollerRun.objects.create(
        name="issues", by="somebody", started_at=timezone.now(), progress="page 3 of 9", outcome="running"
    )
    client = boss()
    client.get("/admin/broker/poller/")
    text = client.get("/admin/broker/poller/issues/change/").content.decode()
    assert "page 3 of 9" in text
    assert "somebody" in text


# Export


def test_a_list_can_be_taken_along_without_formulas() -> None:
    repository = make_tasks(1)
    Issue.objects.update(title='=HYPERLINK("http://x")')
    client = person("viewer", staff=True)
    pks = list(Issue.objects.values_list("pk", flat=True))
    answer = client.post("/admin/tasks/issue/", {"action": "export_csv", "_selected_action": pks})
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer["Content-Disposition"]
    text = answer.content.decode()
    assert text.startswith("\ufeff")
    assert '"\'=HYPERLINK(""http://x"")"' in text
    assert "an agent has it" in text
    assert str(repository) in text
