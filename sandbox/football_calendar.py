"""Which match is played when. Everything follows from the date, so that nothing needs to be stored.

A day has 24 matches, one an hour, at a quarter that changes from day to day: at any time one begins soon,
some are being played and the day's earlier ones are over. A team plays at most once a day.
"""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "football.json").read_text(encoding="utf-8")
)
FIRST_DAY = date(2020, 1, 1)
FIRST_ID = 1_000_000
SLOTS = 24
IDS_PER_DAY = 32
LINEUPS_BEFORE = timedelta(minutes=40)
EXTRA_FIRST_ID = 9_000_000  # ids from here on belong to matches that the state adds
SEASON_STARTS_IN = 7  # July
# What each hour of the day (UTC) holds: Europe's evening has the leagues, the other hours the cups as well.
CARD = (140, 39, 2, 140, 32, 48, 2, 45, 39, 143, 140, 2, 39, 48, 140, 39, 2, 45, 2, 39, 140, 32, 2, 143)


@dataclass(frozen=True)
class Team:
    id: int
    name: str
    code: str
    venue: str
    city: str
    colour: str
    group: str


@dataclass(frozen=True)
class Match:
    id: int
    league: int
    round: int
    home: Team | None
    away: Team | None
    kickoff: datetime

    @property
    def season(self) -> int:
        return season_of(self.kickoff.date())

    @property
    def team_ids(self) -> set[int]:
        return {side.id for side in (self.home, self.away) if side}


TEAMS: dict[int, Team] = {
    row[0]: Team(row[0], row[1], row[2], row[3], row[4], row[5], group)
    for group, rows in DATA["teams"].items()
    for row in rows
}
GROUPS: dict[str, list[Team]] = {
    group: [team for team in TEAMS.values() if team.group == group] for group in DATA["teams"]
}
LEAGUES: dict[int, dict[str, Any]] = {league["id"]: league for league in DATA["leagues"]}
LEAGUE_GROUPS: dict[int, tuple[str, ...]] = {
    39: ("england",),
    140: ("spain",),
    2: ("england", "spain", "europe"),
    45: ("england",),
    48: ("england",),
    143: ("spain",),
    32: ("nations",),
}


def season_of(day: date) -> int:
    return day.year if day.month >= SEASON_STARTS_IN else day.year - 1


def match_by_id(match_id: int) -> Match | None:
    day_number, slot = divmod(match_id - FIRST_ID, IDS_PER_DAY)
    if not 0 <= day_number < 40_000 or slot >= SLOTS:
        return None
    return matches_on(FIRST_DAY + timedelta(days=day_number))[slot]


@lru_cache(maxsize=1500)
def matches_on(day: date) -> tuple[Match, ...]:
    """The 24 matches of a UTC day, by kickoff."""
    number = (day - FIRST_DAY).days
    pairs = _pairs(number)
    minute = (number * 7 % 4) * 15
    matches = []
    for slot, league in enumerate(CARD):
        home, away = pairs[league].pop(0)
        kickoff = datetime(day.year, day.month, day.day, slot, minute, tzinfo=UTC)
        match_id = FIRST_ID + number * IDS_PER_DAY + slot
        matches.append(Match(match_id, league, _round(league, day), home, away, kickoff))
    return tuple(matches)


def _round(league: int, day: date) -> int:
    opening = date(season_of(day), SEASON_STARTS_IN, 1)
    length = 10 if LEAGUES[league]["type"] == "League" else 46
    return (day - opening).days // length + 1


def _pairs(number: int) -> dict[int, list[tuple[Team, Team]]]:
    """Who meets whom: half a league round a day, the cups and Europe for the teams that are free."""
    england, spain = _round_robin("england", number // 2), _round_robin("spain", number // 2)
    first, second = (slice(0, 5), slice(5, 10)) if number % 2 == 0 else (slice(5, 10), slice(0, 5))
    free_england = [team for pair in england[second] for team in pair]
    free_spain = [team for pair in spain[second] for team in pair]
    shuffle = Random(number)
    shuffle.shuffle(free_england)
    shuffle.shuffle(free_spain)
    europe = shuffle.sample(GROUPS["europe"], 6)
    nations = shuffle.sample(GROUPS["nations"], 4)
    hosts = [*free_england[8:10], *free_spain[4:8]]
    continental = [(a, b) if shuffle.random() < 0.5 else (b, a) for a, b in zip(hosts, europe, strict=True)]
    return {
        39: england[first],
        140: spain[first],
        2: continental,
        45: _two(free_england[0:4]),
        48: _two(free_england[4:8]),
        143: _two(free_spain[0:4]),
        32: _two(nations),
    }


def _two(teams: list[Team]) -> list[tuple[Team, Team]]:
    return [(teams[0], teams[1]), (teams[2], teams[3])]


def _round_robin(group: str, round_number: int) -> list[tuple[Team, Team]]:
    """The circle method: in n-1 rounds everybody meets everybody; the next n-1 rounds swap the sides."""
    teams = GROUPS[group]
    turns = len(teams) - 1
    shift = round_number % turns
    circle = [teams[0], *teams[1:][shift:], *teams[1:][:shift]]
    half = len(teams) // 2
    pairs = list(zip(circle[:half], reversed(circle[half:]), strict=True))
    return pairs if round_number // turns % 2 == 0 else [(away, home) for home, away in pairs]
