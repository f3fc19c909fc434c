"""A stretch of a season in fast motion: a kickoff every quarter hour, runs as scheduled, every tenth call failing."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable

import pytest

from broker_project.lib.config.outside import Source, StorageConfig
from broker_project.lib.errors import OutsideError
from broker_project.lib.gemini import Gemini
from broker_project.lib.retry import RetryPolicy
from broker_project.ops.clock.pollers import PollOptions
from fixtures.clients.football import FootballClient
from fixtures.clients.storage import BucketStorage
from fixtures.csv.parsing import parse_table
from fixtures.fixture_status_manager import FixtureStatusManager
from fixtures.lifecycle import JST
from fixtures.models import Event, FixtureStatus, Match
from fixtures.services.csv_sync import TableUnreadable
from fixtures.services.reporting import Outside
from fixtures.services.runs import run_fixtures
from sandbox.launcher import SandboxHandle
from tests.fixtures_app.conftest import NO_GEMINI, QUICK, SharedClock, football_config
from tests.fixtures_app.flaky import FlakyProxy, flaky_proxy

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

BEGIN = dt.datetime(2026, 3, 10, 21, 0, tzinfo=JST)
QUARTER = dt.timedelta(minutes=15)
TICK = dt.timedelta(minutes=5)
HOURS = int(os.environ.get("SEASON_HOURS", "4"))
TEAMS = (33, 34, 35, 36, 39, 40, 42, 44, 45, 47, 48, 49, 50, 51, 52, 55, 63, 65, 66, 746)


class Season:
    def __init__(self, sandbox: SandboxHandle, proxy: FlakyProxy, policy: RetryPolicy) -> None:
        self.clock = SharedClock(sandbox, BEGIN)
        self.outside = Outside(
            football=FootballClient(football_config(proxy.base_url, 45), policy=policy, clock=self.clock),
            storage=BucketStorage(
                StorageConfig(Source.REAL, "guides", f"{proxy.base_url}/gcs"), policy=policy
            ),
            gemini=Gemini(NO_GEMINI),
            clock=self.clock,
        )
        self.runs: Counter[str] = Counter()
        kickoffs = [BEGIN + dt.timedelta(hours=1) + QUARTER * number for number in range(4 * HOURS)]
        extra = [
            {"league": 45, "home": TEAMS[n % 20], "away": TEAMS[(n + 7) % 20], "kickoff": kickoff.isoformat()}
            for n, kickoff in enumerate(kickoffs)
        ]
        sandbox.load("football", {"daily_limit": 10**6, "minute_limit": 10**6, "extra": extra})

    def play(self) -> None:
        """Every five minutes a dispatch, at 0, 3, … 21 o'clock in Japan a whole run; two hours longer at the end."""
        for number in range((HOURS + 3) * 12):
            now = BEGIN + TICK * number
            self.clock.set(now)
            is_whole = now.astimezone(JST).hour % 3 == 0 and now.minute == 0
            try:
                run_fixtures(PollOptions(by="season"), discover=is_whole, outside=self.outside)
                self.runs["done"] += 1
            except (OutsideError, TableUnreadable):
                self.runs["failed"] += 1


def outcome() -> Counter[str]:
    """How the matches of the stretch fared."""
    found: Counter[str] = Counter()
    planned = Match.objects.filter(
        schedule="NS", kickoff_at__gte=BEGIN, kickoff_at__lt=BEGIN + dt.timedelta(hours=1 + HOURS)
    )
    for match in planned:
        completions = Event.objects.filter(fixture_id=match.fixture_id, what="completed").order_by("at")
        found["matches"] += 1
        found["reported"] += completions.count() == 1
        found["missed"] += completions.count() == 0
        found["twice"] += completions.count() > 1
        if completions:
            found["in the window"] += completions[0].at <= match.kickoff_at + dt.timedelta(minutes=60)
        found["attempts"] += FixtureStatus.objects.get(pk=match.fixture_id).attempts
    return found


@pytest.mark.parametrize(
    ("share", "policy"), [(0.1, QUICK), (0.1, RetryPolicy(max_attempts=1))], ids=["as built", "no retries"]
)
def test_a_stretch_of_a_season(
    sandbox: SandboxHandle,
    share: float,
    policy: RetryPolicy,
    record_property: Callable[[str, object], None],
) -> None:
    with flaky_proxy(sandbox.base_url, share) as proxy:
        season = Season(sandbox, proxy, policy)
        season.play()
        fates = Counter(fate for (_, fate), number in proxy.calls.items() for _ in range(number))
    found = outcome()
    record_property("season", {**found, **season.runs, **fates})
    print(dict(found), dict(season.runs), dict(fates))
    assert found["matches"] >= 4 * HOURS * 0.9  # some are called off
    assert sum(fates.values()) - fates["well"] > 10
    assert found["twice"] == 0
    if policy is QUICK:
        assert found["missed"] == 0
        assert found["in the window"] == found["matches"]
    else:
        assert found["reported"] + found["missed"] == found["matches"]
        assert found["missed"] <= found["matches"] // 4
    quiet = BucketStorage(StorageConfig(Source.REAL, "guides", f"{sandbox.base_url}/gcs"), policy=QUICK)
    table = quiet.read(FixtureStatusManager.CSV_PATH)
    assert table is not None
    rows = {row.fixture_id: row.status.value for row in parse_table(table.data)}
    assert rows == dict(FixtureStatus.objects.values_list("fixture_id", "status"))
