"""What every list of the admin has: tabs that combine, ranges of dates, a bounded look back, a hint, an export."""

from __future__ import annotations

import html
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone, translation

from broker_project.console import lists as admin_lists
from broker_project.console.admin_base import ActionReport, in_time, run_each
from broker_project.lib.errors import ActionFailed, ActionRefused, Unreachable
from feeds.models import Feed, Item, ItemDetail, ItemEvent
from fixtures.models import Event as MatchEvent
from fixtures.models import FixtureStatus
from tasks.models import Agent, Repository

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ITEMS = "/admin/feeds/item/"
OURS = [
    model
    for model in admin.site._registry
    if model._meta.app_label in ("broker", "tasks", "feeds", "fixtures")
    and model._meta.model_name not in ("feedsettings", "fixturesettings")
]
# What has no state of its own, only a time.
STATELESS = {"event", "itemevent", "webhookdelivery", "loginfailure", "secondfactor"}


@pytest.fixture(autouse=True)
def _clean(store: redis.Redis) -> None:
    """Figures that an earlier test kept are gone."""


@pytest.fixture
def boss() -> Client:
    client = Client(headers={"accept-language": "en"})
    client.force_login(User.objects.create_superuser("boss"))
    return client


def address(model: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def item(number: int, published: str, **fields: Any) -> Item:
    moment = timezone.make_aware(datetime.fromisoformat(published))
    defaults = {"created_at": moment, "last_checked_at": moment, **fields}
    return Item.objects.create(
        url=f"https://example.org/{number}", title=f"item {number}", published_at=moment, **defaults
    )


def listed(client: Client, page: str) -> list[str]:
    return [str(row) for row in client.get(page).context["cl"].result_list]


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.label_lower)
def test_every_list_says_what_to_do_when_it_is_empty_and_can_be_taken_along(boss: Client, model: Any) -> None:
    answer = boss.get(address(model), {"q": "nothing is called this"})
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "Nothing matches." in text
    empty = boss.get(address(model))
    if not empty.context["cl"].result_count:
        hint = str(empty.context["empty_hint"])
        assert hint
        assert hint in html.unescape(empty.content.decode())
    assert "export_csv" in admin.site._registry[model].get_actions(empty.wsgi_request)
    if model._meta.model_name not in STATELESS:
        assert len(empty.context["tabs"]) > 2
        assert 'class="status-tabs"' in empty.content.decode()
    has_range = any(
        isinstance(spec, admin_lists.DateRangeFilter) for spec in empty.context["cl"].filter_specs
    )
    assert has_range is (model is not Repository)


def test_tabs_keep_the_other_filters_and_the_search(boss: Client) -> None:
    item(1, "2026-05-01T12:00", status=1, reason=2)
    answer = boss.get(ITEMS, {"q": "item", "reason__exact": "2", "status__exact": "1", "p": "1"})
    tabs = {str(tab.label): tab for tab in answer.context["tabs"]}
    assert tabs["deferred"].is_current
    assert not tabs["all"].is_current
    assert tabs["pending"].query == "q=item&reason__exact=2&status__exact=2"
    assert tabs["all"].query == "q=item&reason__exact=2"
    assert tabs["deferred"].count == 1


def test_what_tabs_choose_is_no_filter_and_the_panel_is_open_when_it_matters(boss: Client) -> None:
    item(1, "2026-05-01T12:00", status=1, reason=2)
    opened = '<details class="filter-panel" data-filter-title="panel" open>'
    by_tab = boss.get(ITEMS, {"status__exact": "1"})
    offered = {name for spec in by_tab.context["cl"].filter_specs for name in spec.expected_parameters()}
    assert "reason__exact" in offered
    assert "status__exact" not in offered
    assert opened not in by_tab.content.decode()
    assert "Clear all filters" in by_tab.content.decode()
    assert opened in boss.get(ITEMS, {"reason__exact": "2"}).content.decode()
    assert opened in boss.get(ITEMS, {"published_at_from": "2026-01-01"}).content.decode()


def test_days_are_local_and_both_ends_belong_to_the_range(boss: Client) -> None:
    item(1, "2026-04-30T23:59:59")
    item(2, "2026-05-01T00:00:00")
    item(3, "2026-05-02T23:59:59", status=2)
    item(4, "2026-05-03T00:00:00")
    both = {"published_at_from": "2026-05-01", "published_at_until": "2026-05-02"}
    query = "&".join(f"{name}={value}" for name, value in both.items())
    assert listed(boss, f"{ITEMS}?{query}") == ["item 3", "item 2"]
    assert listed(boss, f"{ITEMS}?{query}&status__exact=2") == ["item 3"]
    assert listed(boss, f"{ITEMS}?published_at_until=2026-04-30&published_at_from=") == ["item 1"]
    text = boss.get(f"{ITEMS}?{query}&q=item").content.decode()
    assert 'name="published_at_from" value="2026-05-01"' in text
    assert '<input type="hidden" name="q" value="item">' in text
    # No such day: Django's own way of saying so.
    assert boss.get(f"{ITEMS}?published_at_from=never")["Location"] == f"{ITEMS}?e=1"


