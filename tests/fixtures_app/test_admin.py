from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from fixtures.lifecycle import JST
from fixtures.models import CsvState, Event, FixtureSettings, FixtureStatus, Match, Report
from sandbox.launcher import SandboxHandle

NOW = dt.datetime(2026, 1, 4, 21, 0, tzinfo=JST)
LIST = "/admin/fixtures/fixturestatus/"


@pytest.fixture
def admin(client: Client, db: None) -> Client:
    client.force_login(User.objects.create_superuser("root"))
    client.cookies["django_language"] = "en"
    return client


def row(fixture_id: str, status: str, attempts: int = 0, error: str = "") -> FixtureStatus:
    return FixtureStatus.objects.create(
        fixture_id=fixture_id,
        date="2026-01-04",
        kickoff_jst="2026-01-04T21:00:00+09:00",
        status=status,
        attempts=attempts,
        error_message=error,
        last_attempt_at="2026-01-04T20:00:00+09:00" if status != "pending" else None,
    )


def match(fixture_id: str, **columns: object) -> Match:
    given: dict = {
        "league_id": 39,
        "league_name": "Premier League",
        "season": 2025,
        "home_id": 42,
        "home_name": "Arsenal",
        "away_id": 49,
        "away_name": "Chelsea",
        "kickoff_at": NOW,
        "discovered_at": NOW,
        "changed_at": NOW,
    }
    return Match.objects.create(fixture_id=fixture_id, **{**given, **columns})


def act(client: Client, action: str, *fixture_ids: str) -> str:
    """Run an action through its confirmation page; the message it ends with."""
    form = {"action": action, "_selected_action": list(fixture_ids), "select_across": "0"}
    page = client.post(LIST, form)
    assert page.status_code == 200
    for fixture_id in fixture_ids:
        assert f'name="_selected_action" value="{fixture_id}"' in page.content.decode()
    answer = client.post(LIST, {**form, "confirmed": "yes"})
    assert answer.status_code == 302
    return str(list(get_messages(answer.wsgi_request))[-1])


def states() -> dict[str, tuple[str, int]]:
    return {entry.fixture_id: (entry.status, entry.attempts) for entry in FixtureStatus.objects.all()}


UNTOUCHED = {"2": ("processing", 0), "3": ("complete", 2)}  # by any of the actions on rows


def four() -> None:
    row("1", "pending", 1)
    row("2", "processing")
    row("3", "complete", 2)
    row("4", "failed", 3, "API timeout")


def test_nothing_happens_before_the_confirmation(admin: Client) -> None:
    four()
    before = states()
    admin.post(LIST, {"action": "retry", "_selected_action": ["4"]})
    assert states() == before


def test_retry(admin: Client) -> None:
    four()
    message = act(admin, "retry", "1", "2", "3", "4")
    assert states() == {
        "1": ("pending", 1),
        "2": ("processing", 0),
        "3": ("complete", 2),
        "4": ("pending", 0),
    }
    assert message.startswith("1 match status set to retry, 3 left alone")
    assert FixtureStatus.objects.get(pk="4").error_message == ""
    event = Event.objects.get()
    assert (event.what, event.from_status, event.to_status, event.who) == (
        "retry",
        "failed",
        "pending",
        "root",
    )


def test_reset_attempts(admin: Client) -> None:
    four()
    act(admin, "reset_attempts", "1", "2", "3", "4")
    assert states() == {**UNTOUCHED, "1": ("pending", 0), "4": ("failed", 0)}


def test_mark_complete(admin: Client) -> None:
    four()
    act(admin, "mark_complete", "1", "2", "3", "4")
    assert states() == {
        "1": ("complete", 1),
        "2": ("processing", 0),
        "3": ("complete", 2),
        "4": ("complete", 3),
    }
    assert CsvState.objects.get().is_dirty


def test_generate_now(admin: Client, sandbox: SandboxHandle) -> None:
    row("1072363", "failed", 3)
    match("1072363")
    row("5", "pending")
    message = act(admin, "generate_now", "1072363", "5")
    assert message == "1 match status written, 1 left alone (nothing is known of this match)"
    assert states()["1072363"] == ("complete", 0)
    assert Report.objects.get().match_id == "1072363"


