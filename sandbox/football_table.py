"""The league table, added up from the matches that are over."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sandbox.core import iso
from sandbox.football_calendar import FIRST_DAY, GROUPS, LEAGUE_GROUPS, LEAGUES, Match
from sandbox.football_facts import score_at, team_json

FORM_LENGTH = 5


def counts_in_table(match: Match) -> bool:
    """One league match in five: a team plays every other day here, and a season has some 38 rounds."""
    return (match.kickoff.date() - FIRST_DAY).days // 2 % 5 == 0


@dataclass
class _Row:
    results: list[str] = field(default_factory=list)
    scored: int = 0
    conceded: int = 0

    @property
    def points(self) -> int:
        return 3 * self.results.count("W") + self.results.count("D")


def standings_json(
    league: int, season: int, played: list[Match], now: datetime, team_id: int | None
) -> dict[str, Any] | None:
    """The table in /standings' shape; with `team_id` that team's line only, None if it is not there."""
    teams = GROUPS[LEAGUE_GROUPS[league][0]]
    rows = {team.id: _Row() for team in teams}
    for match in played:
        if match.home is None or match.away is None:
            continue
        home_goals, away_goals = score_at(match, 90)
        for team, mine, theirs in (
            (match.home, home_goals, away_goals),
            (match.away, away_goals, home_goals),
        ):
            row = rows.get(team.id)
            if row is not None:
                row.results.append("W" if mine > theirs else "D" if mine == theirs else "L")
                row.scored += mine
                row.conceded += theirs
    order = sorted(
        teams,
        key=lambda team: (-rows[team.id].points, rows[team.id].conceded - rows[team.id].scored, team.name),
    )
    table = []
    for rank, team in enumerate(order, start=1):
        row = rows[team.id]
        if team_id not in (None, team.id):
            continue
        table.append(
            {
                "rank": rank,
                "team": team_json(team),
                "points": row.points,
                "goalsDiff": row.scored - row.conceded,
                "group": LEAGUES[league]["name"],
                "form": "".join(row.results[-FORM_LENGTH:]),
                "status": "same",
                "description": "Champions League" if rank <= 4 else "Relegation" if rank > 17 else None,
                "all": {
                    "played": len(row.results),
                    "win": row.results.count("W"),
                    "draw": row.results.count("D"),
                    "lose": row.results.count("L"),
                    "goals": {"for": row.scored, "against": row.conceded},
                },
                "update": iso(now),
            }
        )
    if not table:
        return None
    info = LEAGUES[league]
    return {
        "league": {
            "id": league,
            "name": info["name"],
            "country": info["country"],
            "logo": None,
            "flag": None,
            "season": season,
            "standings": [table],
        }
    }
