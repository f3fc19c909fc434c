"""Everything about a match: squads, line-ups, absences and, once it is played, its course.

Players are called by position and number, except a few of Japan's internationals at their clubs.
"""

from datetime import datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from sandbox.football_calendar import DATA, LEAGUES, LINEUPS_BEFORE, Match, Team

SQUAD = {
    "G": (1, 13),
    "D": (2, 3, 4, 5, 6, 15),
    "M": (8, 10, 14, 16, 17, 18, 20, 22),
    "F": (7, 9, 11, 19, 21),
}
POSITION_NAMES = {"G": "Goalkeeper", "D": "Defender", "M": "Midfielder", "F": "Attacker"}
POSITION_CODES = {"G": "GK", "D": "DF", "M": "MF", "F": "FW"}
STATUS_NAMES = {
    "NS": "Not Started",
    "1H": "First Half",
    "HT": "Halftime",
    "2H": "Second Half",
    "FT": "Match Finished",
    "PST": "Match Postponed",
    "CANC": "Match Cancelled",
    "ABD": "Match Abandoned",
    "TBD": "Time To Be Defined",
}
UNPLAYED = ("PST", "CANC", "ABD", "TBD")


def status_of(match: Match, now: datetime, ordered: str | None = None) -> tuple[str, int | None]:
    """The short status and the minutes played. About one match in fifty is called off beforehand."""
    if ordered:
        return ordered, 90 if ordered == "FT" else None
    chance = Random(match.id * 31 + 7).random()
    if chance < 0.02:
        return ("PST" if chance < 0.014 else "CANC"), None
    played = (now - match.kickoff).total_seconds() / 60
    if played < 0:
        return "NS", None
    if played < 46:
        return "1H", max(1, int(played))
    if played < 61:
        return "HT", 45
    if played < 108:
        return "2H", min(90, int(played) - 15)
    return "FT", 90


def goals_of(match: Match) -> list[tuple[int, Team]]:
    """Minute and side of every goal; the same for every call."""
    if match.home is None or match.away is None:
        return []
    dice = Random(match.id)
    sides = [match.home] * dice.choice((0, 1, 1, 2, 2, 3, 4)) + [match.away] * dice.choice((0, 0, 1, 1, 2, 3))
    return sorted(((dice.randint(2, 90), side) for side in sides), key=lambda goal: goal[0])


def score_at(match: Match, minute: int) -> tuple[int, int]:
    scored = [side for at, side in goals_of(match) if at <= minute]
    return sum(side == match.home for side in scored), sum(side == match.away for side in scored)


def fixture_json(match: Match, now: datetime, zone: ZoneInfo, ordered: str | None = None) -> dict[str, Any]:
    """The match as /fixtures shows it."""
    short, elapsed = status_of(match, now, ordered)
    is_played = elapsed is not None
    home_goals, away_goals = score_at(match, elapsed or 0)
    half = score_at(match, 45) if is_played and short != "1H" else None
    kickoff = match.kickoff.astimezone(zone)
    league = LEAGUES[match.league]
    venue = match.home or match.away
    started_at = int(match.kickoff.timestamp())
    return {
        "fixture": {
            "id": match.id,
            "referee": "Referee A" if match.id % 3 else None,
            "timezone": str(zone),
            "date": kickoff.isoformat(),
            "timestamp": started_at,
            "periods": {
                "first": started_at if is_played else None,
                "second": started_at + 3660 if short in ("2H", "FT") else None,
            },
            "venue": {"id": venue.id * 10, "name": venue.venue, "city": venue.city} if venue else None,
            "status": {"long": STATUS_NAMES[short], "short": short, "elapsed": elapsed, "extra": None},
        },
        "league": {
            "id": match.league,
            "name": league["name"],
            "country": league["country"],
            "logo": f"https://media.api-sports.io/football/leagues/{match.league}.png",
            "flag": None,
            "season": match.season,
            "round": league["round"].format(match.round),
            "standings": league["type"] == "League",
        },
        "teams": {
            "home": _side(match.home, (home_goals, away_goals) if is_played else None),
            "away": _side(match.away, (away_goals, home_goals) if is_played else None),
        },
        "goals": {"home": home_goals if is_played else None, "away": away_goals if is_played else None},
        "score": {
            "halftime": {"home": half[0] if half else None, "away": half[1] if half else None},
            "fulltime": {
                "home": home_goals if short == "FT" else None,
                "away": away_goals if short == "FT" else None,
            },
            "extratime": {"home": None, "away": None},
            "penalty": {"home": None, "away": None},
        },
    }


def _side(team: Team | None, score: tuple[int, int] | None) -> dict[str, Any]:
    winner = None if score is None or score[0] == score[1] else score[0] > score[1]
    return {**team_json(team), "winner": winner}


def team_json(team: Team | None) -> dict[str, Any]:
    if team is None:
        return {"id": None, "name": None, "logo": None}
    logo = f"https://media.api-sports.io/football/teams/{team.id}.png"
    return {"id": team.id, "name": team.name, "logo": logo}


def squad(team: Team) -> list[dict[str, Any]]:
    known = DATA["japanese_players"].get(str(team.id))
    players = []
    for position, numbers in SQUAD.items():
        for number in numbers:
            name = f"{POSITION_CODES[position]} {number}"
            if known and known["number"] == number:
                continue
            players.append({"id": team.id * 100 + number, "name": name, "number": number, "pos": position})
    if known:
        players.append({"id": team.id * 100 + known["number"], **known})
    return players


