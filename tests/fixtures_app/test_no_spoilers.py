"""Finished matches through the whole path: their results must not turn up anywhere."""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client
from django_redis import get_redis_connection
from hypothesis import given
from hypothesis import strategies as st

from broker_project.ops.clock.pollers import PollOptions
from fixtures.clients.football import FootballClient
from fixtures.clients.football_answers import read_match, read_past_matches
from fixtures.lifecycle import JST
from fixtures.models import FixtureStatus, Match, Report
from fixtures.services.actions import generate_now
from fixtures.services.reporting import Outside
from fixtures.services.runs import run_fixtures
from sandbox.launcher import SandboxHandle
from tests.fixtures_app.conftest import QUICK, SharedClock, football_config

Options = Callable[..., PollOptions]
RAW = (Path(__file__).parent.parent / "data" / "football" / "finished_match.json").read_text(encoding="utf-8")

# Scores that occur nowhere else: five digits, and not a part of any id or time used here.
HOME_GOALS, AWAY_GOALS, HALF, PENALTIES = 73519, 86427, 94613, 58931
MARKS = [str(number) for number in (HOME_GOALS, AWAY_GOALS, HALF, PENALTIES)] + ["Secretly Finished", "Goal!"]
RESULT = {
    "goals": {"home": HOME_GOALS, "away": AWAY_GOALS},
    "score": {
        "halftime": {"home": HALF, "away": HALF},
        "fulltime": {"home": HOME_GOALS, "away": AWAY_GOALS},
        "extratime": {"home": HALF, "away": HALF},
        "penalty": {"home": PENALTIES, "away": PENALTIES},
    },
    "fixture": {"status": {"long": "Secretly Finished", "short": "PEN", "elapsed": 120, "extra": HALF}},
    "teams": {"home": {"winner": True}, "away": {"winner": False}},
    "events": [{"type": "Goal!", "detail": "Goal!"}],
    "statistics": [{"type": "Goal!", "value": HALF}],
    "players": [{"name": "Goal!", "statistics": [{"games": {"rating": str(HALF)}}]}],
}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    goals=values,
    score=values,
    events=values,
    winner=values,
    short=st.sampled_from(["1H", "FT", "AET", "PEN"]),
)
def test_whatever_the_result_the_facts_are_the_same(
    goals: Any, score: Any, events: Any, winner: Any, short: str
) -> None:
    raw = json.loads(RAW)
    expected = read_match(raw)
    raw |= {"goals": goals, "score": score, "events": events, "statistics": events, "players": events}
    raw["teams"]["home"]["winner"] = winner
    raw["fixture"]["status"] = {"short": short, "long": str(score)[:20], "elapsed": 90}
    assert read_match(raw) == expected
    day = expected.kickoff_at.astimezone(JST).date()
    tomorrow = day + dt.timedelta(days=1)
    assert read_past_matches([raw], before=day, without="none", limit=5) == []
    assert read_past_matches([raw], before=tomorrow, without=expected.fixture_id, limit=5) == []


