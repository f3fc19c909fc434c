"""Hostile text in every column that somebody else fills, and every page that shows one of them."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import lxml.html
import pytest
from django.conf import settings
from django.test import Client, override_settings
from django.utils import timezone

from feeds.models import Feed, Item, ItemDetail, Post
from fixtures.clients.football_answers import Absence, Lineup, Player
from fixtures.guide.facts import GuideFacts, facts_of
from fixtures.guide.page import render_guide
from fixtures.models import FixtureStatus, Match, Report
from tasks.models import Assignment, Event, FixTask, PullRequest
from tests.tasks.world import BODY, World

MARK = "pwned"
HOSTILE = (
    f"</pre></title></textarea>'\"><script>{MARK}()</script><img src=x onerror={MARK}()>"
    f"<a href='javascript:{MARK}()'>x</a>{{{{ {MARK} }}}}{{% now 'Y' %}}&lt;b&gt;{MARK}\u202e\u200b"
)
ADDRESS = f"javascript:{MARK}()"


def dangers(page: str) -> list[str]:
    """What a browser would run or load of the hostile text; empty if it is only text."""
    found = []
    for element in lxml.html.document_fromstring(page.encode()).iter():
        if not isinstance(element.tag, str):
            continue
        if element.tag in ("script", "style") and MARK in (element.text or ""):
            found.append(f"<{element.tag}> with {element.text!r}")
        for name, value in element.attrib.items():
            if name.startswith("on") and MARK in value:
                found.append(f"{element.tag} {name}={value!r}")
            if name in ("href", "src", "action", "formaction") and value.strip().lower().startswith(
                "javascript:"
            ):
                found.append(f"{element.tag} {name}={value!r}")
        if element.tag == "img" and element.get("src") == "x":
            found.append("an image of theirs")
    return found


def test_the_check_itself_finds_what_is_dangerous() -> None:
    assert len(dangers(f"<html><body>{HOSTILE}</body></html>")) == 4


@pytest.fixture
def tasks(world: World) -> dict[str, int]:
    """One of everything that GitHub and agents write, all of it hostile."""
    number = world.open_issue("P0", "BACKENDCODER", HOSTILE[:45], title=HOSTILE[:250], body=BODY + HOSTILE)
    world.sync()
    task = world.given()
    world.post(f"/assignments/{task['assignment_id']}/heartbeat", {"progress": HOSTILE})
    pull = world.open_pull(number, "feature/x")
    world.github("PATCH", f"/pulls/{pull}", {"title": HOSTILE[:250], "body": HOSTILE})
    world.sync()
    world.post("/tasks/fix", {"pull_request_number": pull, "review_comments": [HOSTILE]})
    world.post(f"/assignments/{task['assignment_id']}/fail", {"reason": HOSTILE})
    Assignment.objects.update(progress=HOSTILE, result={"said": HOSTILE}, branch=HOSTILE[:200])
    PullRequest.objects.update(html_url=ADDRESS, head_ref=HOSTILE[:200])
    Event.objects.update(reason=HOSTILE, who=HOSTILE[:100])
    issue = world.issue(number)
    type(issue).objects.update(html_url=ADDRESS, author=HOSTILE[:90], refused_reason=HOSTILE)
    return {
        "issue": issue.pk,
        "assignment": task["assignment_id"],
        "pullrequest": PullRequest.objects.get().pk,
        "fixtask": FixTask.objects.get().pk,
        "event": Event.objects.latest("pk").pk,
    }


def test_pages_about_tasks_are_inert(boss: Client, tasks: dict[str, int]) -> None:
    addresses = ["/status/", "/status/tasks/", "/admin/", "/admin/tasks/prompttemplate/"]
    for model, key in tasks.items():
        addresses += [f"/admin/tasks/{model}/", f"/admin/tasks/{model}/{key}/change/"]
    with override_settings(BROKER=replace(settings.BROKER, approval_gate=True)):
        for address in [*addresses, f"/admin/tasks/issue/{tasks['issue']}/difference/"]:
            page = boss.get(address)
            assert page.status_code == 200, address
            assert dangers(page.content.decode()) == [], address
    # They are shown all the same, with what was hidden.
    text = boss.get(f"/admin/tasks/issue/{tasks['issue']}/change/").content.decode()
    assert "&lt;script&gt;pwned()&lt;/script&gt;" in text
    assert "[U+202E][U+200B]" in text
    assert "\u202e" not in text
    assert "hidden characters" in text
    for action, key in (("park", tasks["issue"]), ("export_csv", tasks["issue"])):
        data = {"action": action, "_selected_action": [str(key)]}
        answer = boss.post("/admin/tasks/issue/", data)
        if action == "park":
            assert dangers(answer.content.decode()) == []
        else:
            rows = list(csv.reader(io.StringIO(answer.content.decode("utf-8-sig"))))
            assert len(rows) == 2
            assert "\u202e" not in rows[1][1]


@pytest.fixture
def item(transactional_db: None) -> Item:
    now = timezone.now()
    feed = Feed.objects.create(
        url="https://feed.example/", title=HOSTILE[:200], last_error=HOSTILE, failures=3
    )
    item = Item.objects.create(
        url="https://news.example/1",
        title=HOSTILE[:300],
        published_at=now,
        created_at=now,
        last_checked_at=now,
        status=3,
    )
    document = {"url": "https://news.example/a.pdf", "title": HOSTILE, "state": "read", "error": HOSTILE}
    notes = {
        "first_summary": HOSTILE,
        "can_be_left_out": HOSTILE,
        "missed_points": HOSTILE,
        "documents": [
            {
                "title": HOSTILE,
                "issuer": HOSTILE,
                "date": HOSTILE,
                "key_points": [HOSTILE],
                "summary": HOSTILE,
            }
        ],
    }
    ItemDetail.objects.create(
        item=item,
        feed=feed,
        verdict="YES",
        verdict_reason=HOSTILE,
        summary=HOSTILE,
        summary_notes=notes,
        documents=[document],
        page_excerpt=HOSTILE,
        model=HOSTILE[:90],
    )
    Post.objects.create(
        item=item,
        text=HOSTILE,
        state=Post.State.POSTED,
        url=ADDRESS,
        idempotency_key="k",
        created_at=now,
        posted_at=now,
    )
    return item


def test_pages_about_items_are_inert(boss: Client, item: Item) -> None:
    feed = Feed.objects.get()
    for address in (
        "/status/",
        "/status/feeds/",
        "/admin/feeds/item/",
        f"/admin/feeds/item/{item.pk}/change/",
        "/admin/feeds/feed/",
        f"/admin/feeds/feed/{feed.pk}/change/",
    ):
        page = boss.get(address)
        assert page.status_code == 200, address
        assert dangers(page.content.decode()) == [], address
    assert "[U+202E]" in boss.get(f"/admin/feeds/item/{item.pk}/change/").content.decode()


@pytest.fixture
def report(transactional_db: None) -> Report:
    now = timezone.now()
    name = HOSTILE[:100]
    match = Match.objects.create(
        fixture_id="77",
        league_id=39,
        league_name=name,
        league_country=name[:60],
        season=2026,
        round=f"{name[:60]}\r\nBEGIN:VALARM",
        home_id=1,
        home_name=name,
        away_id=2,
        away_name="\x0b\x1b" + name[:90],
        venue=f"x\rATTENDEE:mailto:{MARK}",
        city=name,
        referee=name,
        kickoff_at=now,
        discovered_at=now,
        changed_at=now,
        rank_because=name,
    )
    FixtureStatus.objects.create(
        fixture_id="77",
        date="2026-01-01",
        kickoff_jst="2026-01-01T00:00:00+09:00",
        status="failed",
        error_message=HOSTILE,
    )
    players = tuple(Player(HOSTILE, 1, "G") for _ in range(11))
    lineup = Lineup(1, HOSTILE, HOSTILE, "ff0000", "ffffff", players, players)
    facts = GuideFacts(facts_of(match), lineups={1: lineup, 2: replace(lineup, team_id=2)})
    facts.absences = [Absence(1, HOSTILE, True, HOSTILE)]
    html = render_guide(facts, preview=HOSTILE, generated_at=now)
    return Report.objects.create(
        match=match,
        html=html,
        object_name="reports/2026-01-01/77.html",
        generated_at=now,
        first_generated_at=now,
        preview=HOSTILE,
        spoiler_reason=HOSTILE[:200],
    )


def test_guides_and_their_lists_are_inert(boss: Client, report: Report) -> None:
    for address in (
        "/status/",
        "/status/fixtures/",
        "/status/fixtures/77/report/",
        "/status/fixtures/reports/",
        "/admin/fixtures/match/",
        "/admin/fixtures/match/77/change/",
        "/admin/fixtures/fixturestatus/",
        "/admin/fixtures/fixturestatus/77/change/",
        "/admin/fixtures/report/",
        f"/admin/fixtures/report/{report.pk}/change/",
    ):
        page = boss.get(address)
        assert page.status_code == 200, address
        assert dangers(page.content.decode()) == [], address
    guide = boss.get("/status/fixtures/77/report/")
    assert "default-src 'none'" in guide["Content-Security-Policy"]


def test_feeds_of_guides_hold_only_text(boss: Client, report: Report) -> None:
    rss = boss.get("/status/fixtures/reports.rss")
    assert rss.status_code == 200
    (title,) = (
        entry.text or ""
        for entry in ET.fromstring(rss.content).iter()
        if entry.tag == "title" and MARK in (entry.text or "")
    )
    assert "<script>" in title
    assert not {"\x0b", "\x1b", "\u202e"} & set(title)
    calendar = boss.get("/status/fixtures/reports.ics").content.decode()
    names = {
        line.partition(":")[0].partition(";")[0]
        for line in calendar.split("\r\n")
        if not line.startswith(" ")
    }
    assert not {"ATTENDEE", "VALARM"} & names
    assert [line for line in calendar.split("\r\n") if line.startswith("BEGIN:")] == [
        "BEGIN:VCALENDAR",
        "BEGIN:VEVENT",
    ]
    assert "\r" not in calendar.replace("\r\n", "")


def test_the_page_of_the_api_repeats_nothing(boss: Client, tasks: dict[str, Any]) -> None:
    page = boss.get("/api/v1/docs", {"q": f"<script>{MARK}()</script>"})
    assert page.status_code == 200
    assert MARK not in page.content.decode()
    assert MARK not in boss.get("/api/v1/openapi.json").content.decode()


def test_template_marks_in_a_name_stay_marks(report: Report) -> None:
    assert f"{{{{ {MARK} }}}}" in report.html
    assert "{% now &#x27;Y&#x27; %}" in report.html