def absences(match: Match, team: Team) -> list[tuple[dict[str, Any], str, str]]:
    """Player, kind and reason of those who are out or doubtful: known days before."""
    dice = Random(match.id * 1009 + team.id)
    known = DATA["japanese_players"].get(str(team.id), {}).get("number")
    candidates = [player for player in squad(team) if player["pos"] != "G" and player["number"] != known]
    chosen = dice.sample(candidates, dice.randint(0, 3))
    kinds = ("Missing Fixture", "Missing Fixture", "Questionable")
    return [(player, dice.choice(kinds), dice.choice(DATA["injuries"])) for player in chosen]


def lineups(match: Match, now: datetime, ordered: str | None = None) -> list[dict[str, Any]]:
    """Both line-ups; nothing until 40 minutes before kickoff, nor for a match that is called off."""
    if now < match.kickoff - LINEUPS_BEFORE or status_of(match, now, ordered)[0] in UNPLAYED:
        return []
    return [_lineup(match, team) for team in (match.home, match.away) if team is not None]


def _lineup(match: Match, team: Team) -> dict[str, Any]:
    dice = Random(match.id * 17 + team.id)
    formation = dice.choice(DATA["formations"])
    out = {player["id"] for player, kind, _ in absences(match, team) if kind == "Missing Fixture"}
    known = DATA["japanese_players"].get(str(team.id), {}).get("name")
    # The known names first, so that they are on the field.
    fit = sorted(
        (p for p in squad(team) if p["id"] not in out), key=lambda p: (p["name"] != known, p["number"])
    )
    rows = [int(count) for count in formation.split("-")]
    wanted = ["G", "D", *["M"] * (len(rows) - 2), "F"]
    started: list[dict[str, Any]] = []
    for line, (position, count) in enumerate(zip(wanted, [1, *rows], strict=True), start=1):
        ready = [player for player in fit if player not in started]
        ready.sort(key=lambda player: player["pos"] != position)
        for place, player in enumerate(ready[:count], start=1):
            started.append(player)
            player["grid"] = f"{line}:{place}"
    bench = [player for player in fit if player not in started]
    return {
        "team": {**team_json(team), "colors": _colours(team)},
        "coach": {"id": team.id * 1000, "name": "Head coach", "photo": None},
        "formation": formation,
        "startXI": [{"player": player} for player in started],
        "substitutes": [{"player": {**player, "grid": None}} for player in bench[:9]],
    }


def _colours(team: Team) -> dict[str, Any]:
    number = "000000" if team.colour in ("ffffff", "ffe667", "fde100", "fdb913", "8ac3ee") else "ffffff"
    return {
        "player": {"primary": team.colour, "number": number, "border": team.colour},
        "goalkeeper": {"primary": "1f8a4c", "number": "ffffff", "border": "1f8a4c"},
    }


def events(match: Match, minute: int) -> list[dict[str, Any]]:
    found = []
    for at, side in goals_of(match):
        if at > minute:
            continue
        scorer = Random(match.id * 100 + at).choice([p for p in squad(side) if p["pos"] in "MF"])
        found.append(
            {
                "time": {"elapsed": at, "extra": None},
                "team": team_json(side),
                "player": {"id": scorer["id"], "name": scorer["name"]},
                "assist": {"id": None, "name": None},
                "type": "Goal",
                "detail": "Normal Goal",
                "comments": None,
            }
        )
    return found


def statistics(match: Match, minute: int) -> list[dict[str, Any]]:
    if not minute:
        return []
    share = Random(match.id + 5).randint(35, 65)
    found = []
    for team, possession, goals in zip(
        (match.home, match.away), (share, 100 - share), score_at(match, minute), strict=True
    ):
        if team is not None:
            shots = Random(match.id + team.id).randint(2, 9) + goals
            rows = [
                ("Shots on Goal", shots),
                ("Ball Possession", f"{possession}%"),
                ("expected_goals", f"{goals + 0.4}"),
            ]
            found.append(
                {
                    "team": team_json(team),
                    "statistics": [{"type": kind, "value": value} for kind, value in rows],
                }
            )
    return found


def ratings(match: Match, now: datetime) -> list[dict[str, Any]]:
    """Marks and goals by player, for a match that has begun."""
    scorers = [event["player"]["id"] for event in events(match, 90)]
    found = []
    for side in lineups(match, now):
        players = [
            {
                "player": {"id": entry["player"]["id"], "name": entry["player"]["name"], "photo": None},
                "statistics": [
                    {
                        "games": {
                            "minutes": 90,
                            "rating": f"{6 + (entry['player']['id'] + match.id) % 30 / 10}",
                        },
                        "goals": {"total": scorers.count(entry["player"]["id"]) or None},
                    }
                ],
            }
            for entry in side["startXI"]
        ]
        found.append({"team": {key: side["team"][key] for key in ("id", "name", "logo")}, "players": players})
    return found


def injuries_json(match: Match, now: datetime, zone: ZoneInfo) -> list[dict[str, Any]]:
    shown = fixture_json(match, now, zone)
    fixture = {key: shown["fixture"][key] for key in ("id", "timezone", "date", "timestamp")}
    league = {key: shown["league"][key] for key in ("id", "season", "name", "country", "logo", "flag")}
    return [
        {
            "player": {
                "id": player["id"],
                "name": player["name"],
                "photo": None,
                "type": kind,
                "reason": reason,
            },
            "team": team_json(team),
            "fixture": fixture,
            "league": league,
        }
        for team in (match.home, match.away)
        if team is not None
        for player, kind, reason in absences(match, team)
    ]
