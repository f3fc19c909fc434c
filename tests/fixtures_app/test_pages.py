from __future__ import annotations

import datetime as dt
import hashlib
import re
import xml.etree.ElementTree as ET
from base64 import b64encode

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from fixtures import selectors
from fixtures.clients.football_answers import Lineup, MatchFacts, PastMatch, Player
from fixtures.guide.facts import GuideFacts
from fixtures.guide.page import are_alike, render_guide
from fixtures.lifecycle import JST, Schedule
from fixtures.metrics import metric_families
from fixtures.models import CsvState, FixtureStatus, Match, Report
from fixtures.syndication import icalendar
from fixtures.views import feed_key, guide_policy

NOW = dt.datetime(2026, 1, 4, 21, 0, tzinfo=JST)
HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>'
LIST = "/status/fixtures/reports/"


def facts(**changes: object) -> MatchFacts:
    given = {
        "fixture_id": "1001",
        "league_id": 39,
        "league_name": "Premier League",
        "league_country": "England",
        "season": 2025,
        "round": "Regular Season - 20",
        "home_id": 42,
        "home_name": "Arsenal",
        "away_id": 49,
        "away_name": "Chelsea",
        "venue": "Emirates Stadium",
        "city": "London",
        "referee": "",
        "kickoff_at": NOW,
        "schedule": Schedule.PLANNED,
    }
    return MatchFacts(**{**given, **changes})  # type: ignore[arg-type]


def stored(fixture_id: str = "1001", kickoff_at: dt.datetime = NOW, **columns: object) -> Report:
    given = facts(fixture_id=fixture_id, kickoff_at=kickoff_at, **columns)
    values = {name: getattr(given, name) for name in MatchFacts.__dataclass_fields__}
    match = Match.objects.create(**values, discovered_at=NOW, changed_at=NOW)
    FixtureStatus.objects.create(
        fixture_id=fixture_id, date="2026-01-04", kickoff_jst="2026-01-04T21:00:00+09:00", status="complete"
    )
    return Report.objects.create(
        match=match,
        html=render_guide(GuideFacts(given), preview="", generated_at=NOW),
        object_name=f"reports/{kickoff_at.astimezone(JST):%Y-%m-%d}/{fixture_id}.html",
        generated_at=NOW,
        first_generated_at=NOW,
    )


@pytest.fixture
def staff(client: Client, db: None) -> Client:
    client.force_login(User.objects.create(username="staff", is_staff=True))
    return client


ADDRESSES = ["1001/report/", "reports/", "reports.rss", "reports.ics"]


@pytest.mark.django_db
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    ("groups", "is_staff", "status"),
    [
        ([], True, 200),
        (["viewer"], False, 200),
        (["operator"], False, 200),
        (["admin"], False, 200),
        (["other"], False, 403),
        ([], False, 403),
    ],
)
def test_who_may_see_guides(
    client: Client, address: str, groups: list[str], is_staff: bool, status: int
) -> None:
    stored()
    user = User.objects.create(username="someone", is_staff=is_staff)
    user.groups.set([Group.objects.get_or_create(name=name)[0] for name in groups])
    client.force_login(user)
    assert client.get(f"/status/fixtures/{address}").status_code == status


@pytest.mark.django_db
@pytest.mark.parametrize("address", ADDRESSES)
def test_strangers_are_asked_to_log_in(client: Client, address: str) -> None:
    answer = client.get(f"/status/fixtures/{address}")
    assert answer.status_code == 302
    assert answer["location"].startswith("/admin/login/?next=/status/fixtures/")


def test_a_guide_that_is_not_there(staff: Client) -> None:
    assert staff.get("/status/fixtures/404404/report/").status_code == 404


def test_the_guide_as_stored_with_a_way_back(staff: Client) -> None:
    report = stored()
    answer = staff.get("/status/fixtures/1001/report/")
    page = answer.content.decode()
    assert "<!--nav-->" in report.html
    assert f'<nav><a href="{LIST}">' in page
    assert page.replace(page[page.index("<nav>") : page.index("</nav>") + 6], "<!--nav-->") == report.html
    assert answer["content-security-policy"].startswith("default-src 'none'")


def test_everything_from_outside_is_escaped_and_nothing_is_fetched() -> None:
    hostile = facts(
        home_name=HOSTILE,
        away_name=HOSTILE,
        venue=HOSTILE,
        city=HOSTILE,
        referee=HOSTILE,
        round=HOSTILE,
        league_name=HOSTILE,
    )
    players = tuple(Player(HOSTILE, number, "M", 1 + number // 4, number % 4) for number in range(11))
    given = GuideFacts(
        hostile,
        lineups={42: Lineup(42, HOSTILE, HOSTILE, "", "", players, players)},
        form={42: [PastMatch(NOW.date(), HOSTILE, 42, HOSTILE, HOSTILE, 1, 0)]},
        head_to_head=[PastMatch(NOW.date(), HOSTILE, 42, HOSTILE, HOSTILE, 1, 0)],
    )
    page = render_guide(given, preview=HOSTILE, generated_at=NOW)
    assert "<script" not in page
    assert "<img" not in page
    assert "onerror=alert(1)&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import", page.replace("src=http://evil.example", ""))


def test_what_is_not_known_says_so() -> None:
    page = render_guide(GuideFacts(facts(venue="", city="", referee="")), preview="", generated_at=NOW)
    for place in (
        "<dt>会場</dt><dd>不明",
        "<dt>主審</dt><dd>不明",
        "順位 不明",
        "<dt>布陣</dt><dd>不明",
        "<dt>監督</dt><dd>不明",
    ):
        assert place in page
    assert "2026年1月4日（日）21:00" in page
    assert 'datetime="2026-01-04T21:00:00+09:00"' in page
    assert "日本時間" in page


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("ff0000", "ff0000", True),
        ("0761af", "004170", True),
        ("ff0000", "0000ff", False),
        ("000000", "ffffff", False),
    ],
)
def test_colours_that_are_hard_to_tell_apart(one: str, other: str, alike: bool) -> None:
    assert are_alike(one, other) is alike