def test_a_range_of_days_on_a_column_of_text(boss: Client) -> None:
    for day in ("01", "02", "03"):
        FixtureStatus.objects.create(
            fixture_id=day, date=f"2026-05-{day}", kickoff_jst=f"2026-05-{day}T20:00:00+09:00"
        )
    page = "/admin/fixtures/fixturestatus/?date_from=2026-05-02&date_until=2026-05-02"
    assert [row.pk for row in boss.get(page).context["cl"].result_list] == ["02"]


def test_django_s_own_lookups_stay(boss: Client) -> None:
    item(1, "2026-05-01T12:00", status=1, reason=3)
    item(2, "2026-05-01T12:00", status=1, reason=2)
    assert listed(boss, f"{ITEMS}?status__exact=1&reason__exact=3") == ["item 1"]
    assert listed(boss, f"{ITEMS}?published_at__gte=2026-06-01") == []


def test_a_search_looks_through_a_bounded_stretch_and_says_so(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_lists, "WINDOW_ROWS", 3)
    for number in range(1, 9):
        item(number, "2026-05-01T12:00")
    first = Item.objects.order_by("pk").first()
    assert first is not None
    assert listed(boss, f"{ITEMS}?q=item") == ["item 8", "item 7", "item 6"]
    assert listed(boss, f"{ITEMS}?q=item&older=1") == ["item 5", "item 4", "item 3"]
    assert len(listed(boss, f"{ITEMS}?q=item&older=all")) == 8
    assert len(listed(boss, ITEMS)) == 8  # without a search nothing is left out
    text = boss.get(f"{ITEMS}?q=item").content.decode()
    assert "Looked through 3 rows" in text
    assert re.search(r"older=1(&amp;q=item)?\"|q=item&amp;older=1\"", text)
    assert "Looked through" not in boss.get(f"{ITEMS}?q=item&older=all").content.decode()
    # An action for all that was found is for what was looked at.
    data = {"action": "skip", "select_across": "1", "_selected_action": [first.pk], "confirmed": "yes"}
    answer = boss.post(f"{ITEMS}?q=item", data, follow=True)
    assert [str(message) for message in answer.context["messages"]] == ["3 items skipped"]


def test_an_action_for_the_filtered_set_asks_with_the_true_number_and_skips_wrong_states(
    boss: Client,
) -> None:
    for number in range(1, 61):
        item(number, "2026-05-01T12:00", status=3 if number == 7 else 1, reason=0 if number == 7 else 2)
    item(100, "2026-01-01T12:00", status=1, reason=2)
    pk = Item.objects.get(title="item 60").pk
    page = f"{ITEMS}?published_at_from=2026-05-01"
    data = {"action": "retry", "select_across": "1", "_selected_action": [pk]}
    asked = boss.post(page, data).content.decode()
    assert "This will be done for 60 rows." in asked
    assert not ItemEvent.objects.exists()
    answer = boss.post(page, {**data, "confirmed": "yes"}, follow=True)
    [told] = [str(message) for message in answer.context["messages"]]
    assert told == "59 items set to retry, 1 left alone (posted)"
    assert Item.objects.get(title="item 100").status == 1
    assert LogEntry.objects.filter(change_message=f"retry: {told}").count() == 60


def test_an_action_begins_no_row_after_its_time() -> None:
    report = ActionReport("done")
    assert list(in_time([1, 2, 3], report, seconds=-1)) == []
    assert report.left_alone.total() == 3
    assert list(in_time([1, 2, 3], report, seconds=60)) == [1, 2, 3]


def test_an_action_reports_what_became_of_each_row() -> None:
    def service(row: int) -> None:
        if row == 1:
            raise ActionRefused("pending")
        if row == 2:
            raise ActionFailed("not fetched")
        if row == 3:
            raise Unreachable("GitHub", "no connection")

    with translation.override("en"):
        told = run_each(range(6), "set to retry", service).message("item", "items")
    assert told == (
        "3 items set to retry, 1 failed (not fetched), 2 left alone (pending: 1, GitHub: no connection: 1)"
    )


def test_only_what_is_looked_at_is_counted(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_lists, "COUNTED_ROWS", 5)
    for number in range(1, 9):
        item(number, "2026-05-01T12:00")
    answer = boss.get(ITEMS)
    assert answer.context["cl"].result_count == 5
    assert "Only the first 5 rows" in answer.content.decode()


def test_a_status_is_listed_in_the_order_of_its_index(boss: Client) -> None:
    item(1, "2026-05-01T12:00", status=3, reason=0)
    with CaptureQueriesContext(connection) as caught:
        boss.get(f"{ITEMS}?status__exact=3")
    [query] = [q["sql"] for q in caught if 'ORDER BY "items"' in q["sql"]]
    assert 'ORDER BY "items"."published_at" DESC' in query
    if connection.vendor == "sqlite":  # PostgreSQL reads a table of one row as it lies
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query}")
            plan = str(cursor.fetchall())
        assert "idx_items_status_published_at" in plan
        assert "TEMP B-TREE" not in plan


