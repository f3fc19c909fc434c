"""API-Football's stand-in, driven by httpx as the real one would be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from sandbox.football_calendar import matches_on
from sandbox.launcher import SandboxHandle

LEAGUES = (39, 2, 140, 45, 143, 48, 32)


class Api:
    def __init__(self, sandbox: SandboxHandle) -> None:
        self.http = httpx.Client(
            base_url=f"{sandbox.base_url}/football",
            headers={"x-apisports-key": "key"},
            timeout=10,
            verify=False,
        )

    def envelope(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200
        data: dict[str, Any] = answer.json()
        return data

    def get(self, path: str, **query: Any) -> Any:
        data = self.envelope(path, **query)
        assert data["errors"] == []
        return data["response"]

    def errors(self, path: str, **query: Any) -> Any:
        data = self.envelope(path, **query)
        assert (data["response"], data["results"]) == ([], 0)
        return data["errors"]


@pytest.fixture
def api(sandbox: SandboxHandle) -> Iterator[Api]:
    found = Api(sandbox)
    yield found
    found.http.close()


def at(sandbox: SandboxHandle, moment: datetime) -> None:
    sandbox.set_clock((moment - datetime.now(UTC)).total_seconds())


# A match of a fixed day that is not called off: what is asked about it does not depend on when the test runs.
DAY = datetime(2026, 3, 14, tzinfo=UTC).date()
MATCH = next(match for match in matches_on(DAY) if match.league == 39)


def test_day_holds_every_competition_and_follows_the_time_zone(api: Api, sandbox: SandboxHandle) -> None:
    at(sandbox, datetime(2026, 3, 14, 12, tzinfo=UTC))
    japan = api.get("/fixtures", date="2026-03-14", timezone="Asia/Tokyo")
    assert {entry["league"]["id"] for entry in japan} == set(LEAGUES)
    dates = [datetime.fromisoformat(entry["fixture"]["date"]) for entry in japan]
    assert dates == sorted(dates)
    assert {(moment.date().isoformat(), moment.utcoffset()) for moment in dates} == {
        ("2026-03-14", timedelta(hours=9))
    }
    utc = api.get("/fixtures", date="2026-03-14")
    assert {entry["fixture"]["id"] for entry in utc} != {entry["fixture"]["id"] for entry in japan}
    assert len(utc) == 24


def test_at_any_time_a_match_begins_soon_and_others_are_over(api: Api, sandbox: SandboxHandle) -> None:
    for hour in (0, 5, 11, 23):
        now = datetime(2026, 3, 14, hour, 40, tzinfo=UTC)
        at(sandbox, now)
        [soon] = api.get("/fixtures", next=1)
        assert datetime.fromisoformat(soon["fixture"]["date"]) - now <= timedelta(hours=1, minutes=45)
        statuses = {entry["fixture"]["status"]["short"] for entry in api.get("/fixtures", last=20)}
        assert "FT" in statuses


def test_nobody_plays_twice_a_day() -> None:
    for number in range(120):
        matches = matches_on(DAY + timedelta(days=number))
        teams = [side.id for match in matches for side in (match.home, match.away) if side]
        assert len(teams) == len(set(teams)) == 48


@pytest.mark.parametrize(
    ("minutes", "short"), [(-1, "NS"), (1, "1H"), (50, "HT"), (70, "2H"), (110, "FT"), (5000, "FT")]
)
def test_status_follows_the_clock(api: Api, sandbox: SandboxHandle, minutes: int, short: str) -> None:
    at(sandbox, MATCH.kickoff + timedelta(minutes=minutes))
    [entry] = api.get("/fixtures", id=MATCH.id)
    assert entry["fixture"]["status"]["short"] == short
    is_played = minutes > 0
    assert (entry["goals"]["home"] is not None) is is_played
    assert (entry["score"]["fulltime"]["home"] is not None) is (short == "FT")
    assert bool(entry["statistics"]) is is_played
    assert bool(entry["players"]) is is_played
    if short == "FT":
        goals = entry["goals"]["home"] + entry["goals"]["away"]
        assert sum(event["type"] == "Goal" for event in entry["events"]) == goals


def test_lineups_appear_forty_minutes_before(api: Api, sandbox: SandboxHandle) -> None:
    at(sandbox, MATCH.kickoff - timedelta(minutes=41))
    assert api.get("/fixtures/lineups", fixture=MATCH.id) == []
    at(sandbox, MATCH.kickoff - timedelta(minutes=39))
    sides = api.get("/fixtures/lineups", fixture=MATCH.id)
    assert [side["team"]["id"] for side in sides] == [team.id for team in (MATCH.home, MATCH.away) if team]
    for side in sides:
        grids = [entry["player"]["grid"] for entry in side["startXI"]]
        lines = [1, *map(int, side["formation"].split("-"))]
        assert grids == [
            f"{line}:{place + 1}" for line, count in enumerate(lines, 1) for place in range(count)
        ]
        ids = [entry["player"]["id"] for entry in side["startXI"] + side["substitutes"]]
        assert len(ids) == len(set(ids)) >= 15
        assert side["coach"]["name"] == "Head coach"
        assert len(side["team"]["colors"]["player"]["primary"]) == 6


def test_those_reported_missing_are_not_in_the_lineup(api: Api, sandbox: SandboxHandle) -> None:
    found = 0
    for match in matches_on(DAY):
        at(sandbox, match.kickoff)
        missing = {
            row["player"]["id"]
            for row in api.get("/injuries", fixture=match.id)
            if row["player"]["type"] == "Missing Fixture"
        }
        sides = api.get("/fixtures/lineups", fixture=match.id)
        named = {entry["player"]["id"] for side in sides for entry in side["startXI"] + side["substitutes"]}
        assert not missing & named
        found += len(missing)
    assert found


def test_japanese_players_start_for_their_clubs(api: Api, sandbox: SandboxHandle) -> None:
    squad = api.get("/players/squads", team=51)[0]["players"]
    assert [player["number"] for player in squad if player["name"] == "K. Mitoma"] == [22]
    match = next(m for d in range(9) for m in matches_on(DAY + timedelta(d)) if m.home and m.home.id == 51)
    at(sandbox, match.kickoff)
    home = api.get("/fixtures/lineups", fixture=match.id, team=51)[0]
    assert "K. Mitoma" in [entry["player"]["name"] for entry in home["startXI"]]


def test_history_head_to_head_and_table(api: Api, sandbox: SandboxHandle) -> None:
    at(sandbox, MATCH.kickoff - timedelta(minutes=10))
    assert MATCH.home
    assert MATCH.away
    home, away = MATCH.home.id, MATCH.away.id
    last = api.get("/fixtures", team=home, last=5)
    dates = [entry["fixture"]["date"] for entry in last]
    assert len(dates) == 5
    assert dates == sorted(dates, reverse=True)
    assert all(home in (entry["teams"]["home"]["id"], entry["teams"]["away"]["id"]) for entry in last)
    meetings = api.get("/fixtures/headtohead", h2h=f"{home}-{away}", last=3)
    assert len(meetings) == 3
    for entry in meetings:
        assert {entry["teams"]["home"]["id"], entry["teams"]["away"]["id"]} == {home, away}
    [table] = api.get("/standings", league=39, season=2025)
    rows = table["league"]["standings"][0]
    assert [row["rank"] for row in rows] == list(range(1, 21))
    assert [row["points"] for row in rows] == sorted((row["points"] for row in rows), reverse=True)
    assert all(len(row["form"]) == 5 and row["all"]["played"] <= 38 for row in rows)


def test_league_of_a_day_needs_its_season(api: Api, sandbox: SandboxHandle) -> None:
    at(sandbox, datetime(2026, 3, 14, 12, tzinfo=UTC))
    found = api.get("/fixtures", date="2026-03-14", league=39, season=2025)
    assert {entry["league"]["id"] for entry in found} == {39}
    assert api.get("/fixtures", date="2026-03-14", league=39, season=2024) == []
    assert api.errors("/fixtures", date="2026-03-14", league=39) == {
        "season": "The Season field is required."
    }


@pytest.mark.parametrize(
    ("path", "query", "key"),
    [
        ("/fixtures", {}, "required"),
        ("/fixtures", {"date": "14.03.2026"}, "date"),
        ("/fixtures", {"date": "2026-02-30"}, "date"),
        ("/fixtures", {"colour": "red"}, "colour"),
        ("/fixtures", {"id": "abc"}, "id"),
        ("/fixtures", {"date": "2026-03-14", "timezone": "Mars/Base"}, "timezone"),
        ("/fixtures", {"ids": "-".join(map(str, range(21)))}, "ids"),
        ("/fixtures/lineups", {}, "fixture"),
        ("/fixtures/headtohead", {"h2h": "33"}, "h2h"),
        ("/standings", {"league": "39"}, "season"),
        ("/injuries", {}, "required"),
    ],
)
def test_refusals_are_answers_with_an_errors_object(
    api: Api, path: str, query: dict[str, str], key: str
) -> None:
    assert set(api.errors(path, **query)) == {key}


def test_bad_key_is_an_errors_object_as_well(api: Api) -> None:
    api.http.headers["x-apisports-key"] = "bad-key"
    assert set(api.errors("/fixtures", date="2026-03-14")) == {"token"}


def test_quota_is_announced_counted_and_refused(api: Api, sandbox: SandboxHandle) -> None:
    sandbox.load("football", {"daily_limit": 3, "used": 1})
    answer = api.http.get("/fixtures", params={"date": "2026-03-14"})
    assert answer.headers["x-ratelimit-requests-limit"] == "3"
    assert answer.headers["x-ratelimit-requests-remaining"] == "1"
    assert answer.headers["x-ratelimit-remaining"] == "299"
    assert api.get("/status")["requests"] == {"current": 2, "limit_day": 3}
    api.get("/leagues", id=39)
    assert set(api.errors("/leagues", id=39)) == {"requests"}
    sandbox.set_clock(86400)
    assert api.get("/leagues", id=39)[0]["league"]["name"] == "Premier League"


def test_minute_limit_is_refused_too(api: Api, sandbox: SandboxHandle) -> None:
    sandbox.load("football", {"minute_limit": 0})
    assert set(api.errors("/leagues", id=39)) == {"rateLimit"}


def test_matches_are_moved_called_off_patched_and_added(api: Api, sandbox: SandboxHandle) -> None:
    at(sandbox, MATCH.kickoff - timedelta(hours=3))
    moved_to = MATCH.kickoff + timedelta(days=1)
    other = matches_on(DAY)[-1]
    sandbox.load(
        "football",
        {
            "overrides": {
                str(MATCH.id): {
                    "kickoff": moved_to.isoformat(),
                    "patch": {"fixture": {"referee": "Referee B"}},
                },
                str(other.id): {"status": "PST"},
            },
            "extra": [
                {"league": 39, "home": 50, "away": 42, "kickoff": "2026-03-14T20:07:00Z"},
                {"league": 39, "home": None, "away": None, "kickoff": "2026-03-14T21:07:00Z"},
            ],
        },
    )
    day = {entry["fixture"]["id"]: entry for entry in api.get("/fixtures", date=DAY.isoformat())}
    assert MATCH.id not in day
    assert day[other.id]["fixture"]["status"]["short"] == "PST"
    assert day[9_000_000]["teams"]["home"]["name"] == "Manchester City"
    assert day[9_000_001]["teams"]["home"]["id"] is None
    tomorrow = api.get("/fixtures", date=(DAY + timedelta(days=1)).isoformat())
    [moved] = [entry["fixture"] for entry in tomorrow if entry["fixture"]["id"] == MATCH.id]
    assert moved["referee"] == "Referee B"
    assert datetime.fromisoformat(moved["date"]) == moved_to
    at(sandbox, other.kickoff)
    assert api.get("/fixtures/lineups", fixture=other.id) == []


def test_some_matches_are_called_off_by_themselves(api: Api, sandbox: SandboxHandle) -> None:
    at(sandbox, datetime(2026, 3, 14, tzinfo=UTC))
    found = api.get("/fixtures", **{"from": "2026-02-01", "to": "2026-03-10", "status": "PST-CANC"})
    assert {entry["fixture"]["status"]["short"] for entry in found} == {"PST", "CANC"}
    assert len(found) < 38 * 24 / 10


def test_state_of_nonsense_is_refused_whole(api: Api, sandbox: SandboxHandle) -> None:
    before = sandbox.state("football")
    orders: list[dict[str, Any]] = [{"overrides": {"1": {}}}, {"extra": [{"league": 39}]}, {"quota": 1}]
    for nonsense in orders:
        with pytest.raises(httpx.HTTPStatusError):
            sandbox.load("football", nonsense)
    assert sandbox.state("football") == before