def test_visitors_in_the_hosts_colour_change_their_shirts() -> None:
    players = tuple(
        Player(f"Player {number}", number, "M", 1 + number // 4, number % 4) for number in range(11)
    )
    lineups = {
        team: Lineup(team, "4-4-2", "", colour, "ffffff", players, ())
        for team, colour in ((42, "cc0000"), (49, "d00010"))
    }
    page = render_guide(GuideFacts(facts(), lineups=lineups), preview="", generated_at=NOW)
    assert page.count('fill="#cc0000" stroke="#ffffff"') == 11
    assert page.count('fill="#ffffff" stroke="#d00010"') == 11


def test_the_list_goes_by_japanese_days(staff: Client) -> None:
    stored("1", dt.datetime(2026, 1, 4, 14, 59, tzinfo=dt.UTC))
    stored("2", dt.datetime(2026, 1, 4, 15, 0, tzinfo=dt.UTC))
    days = [(group.day, len(group.reports)) for group in selectors.by_day(list(selectors.reports()))]
    assert days == [(dt.date(2026, 1, 5), 1), (dt.date(2026, 1, 4), 1)]
    page = staff.get(LIST, {"date": "2026-01-05"}).content.decode()
    assert "/status/fixtures/2/report/" in page
    assert "/status/fixtures/1/report/" not in page
    assert staff.get(LIST, {"date": "nonsense", "page": "x"}).status_code == 200


def test_an_empty_list_says_so(staff: Client) -> None:
    assert staff.get(LIST).status_code == 200


def test_the_rss_feed(staff: Client) -> None:
    stored("1", home_name="A & <B>")
    stored("2")
    channel = ET.fromstring(staff.get("/status/fixtures/reports.rss").content)[0]
    items = channel.findall("item")
    assert len(items) == 2
    titles = {item.findtext("title") for item in items}
    assert "A & <B> – Chelsea" in titles
    assert {item.findtext("link") for item in items} == {
        "http://testserver/status/fixtures/1/report/",
        "http://testserver/status/fixtures/2/report/",
    }


def test_the_calendar(staff: Client) -> None:
    stored("1", home_name="Ａ, B; C\\D" + "長い名前" * 12)
    answer = staff.get("/status/fixtures/reports.ics")
    assert answer["content-type"] == "text/calendar; charset=utf-8"
    text = answer.content.decode()
    lines = text.split("\r\n")
    assert all(len(line.encode()) <= 75 for line in lines)
    assert lines[0] == "BEGIN:VCALENDAR"
    unfolded = text.replace("\r\n ", "")
    assert "DTSTART:20260104T120000Z\r\n" in unfolded
    assert "SUMMARY:Ａ\\, B\\; C\\\\D" in unfolded
    assert "UID:fixture-1@testserver" in unfolded


def test_a_calendar_without_guides_is_still_one() -> None:
    assert icalendar([], host="h", url_of=lambda report: "").count("BEGIN:") == 1


@pytest.mark.django_db
def test_metrics() -> None:
    stored()
    CsvState.objects.create(revision=5, synced_revision=3)
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in metric_families()
        for sample in family.samples
    }
    assert samples["broker_fixtures", ("complete",)] == 1
    assert samples["broker_fixtures", ("failed",)] == 0
    assert samples["broker_fixture_reports", ()] == 1
    assert samples["broker_fixture_csv_behind", ()] == 2


@pytest.mark.django_db
@pytest.mark.parametrize("address", ["reports.rss", "reports.ics"])
def test_a_feed_reader_comes_in_with_a_key(client: Client, address: str) -> None:
    stored()
    user = User.objects.create_user("reader", password="a long enough one", is_staff=True)
    key = feed_key(user)
    path = f"/status/fixtures/{address}"
    assert client.get(path, {"key": key}).status_code == 200
    assert client.get(path, {"key": key + "x"}).status_code == 403
    assert client.get(LIST, {"key": key}).status_code == 302
    user.set_password("another long one")
    user.save()
    assert client.get(path, {"key": key}).status_code == 403
    fresh = feed_key(user)
    User.objects.update(is_staff=False)
    assert client.get(path, {"key": fresh}).status_code == 403


def test_the_list_hands_out_the_key(staff: Client) -> None:
    page = staff.get(LIST).content.decode()
    address = re.search(r'href="(/status/fixtures/reports\.rss\?key=[^"]+)"', page)
    assert address is not None
    assert Client().get(address[1].replace("&amp;", "&")).status_code == 200


def test_a_guide_has_its_own_sheet_and_nothing_else() -> None:
    sheet = "main{color:#123456}"
    page = f"<head><style>{sheet}</style></head><body><style>body{{display:none}}</style></body>"
    policy = guide_policy(page)
    digest = b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "style-src 'none'" in guide_policy("<head></head><body></body>")
