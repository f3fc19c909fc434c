"""The client against the sandbox: quota, errors inside HTTP 200, caches without results."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
import redis

from broker_project.lib.config.outside import FootballConfig, Source
from broker_project.lib.errors import (
    BadAnswer,
    OutsideError,
    RateLimited,
    Rejected,
    ServerFault,
    SwitchedOff,
    TimedOut,
    Unauthorised,
    Unreachable,
)
from broker_project.lib.retry import RetryPolicy
from fixtures.clients.football import FootballClient, known_quota
from fixtures.clients.football_answers import MatchFacts
from fixtures.lifecycle import JST
from sandbox.launcher import SandboxHandle
from tests.fixtures_app.conftest import QUICK, START, SharedClock, football_config

TODAY = START.astimezone(JST).date()
EPL = 39


def a_match(football: FootballClient, league: int = EPL) -> MatchFacts:
    return football.matches(league, 2025, TODAY, TODAY)[0][0]


def answering(**body: Any) -> dict[str, Any]:
    return {"kind": "status", "status": 200, "body": {"errors": [], "response": [], **body}}


def test_matches_of_japanese_days(football: FootballClient, sandbox: SandboxHandle) -> None:
    matches, unusable = football.matches(EPL, 2025, TODAY, TODAY)
    assert matches
    assert unusable == []
    assert {match.kickoff_at.astimezone(JST).date() for match in matches} == {TODAY}
    (call,) = sandbox.calls("football")
    assert "timezone=Asia%2FTokyo" in call["path"]
    assert f"league={EPL}&season=2025" in call["path"]


def test_entries_that_are_no_match_are_told_and_left_out(
    football: FootballClient, sandbox: SandboxHandle
) -> None:
    good = a_match(football)
    sandbox.load(
        "football",
        {
            "overrides": {good.fixture_id: {"patch": {"teams": {"home": {"id": None, "name": None}}}}},
            "extra": [{"league": EPL, "home": None, "away": None, "kickoff": START.isoformat()}],
        },
    )
    matches, unusable = football.matches(EPL, 2025, TODAY, TODAY)
    assert good.fixture_id not in {match.fixture_id for match in matches}
    assert len(unusable) == 2
    assert all("no teams" in problem for problem in unusable)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (answering(errors={"token": "Error/Invalid API key."}), Unauthorised),
        (answering(errors={"requests": "You have reached the request limit for the day"}), RateLimited),
        (answering(errors={"plan": "Free plans do not have access to this season"}), Rejected),
        (answering(errors={"season": "The Season field is required."}), Rejected),
        (answering(errors=["something"]), Rejected),
        (answering(response=None), BadAnswer),
        (answering(response={"a": 1}), BadAnswer),
        ({"kind": "garbage"}, BadAnswer),
        ({"kind": "status", "status": 500}, ServerFault),
        ({"kind": "status", "status": 429, "headers": {"retry-after": "3600"}}, RateLimited),
        ({"kind": "status", "status": 403}, Unauthorised),
        ({"kind": "status", "status": 499}, TimedOut),
        ({"kind": "drop"}, Unreachable),
        ({"kind": "truncate"}, Unreachable),
    ],
)
def test_every_failure_has_one_name(
    football: FootballClient, sandbox: SandboxHandle, fault: dict, error: type[OutsideError]
) -> None:
    sandbox.fault("football", times=0, **fault)
    with pytest.raises(error):
        football.absences("1")


@pytest.mark.parametrize(
    "fault", [{"kind": "status", "status": 404}, answering(errors={"plan": "not in your plan"}), answering()]
)
def test_without_an_answer_the_season_goes_by_the_usual_rule(
    football: FootballClient, sandbox: SandboxHandle, fault: dict
) -> None:
    sandbox.fault("football", path="/leagues$", times=0, **fault)
    assert football.season(EPL, dt.date(2026, 1, 4)) == 2025
    assert football.season(EPL, dt.date(2026, 11, 16)) == 2026


@pytest.mark.parametrize("fault", [answering(), {"kind": "status", "status": 204, "body": ""}])
def test_an_empty_answer_is_no_error(football: FootballClient, sandbox: SandboxHandle, fault: dict) -> None:
    sandbox.fault("football", **fault)
    assert football.absences("1") == []


def test_an_answer_in_pages_is_read_to_its_end(football: FootballClient, sandbox: SandboxHandle) -> None:
    def absence(name: str) -> dict[str, Any]:
        return {"player": {"name": name, "type": "Missing Fixture", "reason": "Rest"}, "team": {"id": 1}}

    for page, name in ((1, "A. One"), (2, "B. Two"), (3, "C. Three")):
        body = {"response": [absence(name)], "paging": {"current": page, "total": 3}}
        sandbox.fault("football", path="/injuries", times=1, **answering(**body))
    assert [entry.player for entry in football.absences("1")] == ["A. One", "B. Two", "C. Three"]
    asked = [call["path"] for call in reversed(sandbox.calls("football"))]
    assert ["page=2" in asked[1], "page=3" in asked[2], "page=" in asked[0]] == [True, True, False]


def test_its_own_time_out_is_tried_again(football: FootballClient, sandbox: SandboxHandle) -> None:
    sandbox.fault("football", "status", status=499, times=1)
    assert football.matches(EPL, 2025, TODAY, TODAY)[0]


def test_a_passing_failure_is_tried_again(football: FootballClient, sandbox: SandboxHandle) -> None:
    sandbox.fault("football", "status", status=502, times=1)
    sandbox.fault("football", "drop", times=1)
    assert football.matches(EPL, 2025, TODAY, TODAY)[0]


def test_a_bad_key_is_said_and_not_repeated(sandbox: SandboxHandle, clock: SharedClock) -> None:
    client = FootballClient(football_config(sandbox.base_url, key="bad-key"), policy=QUICK, clock=clock)
    with pytest.raises(Unauthorised, match="API key"):
        client.matches(EPL, 2025, TODAY, TODAY)
    assert len(sandbox.calls("football")) == 1


def test_without_a_key_it_is_off() -> None:
    client = FootballClient(FootballConfig(Source.OFF, "", (39,)))
    assert not client.is_available
    with pytest.raises(SwitchedOff):
        client.lineups("1")


def test_the_quota_is_recorded_and_respected(
    football: FootballClient, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    sandbox.load("football", {"daily_limit": 2})
    football.absences("1")
    quota = known_quota()
    assert quota is not None
    assert (quota.daily_limit, quota.daily_remaining) == (2, 1)
    football.absences("2")
    sandbox.clear_calls()
    with pytest.raises(RateLimited):
        football.absences("3")
    assert sandbox.calls("football") == []

    clock.set(dt.datetime(2026, 3, 12, 0, 0, 5, tzinfo=dt.UTC))  # a new day for API-Football
    football.absences("3")
    assert len(sandbox.calls("football")) == 1


def test_a_used_up_minute_is_waited_out(sandbox: SandboxHandle, clock: SharedClock) -> None:
    clock.set(START.replace(second=30))
    sandbox.load("football", {"minute_limit": 1})
    client = FootballClient(
        football_config(sandbox.base_url), policy=RetryPolicy(max_attempts=1), clock=clock
    )
    client.absences("1")
    with pytest.raises(RateLimited) as refused:
        client.absences("2")
    assert refused.value.retry_after_seconds == 31
    clock.set(START + dt.timedelta(minutes=1, seconds=1))
    client.absences("2")


def test_answers_are_cached_by_kind(football: FootballClient, sandbox: SandboxHandle) -> None:
    match = a_match(football)

    def ask() -> list[Any]:
        return [
            football.season(EPL, TODAY),
            football.lineups(match.fixture_id),
            football.absences(match.fixture_id),
            football.head_to_head(match, TODAY),
            football.form(match, match.home_id, TODAY),
        ]

    first = ask()
    sandbox.clear_calls()
    assert ask() == first
    assert sandbox.calls("football") == []


def test_lineups_that_are_not_out_are_asked_for_again_soon(
    football: FootballClient, sandbox: SandboxHandle, clock: SharedClock, store: redis.Redis
) -> None:
    match = a_match(football)
    clock.set(match.kickoff_at - dt.timedelta(minutes=50))
    assert football.lineups(match.fixture_id) == []
    assert 0 < store.ttl(f"poppo:cache:football:lineups:{match.fixture_id}") <= 60
    store.flushall()
    clock.set(match.kickoff_at - dt.timedelta(minutes=30))
    assert len(football.lineups(match.fixture_id)) == 2
    assert store.ttl(f"poppo:cache:football:lineups:{match.fixture_id}") > 300


def test_who_waits_for_lineups_does_not_take_a_remembered_no(
    football: FootballClient, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    match = a_match(football)
    clock.set(match.kickoff_at - dt.timedelta(minutes=50))
    assert football.lineups(match.fixture_id) == []
    clock.set(match.kickoff_at - dt.timedelta(minutes=30))
    assert football.lineups(match.fixture_id) == []
    assert len(football.lineups(match.fixture_id, ask_again=True)) == 2
    sandbox.clear_calls()
    assert len(football.lineups(match.fixture_id, ask_again=True)) == 2
    assert sandbox.calls("football") == []


def test_form_and_head_to_head_end_the_day_before(football: FootballClient, clock: SharedClock) -> None:
    match = a_match(football)
    clock.set(match.kickoff_at + dt.timedelta(hours=4))
    form = football.form(match, match.home_id, TODAY)
    meetings = football.head_to_head(match, TODAY)
    assert len(form) == 5
    assert meetings
    assert all(entry.day < TODAY for entry in [*form, *meetings])


def test_early_in_a_season_the_form_goes_back_to_the_one_before(
    football: FootballClient, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    match = a_match(football)
    day = dt.date(2026, 7, 2)
    clock.set(dt.datetime(2026, 7, 2, 11, 0, tzinfo=dt.UTC))
    sandbox.clear_calls()
    form = football.form(match, match.home_id, day)
    assert len(form) == 5
    assert min(entry.day for entry in form) < dt.date(2026, 7, 1)
    seasons = [call["path"].partition("season=")[2][:4] for call in reversed(sandbox.calls("football"))]
    assert seasons == ["2026", "2025"]


def test_a_table_read_after_kickoff_is_not_used(football: FootballClient, clock: SharedClock) -> None:
    match = a_match(football)
    clock.set(match.kickoff_at + dt.timedelta(minutes=1))
    assert football.table(EPL, 2025, match.kickoff_at) is None
    clock.set(match.kickoff_at - dt.timedelta(minutes=30))
    before = football.table(EPL, 2025, match.kickoff_at)
    assert before is not None
    assert len(before.places) == 20
    clock.set(match.kickoff_at + dt.timedelta(hours=5))
    assert football.table(EPL, 2025, match.kickoff_at) == before


def test_matches_by_id_carry_no_result(football: FootballClient, clock: SharedClock) -> None:
    match = a_match(football)
    clock.set(match.kickoff_at + dt.timedelta(hours=4))
    assert football.matches_by_id([match.fixture_id, "not-a-number"]) == [match]


def test_a_redis_that_forgets_costs_only_another_request(
    football: FootballClient, sandbox: SandboxHandle, store: redis.Redis
) -> None:
    first = football.absences("1072363")
    store.flushall()
    assert football.absences("1072363") == first
    assert len(sandbox.calls("football")) == 2


def test_a_changed_shape_in_the_cache_is_a_miss(
    football: FootballClient, sandbox: SandboxHandle, store: redis.Redis
) -> None:
    from django.core.cache import caches

    caches["default"].set("football:injuries:1072363", json.dumps([{"unknown": 1}]))
    football.absences("1072363")
    assert len(sandbox.calls("football")) == 1
