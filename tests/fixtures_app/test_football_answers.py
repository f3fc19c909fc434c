from __future__ import annotations

import copy
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.clients.football_answers import (
    Unusable,
    read_absences,
    read_lineups,
    read_match,
    read_past_matches,
    read_season,
    read_table,
    season_by_rule,
)
from fixtures.guide.pitch import Side, draw_pitch, places
from fixtures.lifecycle import Schedule

DATA = Path(__file__).parent.parent / "data" / "football"
DAY = dt.date(2026, 3, 11)


@pytest.fixture
def raw() -> Any:
    """A finished match with everything that the API knows of it."""
    return json.loads((DATA / "finished_match.json").read_text(encoding="utf-8"))


def test_a_finished_match_looks_like_one_that_is_to_come(raw: Any) -> None:
    finished = read_match(raw)
    before = copy.deepcopy(raw)
    before["fixture"]["status"] = {"long": "Not Started", "short": "NS", "elapsed": None}
    before["fixture"]["periods"] = {"first": None, "second": None}
    before["goals"] = {"home": None, "away": None}
    for name in ("score", "events", "statistics", "players", "lineups"):
        before.pop(name)
    for side in before["teams"].values():
        side["winner"] = None
    assert finished == read_match(before)
    assert finished.schedule is Schedule.PLANNED


@pytest.mark.parametrize(
    ("short", "schedule"),
    [
        *(
            (short, "NS")
            for short in ("NS", "1H", "HT", "2H", "ET", "BT", "P", "SUSP", "INT", "FT", "AET", "PEN", "LIVE")
        ),
        ("TBD", "TBD"),
        ("PST", "PST"),
        ("CANC", "CANC"),
        ("ABD", "ABD"),
        ("AWD", "CANC"),
        ("WO", "CANC"),
    ],
)
def test_states_that_tell_how_far_a_match_is_are_all_the_same(raw: Any, short: str, schedule: str) -> None:
    raw["fixture"]["status"]["short"] = short
    assert read_match(raw).schedule == schedule


BROKEN: list[tuple[str, Any]] = [
    ("teams.home.id", None),
    ("teams.home.name", None),
    ("teams.away.name", "  "),
    ("teams.away", None),
    ("teams", []),
    ("fixture.id", None),
    ("fixture.id", "x"),
    ("league.id", None),
    ("league.season", None),
    ("league.season", 10**9),
    ("teams.home.id", 2**63),
    ("fixture", None),
]


@pytest.mark.parametrize(("path", "value"), BROKEN)
def test_what_a_match_cannot_do_without(raw: Any, path: str, value: Any) -> None:
    put(raw, path, value)
    with pytest.raises(Unusable):
        read_match(raw)


@pytest.mark.parametrize("junk", [None, [], "x", 3, {"fixture": "x"}])
def test_junk_is_unusable_and_not_a_crash(junk: Any) -> None:
    with pytest.raises(Unusable):
        read_match(junk)
    assert read_lineups([junk]) == []
    assert read_absences([junk]) == []
    assert read_table([junk], dt.datetime.now(dt.UTC)).places == ()
    assert read_past_matches([junk], before=DAY, without="1", limit=5) == []
    assert read_season([junk], DAY) is None


KICKOFF = dt.datetime(2026, 3, 11, 11, 15, tzinfo=dt.UTC)
DATES = [
    (None, "2026-03-11T20:15:00+09:00", "Asia/Tokyo", KICKOFF),
    (None, "2026-03-11T20:15:00", "Asia/Tokyo", KICKOFF),  # its zone is beside it
    (1773227700, "2026-02-30T99:00:00+09:00", "Asia/Tokyo", KICKOFF),  # the timestamp is clear
    (None, "2026-03-11T20:15:00", "", None),
    (None, "2026-03-11T20:15:00", "Nowhere/City", None),
    (None, "2026-02-30T20:15:00+09:00", "Asia/Tokyo", None),
    (None, "soon", "Asia/Tokyo", None),
    (None, None, None, None),
    (0, "0001-01-01T00:00:00+00:00", "UTC", None),
]


@pytest.mark.parametrize(("timestamp", "date", "zone", "expected"), DATES)
def test_dates(raw: Any, timestamp: Any, date: Any, zone: Any, expected: dt.datetime | None) -> None:
    raw["fixture"] |= {"timestamp": timestamp, "date": date, "timezone": zone}
    if expected is None:
        with pytest.raises(Unusable, match="kickoff"):
            read_match(raw)
    else:
        assert read_match(raw).kickoff_at == expected


def test_control_characters_and_long_names_are_tamed(raw: Any) -> None:
    raw["teams"]["home"]["name"] = "A\x00\nB" + "x" * 500
    name = read_match(raw).home_name
    assert name.startswith("A B")
    assert len(name) == 100