@pytest.mark.django_db
def test_results_turn_up_nowhere(
    with_gemini: Outside,
    options: Options,
    sandbox: SandboxHandle,
    clock: SharedClock,
    caplog: pytest.LogCaptureFixture,
    client: Client,
    said: list[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    config = football_config(sandbox.base_url, 39, 2)
    outside = replace(with_gemini, football=FootballClient(config, policy=QUICK, clock=clock))
    run_fixtures(options(dry_run=True), discover=True, outside=outside)
    caches["default"].clear()
    # Every match of the day is over, with a result that cannot be mistaken. (Guides of the days after may show
    # it among a team's last matches; this is about the day itself.)
    day = clock.now.astimezone(JST).date()
    today = [line.split()[2] for line in said if line.startswith("would") and f" {day} " in line]
    assert len(today) > 8
    sandbox.load("football", {"overrides": {number: {"patch": RESULT} for number in today}})
    clock.forward(hours=1, minutes=30)
    for _ in range(4):
        run_fixtures(options(), discover=True, outside=outside)
    for row in FixtureStatus.objects.filter(status="complete")[:2]:
        generate_now(row.fixture_id, who="test", outside=outside)
    clock.forward(minutes=5)
    Match.objects.update(changed_at=clock.now)
    run_fixtures(options(), discover=False, outside=outside)
    assert Report.objects.filter(match_id__in=today).count() > 5

    client.force_login(User.objects.create(username="watcher", is_staff=True))
    pages = [
        client.get(f"/status/fixtures/{pk}/report/").content.decode()
        for pk in Report.objects.values_list("pk", flat=True)
    ]
    assert all("観戦ガイド" in page for page in pages)
    places = {
        "page": "\n".join(pages),
        "database": "\n".join(
            str(list(model._base_manager.values_list())) for model in apps.get_models() if model._meta.managed
        ),
        "bucket": "\n".join(
            base64.b64decode(entry["data"]).decode() for entry in sandbox.state("gcs")["objects"]
        ),
        "Redis": everything_in_redis(),
        "logs": caplog.text + "\n".join(said),
    }
    assert "reports/" in places["database"]
    assert "football:form" in places["Redis"]
    found = [(place, mark) for place, text in places.items() for mark in MARKS if mark in text]
    assert found == []


@pytest.mark.django_db
def test_a_guide_made_after_the_match_says_what_one_made_before_it_says(
    outside: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    config = football_config(sandbox.base_url, 39)
    outside = replace(outside, football=FootballClient(config, policy=QUICK, clock=clock))
    run_fixtures(options(), discover=True, outside=outside)
    match = Match.objects.filter(kickoff_at__gt=clock.now + dt.timedelta(hours=1), schedule="NS").earliest(
        "kickoff_at"
    )

    def made(at: dt.datetime) -> str:
        caches["default"].clear()
        clock.set(at)
        generate_now(match.fixture_id, who="test", outside=outside)
        html = Report.objects.get(match=match).html
        # When it was made, and the league table: that is only shown as it was before kickoff.
        lines = [line for line in html.splitlines() if "作成 " not in line and "順位" not in line]
        return "\n".join(lines)

    before = made(match.kickoff_at - dt.timedelta(minutes=10))
    run_fixtures(options(), discover=True, outside=outside)
    after = made(match.kickoff_at + dt.timedelta(hours=5))
    assert before == after


def everything_in_redis() -> str:
    """As bytes read as Latin-1: Django's cache keeps pickles."""
    raw = get_redis_connection("default")
    readers = {b"hash": raw.hgetall, b"set": raw.smembers}
    found = []
    for key in raw.scan_iter():
        kind = raw.type(key)
        if kind in readers:
            found.append(str(readers[kind](key)))
        elif kind in (b"list", b"zset"):
            found.append(str((raw.lrange if kind == b"list" else raw.zrange)(key, 0, -1)))
        else:
            found.append(raw.get(key).decode("latin-1"))
        found.append(key.decode())
    return "\n".join(found)


# The preview


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("answers", "check"),
    [
        ([], "passed"),
        (['{"preview": "前半から主導権を握り、2-1で試合を終えた。"}'], "rules"),
        (
            ['{"preview": "見どころの多い一戦。"}', '{"reveals_result": true, "reason": "結末に触れている"}'],
            "model",
        ),
        (['{"preview": "見どころの多い一戦。"}', *[{"status": 500}] * 3], "failed"),
        (['{"preview": "見どころの多い一戦。"}', *["not JSON"] * 3], "failed"),
        ([{"status": 429}, {"status": 429}, {"status": 429}], "none"),
        ([{"block_reason": "SAFETY"}], "none"),
    ],
)
def test_a_preview_that_is_not_checked_clean_is_not_shown(
    with_gemini: Outside,
    options: Options,
    sandbox: SandboxHandle,
    answers: list[Any],
    check: str,
) -> None:
    from fixtures.models import FixtureSettings

    FixtureSettings.objects.create(matches_per_run=1)
    sandbox.load("gemini", {"next": answers})
    counts = run_fixtures(options(), discover=True, outside=with_gemini)
    assert counts["reported"] == 1
    report = Report.objects.get()
    assert report.spoiler_check == check
    assert bool(report.preview) is (check == "passed")
    assert ("見どころ</h2>" in report.html) is (check == "passed")
    assert "2-1" not in report.html + report.spoiler_reason
    assert FixtureStatus.objects.filter(status="complete").count() == 1
