"""Whole runs: real clients, real database, the far side at the socket."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.management import call_command

from broker_project.lib.config.outside import FootballConfig, Source
from broker_project.lib.errors import OutsideError, RateLimited, Unauthorised
from broker_project.ops.clock.pollers import PollOptions
from fixtures.clients.football import FootballClient
from fixtures.csv.parsing import parse_table
from fixtures.fixture_status_manager import FixtureStatusManager
from fixtures.lifecycle import JST
from fixtures.models import CsvState, Event, FixtureSettings, FixtureStatus, Match, MatchLease, Report
from fixtures.services.csv_sync import TableUnreadable, csv_needs_sync
from fixtures.services.reporting import Outside
from fixtures.services.runs import run_fixtures
from sandbox.launcher import SandboxHandle
from tests.fixtures_app.conftest import QUICK, START, SharedClock, football_config

pytestmark = pytest.mark.django_db
Options = Callable[..., PollOptions]
BIG = {"daily_limit": 100_000, "minute_limit": 100_000}


@pytest.fixture
def epl(outside: Outside, sandbox: SandboxHandle, clock: SharedClock) -> Outside:
    """One competition only: half a dozen matches a day."""
    config = football_config(sandbox.base_url, 39)
    return replace(outside, football=FootballClient(config, policy=QUICK, clock=clock))


def discover(outside: Outside, options: Options, **given: Any) -> Counter[str]:
    return Counter(run_fixtures(options(**given), discover=True, outside=outside))


def dispatch(outside: Outside, options: Options) -> Counter[str]:
    return Counter(run_fixtures(options(), discover=False, outside=outside))


def settle(outside: Outside, options: Options) -> None:
    """Run until nothing is due."""
    for _ in range(30):
        if not dispatch(outside, options)["reported"]:
            return
    raise AssertionError("there is always something due")


def csv_rows(outside: Outside) -> dict[str, str]:
    found = outside.storage.read(FixtureStatusManager.CSV_PATH)
    assert found is not None
    return {row.fixture_id: row.status.value for row in parse_table(found.data)}


def test_a_first_run(outside: Outside, options: Options, sandbox: SandboxHandle) -> None:
    counts = discover(outside, options)
    assert counts["found"] == Match.objects.count() > 60
    assert counts["reported"] == 5
    assert Report.objects.count() == 5
    assert FixtureStatus.objects.filter(status="complete").count() == 5
    # One look at the table, five guides, one write of the table.
    assert Counter(call["method"] for call in sandbox.calls("gcs")) == {"GET": 1, "POST": 6}
    assert csv_rows(outside) == dict(FixtureStatus.objects.values_list("fixture_id", "status"))
    state = CsvState.objects.get()
    found = outside.storage.read(FixtureStatusManager.CSV_PATH)
    assert found is not None
    assert state.generation == found.generation
    assert not csv_needs_sync()


def test_what_was_reported_is_not_reported_again(epl: Outside, options: Options) -> None:
    discover(epl, options)
    settle(epl, options)
    written = dict(Report.objects.values_list("match_id", "generated_at"))
    assert discover(epl, options)["reported"] == 0
    assert dict(Report.objects.values_list("match_id", "generated_at")) == written


def test_an_idle_dispatch_asks_nobody(epl: Outside, options: Options, sandbox: SandboxHandle) -> None:
    discover(epl, options)
    settle(epl, options)
    sandbox.clear_calls()
    assert dispatch(epl, options)["reported"] == 0
    assert [call for call in sandbox.calls() if call["system"] in ("gcs", "football")] == []


def test_selection_takes_the_best_five_and_says_why(
    outside: Outside, options: Options, clock: SharedClock
) -> None:
    discover(outside, options)
    taken = Match.objects.filter(selection__startswith="taken")
    full = Match.objects.filter(selection="left: run_is_full")
    assert taken.count() == 5
    assert full.exists()
    order = {"S": 0, "A": 1, "": 2}
    assert max(order[match.rank] for match in taken) <= min(order[match.rank] for match in full)
    assert Match.objects.filter(selection="left: too_early").exists()
    assert not Match.objects.filter(selection="").exists()


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "drop"},
        {"kind": "status", "status": 200, "body": {"errors": {"rateLimit": "Too many"}, "response": []}},
    ],
)
def test_ranking_does_not_wait_for_every_line_up_that_is_not_to_be_had(
    outside: Outside, options: Options, sandbox: SandboxHandle, fault: dict[str, Any]
) -> None:
    sandbox.fault("football", path="/fixtures/lineups", times=0, **fault)
    discover(outside, options)
    asked = Counter(call["path"] for call in sandbox.calls("football") if "/fixtures/lineups" in call["path"])
    # One to rank by, and each guide its own.
    assert len(asked) <= 6
    assert Match.objects.filter(selection="left: run_is_full").exists()


def test_matches_a_run_is_a_setting(outside: Outside, options: Options) -> None:
    FixtureSettings.objects.create(matches_per_run=2)
    assert discover(outside, options)["reported"] == 2


def test_a_failing_match_fails_alone_and_three_times_at_most(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    sandbox.fault("football", "status", path="injuries", status=500, times=3)
    counts = discover(epl, options)
    assert (counts["failed"], counts["reported"]) == (1, 4)
    row = FixtureStatus.objects.get(status="failed")
    assert row.attempts == 1
    assert "HTTP 500" in row.error_message

    sandbox.fault("football", "status", path="injuries", status=500, times=0)
    for _ in range(4):
        dispatch(epl, options)
    row.refresh_from_db()
    assert (row.status, row.attempts) == ("failed", 3)
    assert csv_rows(epl)[row.fixture_id] == "failed"
    before = Event.objects.filter(fixture_id=row.fixture_id).count()
    sandbox.clear_faults()
    dispatch(epl, options)
    assert Event.objects.filter(fixture_id=row.fixture_id).count() == before


def test_a_failed_match_is_reported_by_the_next_run(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    sandbox.fault("football", "status", path="injuries", status=500, times=3)
    discover(epl, options)
    failed = FixtureStatus.objects.get(status="failed")
    settle(epl, options)
    failed.refresh_from_db()
    assert (failed.status, failed.attempts, failed.error_message) == ("complete", 1, "")


def test_a_run_that_died_is_noticed_and_made_good(epl: Outside, options: Options, clock: SharedClock) -> None:
    discover(epl, options)
    settle(epl, options)
    clock.forward(hours=1)
    due = Match.objects.filter(kickoff_at__gt=clock.now - dt.timedelta(hours=1)).order_by("kickoff_at")
    match = due.exclude(report__isnull=False).first()
    assert match is not None
    dead = FixtureStatusManager(clock=clock)
    assert dead.mark_processing(match.fixture_id, match.kickoff_at)
    dispatch(epl, options)
    assert dead.get_status(match.fixture_id) == "processing"
    clock.forward(minutes=31)
    settle(epl, options)
    row = FixtureStatus.objects.get(pk=match.fixture_id)
    assert (row.status, row.attempts) == ("complete", 1)
    assert not dead.mark_complete(match.fixture_id)


def test_a_claim_that_ran_out_by_its_own_row_is_over(
    epl: Outside, options: Options, clock: SharedClock
) -> None:
    discover(epl, options)
    settle(epl, options)
    clock.forward(hours=1)
    due = Match.objects.filter(kickoff_at__gt=clock.now - dt.timedelta(hours=1)).order_by("kickoff_at")
    match = due.exclude(report__isnull=False).first()
    assert match is not None
    dead = FixtureStatusManager(clock=clock)
    assert dead.mark_processing(match.fixture_id, match.kickoff_at)
    MatchLease.objects.filter(pk=match.fixture_id).update(expires_at=clock.now)
    settle(epl, options)
    row = FixtureStatus.objects.get(pk=match.fixture_id)
    assert (row.status, row.attempts) == ("complete", 1)
    assert csv_rows(epl)[match.fixture_id] == "complete"
    assert not dead.mark_complete(match.fixture_id)


def test_a_csv_that_cannot_be_read_stops_the_run(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    epl.storage.put(FixtureStatusManager.CSV_PATH, b"not ours", "text/csv")
    sandbox.fault("gcs", "status", method="GET", status=500, times=0)
    sandbox.clear_calls()
    with pytest.raises(TableUnreadable):
        discover(epl, options)
    assert sandbox.calls("football") == []
    assert not Match.objects.exists()
    assert not [call for call in sandbox.calls("gcs") if call["method"] == "POST"]


def test_a_csv_that_could_not_be_written_is_written_by_the_next_run(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    # The five guides go up first; then the table.
    sandbox.fault("gcs", "status", method="POST", status=503, times=0, skip=5)
    with pytest.raises(OutsideError):
        discover(epl, options)
    assert Report.objects.count() == 5
    sandbox.clear_faults()
    assert csv_needs_sync()
    settle(epl, options)
    assert csv_rows(epl) == dict(FixtureStatus.objects.values_list("fixture_id", "status"))


def test_a_guide_that_cannot_be_stored_is_a_failed_attempt(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    sandbox.fault("gcs", "status", method="POST", status=403, times=1)
    counts = discover(epl, options)
    assert (counts["failed"], counts["reported"]) == (1, 4)
    assert Report.objects.count() == 4


def test_a_moved_kickoff_is_followed(epl: Outside, options: Options, sandbox: SandboxHandle) -> None:
    discover(epl, options)
    match = Match.objects.filter(kickoff_at__gt=START + dt.timedelta(hours=8), schedule="NS").earliest(
        "kickoff_at"
    )
    later = match.kickoff_at + dt.timedelta(hours=2, minutes=30)
    sandbox.load("football", {"overrides": {match.fixture_id: {"kickoff": later.isoformat()}}})
    assert discover(epl, options)["moved"] == 1
    match.refresh_from_db()
    assert match.kickoff_at == later
    assert FixtureStatus.objects.get(pk=match.fixture_id).kickoff_at == later
    assert Event.objects.get(fixture_id=match.fixture_id, what="moved").reason


def test_a_match_moved_out_of_the_searched_days_is_followed_too(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    discover(epl, options)
    match = Match.objects.filter(kickoff_at__gt=START + dt.timedelta(hours=8), schedule="NS").earliest(
        "kickoff_at"
    )
    later = match.kickoff_at + dt.timedelta(days=6)
    sandbox.load("football", {"overrides": {match.fixture_id: {"kickoff": later.isoformat()}}})
    assert discover(epl, options)["moved"] == 1
    assert FixtureStatus.objects.get(pk=match.fixture_id).date == later.astimezone(JST).date().isoformat()


@pytest.mark.parametrize("short", ["PST", "CANC", "ABD", "TBD"])
def test_what_is_called_off_is_never_reported(
    epl: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock, short: str
) -> None:
    discover(epl, options)
    settle(epl, options)
    match = Match.objects.filter(
        kickoff_at__gt=START + dt.timedelta(hours=2), schedule="NS", report__isnull=True
    ).earliest("kickoff_at")
    sandbox.load("football", {"overrides": {match.fixture_id: {"status": short}}})
    clock.set(match.kickoff_at)
    discover(epl, options)
    settle(epl, options)
    match.refresh_from_db()
    assert match.schedule == short
    assert match.selection == "left: not_on"
    assert not Report.objects.filter(match=match).exists()


@pytest.mark.parametrize("change", ["PST", "CANC", "ABD", "moved"])
def test_a_dispatch_notices_what_changed_since_the_search(
    epl: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock, change: str
) -> None:
    discover(epl, options)
    settle(epl, options)
    match = Match.objects.filter(
        kickoff_at__gt=START + dt.timedelta(hours=2), schedule="NS", report__isnull=True
    ).earliest("kickoff_at")
    later = match.kickoff_at + dt.timedelta(days=1)
    override = {"kickoff": later.isoformat()} if change == "moved" else {"status": change}
    sandbox.load("football", {"overrides": {match.fixture_id: override}})
    clock.set(match.kickoff_at)
    counts = dispatch(epl, options)
    assert not Report.objects.filter(match=match).exists()
    row = FixtureStatus.objects.get(pk=match.fixture_id)
    assert (row.status, row.attempts) == ("pending", 0)
    assert counts["moved"] == (change == "moved")
    if change == "moved":
        assert row.kickoff_at == later


def test_a_dispatch_that_cannot_look_again_goes_by_what_it_knows(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    discover(epl, options)
    FixtureStatus.objects.filter(status="complete").update(status="pending", last_attempt_at=None)
    sandbox.fault("football", "status", status=500, path=r"/fixtures\?ids=", times=0)
    assert dispatch(epl, options)["reported"] >= 1


def test_what_was_called_off_before_it_was_found_has_no_row(
    epl: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    discover(epl, options)
    off = set(Match.objects.exclude(schedule="NS").values_list("fixture_id", flat=True))
    assert off.isdisjoint(FixtureStatus.objects.values_list("fixture_id", flat=True))


def test_a_guide_without_line_ups_is_renewed_once_they_are_out(
    epl: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    discover(epl, options)
    settle(epl, options)
    match = Match.objects.filter(
        kickoff_at__gt=START + dt.timedelta(hours=2), schedule="NS", report__isnull=True
    ).earliest("kickoff_at")
    clock.set(match.kickoff_at - dt.timedelta(minutes=60))
    settle(epl, options)
    report = Report.objects.get(match=match)
    assert not report.has_lineups
    assert "先発メンバーはまだ発表されていません" in report.html
    changed_before = FixtureStatus.objects.get(pk=match.fixture_id).last_attempt_at

    clock.set(match.kickoff_at - dt.timedelta(minutes=45))
    assert dispatch(epl, options)["renewed"] == 0

    caches["default"].clear()  # a minute has passed for Redis, too
    clock.set(match.kickoff_at - dt.timedelta(minutes=35))
    sandbox.clear_calls()
    assert dispatch(epl, options)["renewed"] >= 1
    report = Report.objects.get(match=match)
    assert report.has_lineups
    assert "<svg" in report.html
    row = FixtureStatus.objects.get(pk=match.fixture_id)
    assert (row.status, row.attempts, row.last_attempt_at) == ("complete", 0, changed_before)
    stored = epl.storage.read(report.object_name)
    assert stored is not None
    assert stored.data.decode() == report.html


def test_a_search_renews_what_its_window_left_without_line_ups(
    epl: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    sandbox.fault("football", path="/fixtures/lineups", times=0, kind="status", status=204, body="")
    discover(epl, options)
    settle(epl, options)
    report = Report.objects.filter(has_lineups=False, match__kickoff_at__lte=START).latest(
        "match__kickoff_at"
    )
    sandbox.clear_faults()
    caches["default"].clear()
    clock.set(report.match.kickoff_at + dt.timedelta(hours=3))
    dispatch(epl, options)
    report.refresh_from_db()
    assert not report.has_lineups
    while discover(epl, options)["renewed"]:
        clock.forward(minutes=1)
    report.refresh_from_db()
    assert report.has_lineups


def test_line_ups_that_never_come_do_not_keep_others_waiting(
    outside: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    sandbox.load("football", BIG)
    sandbox.fault("football", path="/fixtures/lineups", times=0, kind="status", status=204, body="")
    discover(outside, options)
    settle(outside, options)
    waiting = Report.objects.filter(has_lineups=False)
    assert waiting.count() > 10
    newest = waiting.latest("generated_at").match_id
    sandbox.clear_calls()
    for _ in range(60):
        clock.forward(seconds=1)
        caches["default"].clear()
        discover(outside, options)
        if any(f"fixture={newest}" in call["path"] for call in sandbox.calls("football")):
            return
    raise AssertionError("the newest guide was never looked at again")


def test_a_dry_run_says_everything_and_writes_nothing(
    epl: Outside, options: Options, sandbox: SandboxHandle, said: list[str]
) -> None:
    counts = discover(epl, options, dry_run=True)
    assert counts["would_write"] == 5
    assert sum(line.startswith("would write") for line in said) == 5
    assert any("too_early" in line for line in said)
    for model in (Match, FixtureStatus, Report, Event, CsvState):
        assert not model.objects.exists()
    assert sandbox.calls("gcs") == []


def test_a_named_day_is_worked_through_whatever_the_clock_says(outside: Outside, options: Options) -> None:
    day = dt.date(2026, 1, 4)
    counts = discover(outside, options, date=day)
    assert counts["reported"] == 5
    assert {match.kickoff_at.astimezone(JST).date() for match in Match.objects.all()} == {day}
    done = set(Report.objects.values_list("match_id", flat=True))
    discover(outside, options, date=day)
    assert Report.objects.count() == 10
    assert done < set(Report.objects.values_list("match_id", flat=True))


def test_a_debug_run_leaves_the_status_table_and_the_csv_alone(outside: Outside, options: Options) -> None:
    counts = discover(outside, options, debug=True, date=dt.date(2026, 1, 4))
    assert counts["reported"] == 5
    assert Report.objects.count() == 5
    assert not FixtureStatus.objects.exists()
    assert outside.storage.read(FixtureStatusManager.CSV_PATH) is None


def test_one_competition_that_cannot_be_searched_does_not_stop_the_others(
    outside: Outside, options: Options, sandbox: SandboxHandle
) -> None:
    sandbox.fault("football", "status", path="/fixtures$", status=500, times=3)
    counts = discover(outside, options)
    assert counts["search_errors"] == 1
    assert counts["found"] > 30


def test_a_search_without_any_answer_is_a_failed_run_that_still_writes_what_is_due(
    epl: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    discover(epl, options)
    settle(epl, options)
    before = Report.objects.count()
    clock.forward(hours=4)
    sandbox.fault("football", "status", path="/fixtures$", status=500, times=3)
    with pytest.raises(OutsideError):
        discover(epl, options)
    assert Report.objects.count() > before


def test_a_wrong_key_stops_the_run(
    outside: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    config = football_config(sandbox.base_url, key="bad-key")
    wrong = replace(outside, football=FootballClient(config, policy=QUICK, clock=clock))
    with pytest.raises(Unauthorised):
        discover(wrong, options)
    assert not Match.objects.exists()


def test_without_api_football_a_run_is_empty_and_well(
    outside: Outside, options: Options, said: list[str]
) -> None:
    discover(outside, options)
    before = Report.objects.count()
    off = replace(outside, football=FootballClient(FootballConfig(Source.OFF, "", (39,))))
    assert discover(off, options)["found"] == 0
    assert dispatch(off, options)["reported"] == 0
    assert Report.objects.count() == before
    assert any("off" in line for line in said)


def test_a_used_up_quota_gives_guides_with_what_is_known(
    epl: Outside, options: Options, sandbox: SandboxHandle, clock: SharedClock
) -> None:
    discover(epl, options)
    settle(epl, options)
    match = Match.objects.filter(
        kickoff_at__gt=START + dt.timedelta(hours=2), schedule="NS", report__isnull=True
    ).earliest("kickoff_at")
    clock.set(match.kickoff_at - dt.timedelta(minutes=30))
    sandbox.load("football", {"daily_limit": 0})
    with pytest.raises(RateLimited):
        discover(epl, options)
    report = Report.objects.get(match=match)
    assert report.is_partial
    assert "不明" in report.html
    assert FixtureStatus.objects.get(pk=match.fixture_id).status == "complete"

    from django.core.cache import caches

    caches["default"].clear()
    sandbox.load("football", BIG)
    clock.forward(minutes=5)
    settle(epl, options)
    report = Report.objects.get(match=match)
    assert not report.is_partial
    assert report.has_lineups


def test_a_row_of_others_survives_a_run(epl: Outside, options: Options) -> None:
    header = "fixture_id,date,kickoff_jst,status,first_attempt_at,last_attempt_at,attempts,error_message"
    line = "999999,2025-08-01,2025-08-01T20:00:00+09:00,complete,,2025-08-01T19:30:00+09:00,0,"
    epl.storage.put(FixtureStatusManager.CSV_PATH, f"{header}\n{line}\n".encode(), "text/csv")
    discover(epl, options)
    discover(epl, options)
    assert csv_rows(epl)["999999"] == "complete"


def test_a_match_known_as_complete_from_the_csv_is_not_reported(
    epl: Outside, options: Options, said: list[str]
) -> None:
    discover(epl, options, dry_run=True)
    taken = [line.split()[2] for line in said if line.startswith("would write")]
    header = "fixture_id,kickoff_jst,status,last_attempt_at"
    lines = [f"{number},2026-03-11T20:00:00+09:00,complete,2026-03-11T19:00:00+09:00" for number in taken]
    epl.storage.put(FixtureStatusManager.CSV_PATH, "\n".join([header, *lines]).encode(), "text/csv")
    discover(epl, options)
    assert set(taken).isdisjoint(Report.objects.values_list("match_id", flat=True))
    # What API-Football says about kickoff stands.
    assert FixtureStatus.objects.get(pk=taken[0]).kickoff_at == Match.objects.get(pk=taken[0]).kickoff_at


def test_the_command_line(
    sandbox: SandboxHandle, store: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("poll", "fixtures", "--date", "2026-01-04", "--dry-run")
    shown = capsys.readouterr()
    assert "would write" in shown.err
    assert "2026-01-04" in shown.err
    assert "would_write=5" in shown.out
    assert not Match.objects.exists()
    call_command("poll", "dispatch")
    assert "dispatch: found=0 new=0 moved=0 reported=0" in capsys.readouterr().out