def test_only_days_before_the_match_day_in_japan_and_never_the_match_itself(raw: Any) -> None:
    def played(number: int, at: str, short: str = "FT") -> Any:
        other = copy.deepcopy(raw)
        other["fixture"] |= {"id": number, "date": at, "timestamp": None}
        other["fixture"]["status"]["short"] = short
        return other

    own = str(raw["fixture"]["id"])
    answer = [
        raw,
        played(1, "2026-03-10T23:59:00+09:00"),
        played(2, "2026-03-11T00:00:00+09:00"),
        played(3, "2026-03-10T16:00:00+00:00"),  # the eleventh in Japan
        played(4, "2026-03-09T20:00:00+09:00", "1H"),
        played(5, "2026-03-08T20:00:00+09:00", "PEN"),
    ]
    found = read_past_matches(answer, before=DAY, without=own, limit=5)
    assert [entry.day for entry in found] == [dt.date(2026, 3, 10), dt.date(2026, 3, 8)]
    later = read_past_matches(answer, before=dt.date(2026, 3, 20), without=own, limit=9)
    assert len(later) == 4


def test_lineups_are_shown_as_published_or_not_there(raw: Any) -> None:
    found = read_lineups(raw["lineups"])
    assert [len(lineup.starters) for lineup in found] == [11, 11]
    assert all(lineup.formation and len(lineup.colour) == 6 for lineup in found)
    raw["lineups"][0]["startXI"].pop()
    assert [len(lineup.starters) for lineup in read_lineups(raw["lineups"])] == [10, 11]
    raw["lineups"][0]["startXI"].clear()
    assert [len(lineup.starters) for lineup in read_lineups(raw["lineups"])] == [11]


@pytest.mark.parametrize("junk", [5, True, 1.5, "eleven", {"player": 1}])
def test_a_list_that_is_none_is_empty_and_not_a_crash(raw: Any, junk: Any) -> None:
    lineups = raw["lineups"]
    lineups[0]["startXI"] = lineups[1]["substitutes"] = junk
    (side,) = read_lineups(lineups)
    assert side.bench == ()
    assert read_season([{"seasons": junk}], DAY) is None
    assert read_table([{"league": {"standings": junk}}], dt.datetime(2026, 3, 11, tzinfo=dt.UTC)).places == ()


def test_points_that_were_taken_away_are_shown() -> None:
    line = {"rank": 20, "team": {"id": 7}, "points": -3, "all": {"played": 1}}
    table = read_table([{"league": {"standings": [[line]]}}], dt.datetime(2026, 8, 20, tzinfo=dt.UTC))
    assert [(place.team_id, place.points) for place in table.places] == [(7, -3)]


def test_colours_that_are_none_are_dropped(raw: Any) -> None:
    raw["lineups"][0]["team"]["colors"]["player"]["primary"] = 'red" onload="x'
    assert read_lineups(raw["lineups"])[0].colour == ""


def test_the_season_of_a_day() -> None:
    answer = [
        {
            "seasons": [
                {"year": 2024, "start": "2024-03-01", "end": "2026-03-31", "current": False},
                {"year": 2026, "start": "2026-08-01", "end": "2027-05-30", "current": True},
            ]
        }
    ]
    assert read_season(answer, DAY) == 2024
    assert read_season(answer, dt.date(2026, 7, 1)) == 2026
    assert read_season([{"seasons": [{"year": 2025, "start": "?", "end": None}]}], DAY) is None
    assert (season_by_rule(dt.date(2026, 6, 30)), season_by_rule(dt.date(2026, 7, 1))) == (2025, 2026)


def test_players_stand_where_the_grid_says(raw: Any) -> None:
    home, away = read_lineups(raw["lineups"])
    spots = places(home.starters)
    assert spots[0].player.position == "G"
    assert len({spot.y for spot in spots}) == home.formation.count("-") + 2
    assert all(0 < spot.x < 1 and 0 <= spot.y < 1 for spot in spots)
    assert len({(spot.x, spot.y) for spot in spots}) == 11
    drawn = draw_pitch(
        Side("A", "ff0000", "ffffff", home.starters), Side("B", "0000ff", "ffffff", away.starters)
    )
    assert drawn.count("<circle r=") == 22


def test_without_a_grid_the_positions_make_the_rows(raw: Any) -> None:
    for entry in raw["lineups"][0]["startXI"]:
        entry["player"]["grid"] = None
    spots = places(read_lineups(raw["lineups"])[0].starters)
    assert len({spot.y for spot in spots}) == 4


def test_a_drawing_escapes_names_and_says_unknown() -> None:
    drawn = draw_pitch(Side('<script>"', "ff0000", "ffffff", ()), Side("B", "0000ff", "ffffff", ()))
    assert "<script" not in drawn
    assert drawn.count("不明") == 2


def put(raw: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        raw = raw[parent]
    raw[last] = value