def test_feeds_that_fail_have_a_tab(boss: Client) -> None:
    Feed.objects.create(url="https://a.example.org/", title="fine")
    Feed.objects.create(url="https://b.example.org/", title="broken", failures=3)
    tabs = {str(tab.label): tab for tab in boss.get("/admin/feeds/feed/").context["tabs"]}
    assert tabs["failing"].count == 1
    assert listed(boss, f"/admin/feeds/feed/?{tabs['failing'].query}") == ["broken"]


def test_events_of_items_and_matches_are_listed_with_their_words(boss: Client) -> None:
    row = item(1, "2026-05-01T12:00")
    ItemEvent.objects.create(item=row, what="yes", to_status="pending", at=timezone.now(), who="items")
    MatchEvent.objects.create(fixture_id="7", what="detected", to_status="pending", at=timezone.now())
    text = boss.get("/admin/feeds/itemevent/?what=yes").content.decode()
    assert "judged worth a summary" in text
    assert f"/admin/feeds/item/{row.pk}/change/" in text
    assert listed(boss, "/admin/feeds/itemevent/?what=no") == []
    assert "/admin/fixtures/fixturestatus/7/change/" in boss.get("/admin/fixtures/event/").content.decode()


def test_who_did_what_is_listed_for_admins_only(boss: Client) -> None:
    Agent.objects.create(name="a")
    boss.post(
        "/admin/tasks/agent/",
        {"action": "disable", "_selected_action": [Agent.objects.get().pk], "confirmed": "yes"},
    )
    text = boss.get("/admin/admin/logentry/").content.decode()
    assert "disable: 1 agent disabled" in text
    assert "boss" in text
    watcher = User.objects.create_user("watcher", is_staff=True)
    client = Client()
    client.force_login(watcher)
    assert client.get("/admin/admin/logentry/").status_code == 403


def test_the_lists_ask_as_many_queries_for_many_rows(boss: Client) -> None:
    def cost(page: str) -> int:
        with CaptureQueriesContext(connection) as caught:
            assert boss.get(page).status_code == 200
        return len(caught)

    feed = Feed.objects.create(url="https://a.example.org/")
    pages = [ITEMS, "/admin/feeds/itemevent/", "/admin/fixtures/fixturestatus/", "/admin/fixtures/event/"]

    def add(start: int, count: int) -> None:
        now = timezone.now()
        for number in range(start, start + count):
            row = item(number, "2026-05-01T12:00")
            ItemDetail.objects.create(item=row, feed=feed)
            ItemEvent.objects.create(item=row, what="yes", at=now)
            FixtureStatus.objects.create(
                fixture_id=str(number), date="2026-05-01", kickoff_jst="2026-05-01T20:00:00+09:00"
            )
            MatchEvent.objects.create(fixture_id=str(number), what="detected", at=now - timedelta(days=1))

    add(1, 1)
    few = [cost(page) for page in pages]
    add(10, 45)
    assert [cost(page) for page in pages] == few


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_box_before_a_row_is_the_one_that_django_draws(language: str) -> None:
    row = item(1, "2026-05-01T12:00")
    row.title = '"><script>{}&amp; 統計'
    model_admin: Any = admin.site._registry[Item]
    with translation.override(language):
        assert model_admin.action_checkbox(row) == admin.ModelAdmin.action_checkbox(model_admin, row)


@pytest.mark.parametrize(
    "query", ["", "q=a%26b+%E7%B5%B1&status__exact=failed", "status__exact=failed&_popup=1", "o=-1.2"]
)
def test_a_rows_link_is_the_one_that_django_makes(boss: Client, query: str) -> None:
    for number in ("1", "a&b/ 統_2?"):
        FixtureStatus.objects.create(
            fixture_id=number,
            date="2026-05-01",
            kickoff_jst="2026-05-01T20:00:00+09:00",
            status="failed",
            error_message="a&b 統",
        )
    answer = boss.get(f"/admin/fixtures/fixturestatus/?{query}")
    filters = answer.context["preserved_filters"]
    assert bool(filters) is bool(query)
    links = re.findall(r'<th class="field-fixture_id"><a href="([^"]*)"', answer.content.decode())
    expected = [
        add_preserved_filters(
            {"opts": FixtureStatus._meta, "preserved_filters": filters},
            reverse("admin:fixtures_fixturestatus_change", args=[quote(row.pk)]),
        )
        for row in answer.context["cl"].result_list
    ]
    assert len(expected) == 2
    assert [html.unescape(link) for link in links] == expected
    assert boss.get(html.unescape(links[0])).status_code == 200


def test_no_list_carries_style_or_script_of_its_own(boss: Client) -> None:
    item(1, "2026-05-01T12:00")
    for model in OURS:
        answer = boss.get(address(model))
        assert "unsafe" not in answer["Content-Security-Policy"]
        text = re.sub(r"<script[^>]*\bsrc=[^>]*></script>", "", answer.content.decode())
        assert not re.search(r"<script(?![^>]*type=\"application/json\")|<style|\sstyle=|\son\w+=", text), (
            model
        )