def test_generate_now_that_fails_counts_and_says_why(admin: Client, sandbox: SandboxHandle) -> None:
    row("1072363", "pending")
    match("1072363")
    sandbox.fault("football", "status", status=403, times=0)
    message = act(admin, "generate_now", "1072363")
    assert message.startswith("0 match statuses written, 1 left alone (API-Football: HTTP 403")
    assert states()["1072363"] == ("failed", 1)


@pytest.mark.parametrize("permission", ["view_fixturestatus", None])
def test_actions_need_the_permission_to_change(client: Client, db: None, permission: str | None) -> None:
    four()
    user = User.objects.create(username="looker", is_staff=True)
    if permission:
        user.user_permissions.add(Permission.objects.get(codename=permission))
    client.force_login(user)
    before = states()
    client.post(LIST, {"action": "retry", "_selected_action": ["4"], "confirmed": "yes"})
    assert states() == before


def test_rows_cannot_be_edited(admin: Client) -> None:
    four()
    address = reverse("admin:fixtures_fixturestatus_change", args=["4"])
    admin.post(address, {"status": "complete"})
    assert states()["4"] == ("failed", 3)
    assert admin.get(f"{LIST}add/").status_code == 403


def test_the_list_filters_searches_and_shows_the_csv(admin: Client) -> None:
    four()
    match("4", home_name="Unmistakable FC")
    CsvState.objects.create(generation=1234567, synced_at=NOW, error="line 3: no status", error_at=NOW)
    page = admin.get(LIST, {"status__exact": "failed"}).content.decode()
    assert "Unmistakable FC" in page
    assert ">1001<" not in page
    assert "1234567" in page.replace(",", "")
    assert "line 3: no status" in page
    found = admin.get(LIST, {"q": "unmistakable"}).content.decode()
    assert reverse("admin:fixtures_fixturestatus_change", args=["4"]) in found
    assert reverse("admin:fixtures_fixturestatus_change", args=["3"]) not in found


def test_the_number_of_queries_does_not_grow_with_the_list(
    admin: Client, django_assert_max_num_queries
) -> None:
    for number in range(40):
        row(str(number), "complete")
        match(str(number))
    with django_assert_max_num_queries(25):
        admin.get(LIST)


def test_a_match_with_its_timeline(admin: Client) -> None:
    four()
    match("4")
    act(admin, "retry", "4")
    page = admin.get(reverse("admin:fixtures_fixturestatus_change", args=["4"])).content.decode()
    assert "Timeline" in page
    assert "<td>set to retry</td><td>failed</td><td>pending</td>" in page


@pytest.mark.parametrize("name", ["match", "report"])
def test_the_other_lists(admin: Client, name: str) -> None:
    found = match("4", selection="left: too_early", rank="A", rank_because="Arsenal")
    Report.objects.create(
        match=found, html="<p>", object_name="reports/x/4.html", generated_at=NOW, first_generated_at=NOW
    )
    page = admin.get(f"/admin/fixtures/{name}/").content.decode()
    assert "Arsenal" in page
    assert admin.get(f"/admin/fixtures/{name}/4/change/").status_code == 200


def test_the_ranking_is_editable_and_checked(admin: Client) -> None:
    answer = admin.get("/admin/fixtures/fixturesettings/", follow=True)
    assert answer.redirect_chain[-1][0].endswith("/fixturesettings/1/change/")
    form = {
        "rank_s_teams": '["Fulham"]',
        "rank_a_teams": "[]",
        "rank_a_players": "[]",
        "competition_order": "[39]",
        "matches_per_run": "3",
    }
    address = answer.redirect_chain[-1][0]
    assert admin.post(address, {**form, "competition_order": '["x"]'}).status_code == 200
    assert FixtureSettings.objects.get().rank_s_teams == ["Manchester City"]
    assert admin.post(address, form).status_code == 302
    assert FixtureSettings.objects.get().ranking.rank_s == ("Fulham",)
    assert FixtureSettings.objects.get().ranking.per_run == 3
