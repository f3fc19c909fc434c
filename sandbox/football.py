"""API-Football v3: fixtures, line-ups, injuries, head-to-head, standings, with envelope, errors and quota.

As with the real service, a refusal is HTTP 200 with an `errors` object. The key `bad-key` is refused. The state
has the quota (`daily_limit`, `used`, `minute_limit`), changes to matches (`overrides`: id → `kickoff`,
`status`, and `patch`, merged into the answer) and new ones (`extra`: `league`, `home`, `away`, `kickoff`).
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sandbox.core import System, from_iso, iso
from sandbox.football_calendar import EXTRA_FIRST_ID, LEAGUES, TEAMS, Match, match_by_id, matches_on
from sandbox.football_catalogue import leagues, squads, teams
from sandbox.football_facts import (
    STATUS_NAMES,
    events,
    fixture_json,
    injuries_json,
    lineups,
    ratings,
    statistics,
    status_of,
)
from sandbox.football_query import (
    Problem,
    midnight,
    refuse_half_filters,
    refuse_others,
    require_any,
    required,
    season_bounds,
    whole,
    zone_of,
)
from sandbox.football_table import counts_in_table, standings_json
from sandbox.partial_state import refuse_unknown

BAD_KEY = "bad-key"
DAILY_LIMIT, MINUTE_LIMIT = 7500, 300
PAST_DAYS, FUTURE_DAYS = 400, 21
MAX_IDS = 20
LIVE = ("1H", "HT", "2H")
PERIOD_PARAMETERS = ("date", "season", "last", "next", "from", "to", "timezone")
FIXTURE_PARAMETERS = ("id", "ids", "live", "league", "team", "status", "round", *PERIOD_PARAMETERS)

Answer = Callable[[dict[str, str]], Any]


class Football(System):
    name = "football"

    def reset(self) -> None:
        self.daily_limit, self.minute_limit, self.used = DAILY_LIMIT, MINUTE_LIMIT, 0
        self.used_on = self.world.clock.now().date().isoformat()
        self.overrides: dict[str, dict[str, Any]] = {}
        self.extra: list[dict[str, Any]] = []
        self._minute = 0
        self._used_in_minute = 0

    def dump(self) -> dict[str, Any]:
        return {
            "daily_limit": self.daily_limit,
            "minute_limit": self.minute_limit,
            "used": self.used,
            "used_on": self.used_on,
            "overrides": self.overrides,
            "extra": self.extra,
        }

    def load(self, data: dict[str, Any]) -> None:
        """Keys that are missing keep their present value."""
        refuse_unknown(data, self.dump())
        overrides = {str(key): dict(order) for key, order in data.get("overrides", self.overrides).items()}
        extra = [dict(entry) for entry in data.get("extra", self.extra)]
        for key, order in overrides.items():
            refuse_unknown(order, dict.fromkeys(("kickoff", "status", "patch")))
            if match_by_id(int(key)) is None and int(key) < EXTRA_FIRST_ID:
                raise ValueError(f"there is no match {key}")
            if order.get("status") not in (None, *STATUS_NAMES):
                raise ValueError(f"unknown status {order['status']!r}")
            if "kickoff" in order:
                from_iso(order["kickoff"])
        for number, entry in enumerate(extra):
            entry.setdefault("id", EXTRA_FIRST_ID + number)
            _extra_match(entry)
        numbers = {
            key: int(data.get(key, getattr(self, key))) for key in ("daily_limit", "minute_limit", "used")
        }
        self.daily_limit, self.minute_limit, self.used = numbers.values()
        self.used_on = str(data.get("used_on", self.used_on))
        self.overrides, self.extra = overrides, extra

    def overview(self) -> dict[str, Any]:
        now = self.world.clock.now()
        rows = []
        for match in self._between(now - timedelta(hours=6), now + timedelta(hours=12)):
            names = [team.name if team else "?" for team in (match.home, match.away)]
            short, _ = status_of(match, now, self._ordered(match))
            rows.append(
                [match.id, iso(match.kickoff), LEAGUES[match.league]["name"], " – ".join(names), short]
            )
        columns = ["id", "kickoff", "competition", "match", "status"]
        quota = [[self.used, self.daily_limit]]
        return {
            "sections": [
                {"title": "Matches around now", "columns": columns, "rows": rows},
                {"title": "Quota today", "columns": ["used", "limit"], "rows": quota},
            ]
        }

    def routes(self) -> list[BaseRoute]:
        answers: dict[str, Answer] = {
            "status": self.status,
            "timezone": self.timezones,
            "leagues": self._known(leagues),
            "teams": self._known(teams),
            "fixtures": self.fixtures,
            "fixtures/headtohead": self.head_to_head,
            "fixtures/lineups": self.fixture_lineups,
            "fixtures/events": self.fixture_events,
            "fixtures/statistics": self.fixture_statistics,
            "fixtures/players": self.fixture_players,
            "injuries": self.injuries,
            "standings": self.standings,
            "players/squads": self._known(squads),
        }

        def endpoint(get: str) -> Any:
            async def respond(request: Request) -> Response:
                return self._respond(request, get, answers[get])

            return respond

        return [Route(f"/{get}", endpoint(get), methods=["GET"]) for get in answers]

    # The envelope

    def _respond(self, request: Request, get: str, answer: Answer) -> Response:
        query = dict(request.query_params)
        try:
            self._admit(request, is_free=get == "status")
            found: Any = answer(query)
            errors: Any = []
        except Problem as problem:
            found, errors = [], problem.errors
        headers = {
            "x-ratelimit-requests-limit": str(self.daily_limit),
            "x-ratelimit-requests-remaining": str(max(0, self.daily_limit - self.used)),
            "X-RateLimit-Limit": str(self.minute_limit),
            "X-RateLimit-Remaining": str(max(0, self.minute_limit - self._used_in_minute)),
        }
        envelope = {
            "get": get,
            "parameters": query or [],
            "errors": errors,
            "results": len(found) if isinstance(found, list) else 1,
            "paging": {"current": 1, "total": 1},
            "response": found,
        }
        return JSONResponse(envelope, headers=headers)

    def _admit(self, request: Request, *, is_free: bool) -> None:
        key = request.headers.get("x-apisports-key") or request.headers.get("x-rapidapi-key")
        if not key or key == BAD_KEY:
            hint = "Go to https://www.api-football.com/documentation-v3 missing application key."
            raise Problem(token="Error/Invalid API key. Check your key." if key else hint)
        now = self.world.clock.now()
        if self.used_on != now.date().isoformat():
            self.used, self.used_on = 0, now.date().isoformat()
        minute = int(now.timestamp()) // 60
        if self._minute != minute:
            self._minute, self._used_in_minute = minute, 0
        if is_free:
            return
        if self.used >= self.daily_limit:
            message = (
                "You have reached the request limit for the day, Go to the dashboard to upgrade your plan."
            )
            raise Problem(requests=message)
        if self._used_in_minute >= self.minute_limit:
            limit = self.minute_limit
            raise Problem(rateLimit=f"Too many requests. Your rate limit is {limit} requests per minute.")
        self.used += 1
        self._used_in_minute += 1

    def _known(self, answer: Callable[[dict[str, str], datetime], list[dict[str, Any]]]) -> Answer:
        return lambda query: answer(query, self.world.clock.now())

    # Answers

    def status(self, query: dict[str, str]) -> dict[str, Any]:
        end = (self.world.clock.now() + timedelta(days=30)).isoformat()
        return {
            "account": {"firstname": "Sandbox", "lastname": "Account", "email": "sandbox@example.com"},
            "subscription": {"plan": "Pro", "end": end, "active": True},
            "requests": {"current": self.used, "limit_day": self.daily_limit},
        }

    def timezones(self, query: dict[str, str]) -> list[str]:
        return ["Asia/Tokyo", "Europe/London", "Europe/Madrid", "UTC"]

    def fixtures(self, query: dict[str, str]) -> list[dict[str, Any]]:
        refuse_others(query, *FIXTURE_PARAMETERS)
        require_any({key: value for key, value in query.items() if key != "timezone"})
        zone = zone_of(query)
        if "id" in query or "ids" in query:
            texts = query["ids"].split("-") if "ids" in query else [query["id"]]
            if len(texts) > MAX_IDS:
                raise Problem(ids=f"Maximum of {MAX_IDS} ids.")
            wanted = [whole({"id": text}, "id") for text in texts]
            matches = [match for match in map(self._match, wanted) if match is not None]
            return [self._in_full(match, zone) for match in matches]
        return [self._json(match, zone) for match in self._chosen(query, zone)]

    def head_to_head(self, query: dict[str, str]) -> list[dict[str, Any]]:
        if "h2h" not in query:
            raise Problem(h2h="The H2h field is required.")
        sides = query["h2h"].split("-")
        if len(sides) != 2 or not all(side.isdigit() for side in sides):
            raise Problem(h2h="The H2h field must contain two team ids separated by a dash.")
        pair = {int(side) for side in sides}
        rest = {key: value for key, value in query.items() if key not in ("h2h", "timezone")}
        zone = zone_of(query)
        matches = self._chosen(rest, zone, pair)
        return [self._json(match, zone) for match in matches]

    def fixture_lineups(self, query: dict[str, str]) -> list[dict[str, Any]]:
        match = self._match(required(query, "fixture"))
        if match is None:
            return []
        found = lineups(match, self.world.clock.now(), self._ordered(match))
        return [side for side in found if query.get("team") in (None, str(side["team"]["id"]))]

    def fixture_events(self, query: dict[str, str]) -> list[dict[str, Any]]:
        match = self._match(required(query, "fixture"))
        return events(match, self._minutes(match)) if match else []

    def fixture_statistics(self, query: dict[str, str]) -> list[dict[str, Any]]:
        match = self._match(required(query, "fixture"))
        return statistics(match, self._minutes(match)) if match else []

    def fixture_players(self, query: dict[str, str]) -> list[dict[str, Any]]:
        match = self._match(required(query, "fixture"))
        return ratings(match, self.world.clock.now()) if match and self._minutes(match) else []

    def injuries(self, query: dict[str, str]) -> list[dict[str, Any]]:
        refuse_others(query, "fixture", "ids", "league", "season", "team", "player", "date", "timezone")
        require_any({key: value for key, value in query.items() if key != "timezone"})
        zone, now = zone_of(query), self.world.clock.now()
        if "fixture" in query or "ids" in query:
            texts = query["ids"].split("-") if "ids" in query else [query["fixture"]]
            found = [self._match(whole({"fixture": text}, "fixture")) for text in texts]
            matches = [match for match in found if match is not None]
        else:
            around = {"from": str(now.date() - timedelta(days=2)), "to": str(now.date() + timedelta(days=2))}
            chosen = query if "date" in query else {**query, **around}
            matches = self._chosen({k: v for k, v in chosen.items() if k != "player"}, zone)
        rows = [row for match in matches for row in injuries_json(match, now, zone)]
        return [row for row in rows if query.get("team") in (None, str(row["team"]["id"]))]

    def standings(self, query: dict[str, str]) -> list[dict[str, Any]]:
        season, league, team = required(query, "season"), whole(query, "league"), whole(query, "team")
        if league is None and team is None:
            raise Problem(league="The League or Team field is required.")
        now = self.world.clock.now()
        wanted = [league] if league is not None else [39, 140]
        found = []
        for one in wanted:
            if one not in (39, 140):
                continue
            since, until = season_bounds(season)
            played = [
                match
                for match in self._between(since, min(until, now))
                if match.league == one
                and counts_in_table(match)
                and status_of(match, now, self._ordered(match))[0] == "FT"
            ]
            answer = standings_json(one, season, played, now, team)
            if answer:
                found.append(answer)
        return found

    # Matches

    def _chosen(self, query: dict[str, str], zone: ZoneInfo, pair: set[int] | None = None) -> list[Match]:
        """The matches that fit all filters, by kickoff; `last` and `next` the nearest ones only."""
        now = self.world.clock.now()
        last, following = whole(query, "last"), whole(query, "next")
        refuse_half_filters(query, has_other_filter=bool(last or following or pair), is_pair=pair is not None)
        chosen = [
            match
            for match in self._between(*self._period(query, zone))
            if self._fits(match, query) and (pair is None or pair == match.team_ids)
        ]
        if last:
            return [match for match in chosen if match.kickoff <= now][-last:][::-1]
        if following:
            return [match for match in chosen if match.kickoff > now][:following]
        return chosen

    def _period(self, query: dict[str, str], zone: ZoneInfo) -> tuple[datetime, datetime]:
        """The period to search, by the most specific of the filters."""
        now = self.world.clock.now()
        if "live" in query:
            return now - timedelta(hours=4), now
        if "date" in query:
            return midnight(query, "date", zone), midnight(query, "date", zone, days_later=1)
        if "from" in query:
            return midnight(query, "from", zone), midnight(query, "to", zone, days_later=1)
        latest = now + timedelta(days=FUTURE_DAYS)
        season = whole(query, "season")
        if season is not None:
            since, until = season_bounds(season)
            return since, min(until, latest)
        return now - timedelta(days=PAST_DAYS), latest

    def _fits(self, match: Match, query: dict[str, str]) -> bool:
        """Whether it has the league, team, season, round and status that are asked for."""
        team = whole(query, "team")
        wanted = set(LIVE) if "live" in query else set(query.get("status", "").split("-")) - {""}
        return (
            whole(query, "league") in (None, match.league)
            and whole(query, "season") in (None, match.season)
            and (team is None or team in match.team_ids)
            and query.get("round") in (None, LEAGUES[match.league]["round"].format(match.round))
            and (not wanted or status_of(match, self.world.clock.now(), self._ordered(match))[0] in wanted)
        )

    def _between(self, since: datetime, until: datetime) -> list[Match]:
        """All matches that begin in [since, until), moved and added ones included, by kickoff."""
        first, last = since.astimezone(UTC).date(), until.astimezone(UTC).date()
        days = min((last - first).days + 1, PAST_DAYS + FUTURE_DAYS + 2)
        found = [
            match
            for number in range(days)
            for match in matches_on(first + timedelta(days=number))
            if str(match.id) not in self.overrides
        ]
        found += [match for match in map(self._match, map(int, self.overrides)) if match is not None]
        found += [_extra_match(entry) for entry in self.extra if str(entry["id"]) not in self.overrides]
        return sorted((m for m in found if since <= m.kickoff < until), key=lambda m: (m.kickoff, m.id))

    def _match(self, match_id: int | None) -> Match | None:
        if match_id is None:
            return None
        added = next((entry for entry in self.extra if int(entry["id"]) == match_id), None)
        match = _extra_match(added) if added else match_by_id(match_id)
        moved = self.overrides.get(str(match_id), {}).get("kickoff")
        return replace(match, kickoff=from_iso(moved).astimezone(UTC)) if match and moved else match

    def _ordered(self, match: Match) -> str | None:
        ordered: str | None = self.overrides.get(str(match.id), {}).get("status")
        return ordered

    def _minutes(self, match: Match) -> int:
        return status_of(match, self.world.clock.now(), self._ordered(match))[1] or 0

    def _json(self, match: Match, zone: ZoneInfo) -> dict[str, Any]:
        shown = fixture_json(match, self.world.clock.now(), zone, self._ordered(match))
        merged: dict[str, Any] = _merged(shown, self.overrides.get(str(match.id), {}).get("patch") or {})
        return merged

    def _in_full(self, match: Match, zone: ZoneInfo) -> dict[str, Any]:
        """A match that is asked for by id comes with everything known about it."""
        now, minutes = self.world.clock.now(), self._minutes(match)
        return {
            **self._json(match, zone),
            "events": events(match, minutes),
            "lineups": lineups(match, now, self._ordered(match)),
            "statistics": statistics(match, minutes),
            "players": ratings(match, now) if minutes else [],
        }


def _extra_match(entry: dict[str, Any]) -> Match:
    """A match that the state adds. Raises KeyError, TypeError, ValueError."""
    home, away = (TEAMS[int(entry[side])] if entry[side] is not None else None for side in ("home", "away"))
    league = int(entry.get("league", 39))
    if league not in LEAGUES:
        raise ValueError(f"there is no league {league}")
    return Match(int(entry["id"]), league, 1, home, away, from_iso(entry["kickoff"]).astimezone(UTC))


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(value, dict):
        return patch
    return {**value, **{key: _merged(value.get(key), inner) for key, inner in patch.items()}}
