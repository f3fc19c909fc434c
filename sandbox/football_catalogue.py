"""Competitions, teams and squads: what does not change from match to match."""

from datetime import datetime
from typing import Any

from sandbox.football_calendar import LEAGUE_GROUPS, LEAGUES, TEAMS, season_of
from sandbox.football_facts import POSITION_NAMES, squad, team_json
from sandbox.football_query import Problem, refuse_others, require_any, required, whole


def leagues(query: dict[str, str], now: datetime) -> list[dict[str, Any]]:
    refuse_others(
        query, "id", "name", "country", "code", "season", "current", "type", "search", "team", "last"
    )
    season = season_of(now.date())
    found = []
    for league in LEAGUES.values():
        if query.get("id") not in (None, str(league["id"])) or query.get("name") not in (
            None,
            league["name"],
        ):
            continue
        years = [year for year in (season - 1, season) if query.get("season") in (None, str(year))]
        coverage = {
            "fixtures": {"events": True, "lineups": True},
            "standings": league["type"] == "League",
        }
        seasons = [
            {
                "year": year,
                "start": f"{year}-07-01",
                "end": f"{year + 1}-06-30",
                "current": year == season,
                "coverage": {**coverage, "injuries": True},
            }
            for year in years
        ]
        found.append(
            {
                "league": {
                    "id": league["id"],
                    "name": league["name"],
                    "type": league["type"],
                    "logo": None,
                },
                "country": {"name": league["country"], "code": league["code"], "flag": None},
                "seasons": seasons,
            }
        )
    return found


def teams(query: dict[str, str], now: datetime) -> list[dict[str, Any]]:
    refuse_others(query, "id", "name", "league", "season", "country", "code", "venue", "search")
    require_any(query)
    league = whole(query, "league")
    if league is not None and "season" not in query:
        raise Problem(season="The Season field is required with the League field.")
    groups = LEAGUE_GROUPS.get(league, ()) if league is not None else None
    return [
        {
            "team": {**team_json(team), "code": team.code, "national": team.group == "nations"},
            "venue": {"id": team.id * 10, "name": team.venue, "city": team.city},
        }
        for team in TEAMS.values()
        if query.get("id") in (None, str(team.id))
        and query.get("name") in (None, team.name)
        and query.get("search", "").lower() in team.name.lower()
        and (groups is None or team.group in groups)
    ]


def squads(query: dict[str, str], now: datetime) -> list[dict[str, Any]]:
    team = TEAMS.get(required(query, "team"))
    if team is None:
        return []
    players = [
        {
            "id": player["id"],
            "name": player["name"],
            "age": None,
            "number": player["number"],
            "position": POSITION_NAMES[player["pos"]],
            "photo": None,
        }
        for player in squad(team)
    ]
    return [{"team": team_json(team), "players": players}]
