"""The table of pollers, the one way to run them, and the clock that starts them."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from django.core.management import CommandError, call_command
from django.utils import timezone
from django_q.models import Schedule

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.locks import acquire_lock
from broker_project.models import Poller, PollerRun
from broker_project.ops.clock.pollers import PollOptions, poller_table, run_poller, run_scheduled
from broker_project.ops.clock.schedules import next_run_at, recall_schedules, sync_schedules
from sandbox.launcher import SandboxHandle

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def poll(*arguments: str) -> str:
    out = io.StringIO()
    call_command("poll", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_the_list_names_every_poller_with_its_schedule() -> None:
    text = poll("--list")
    names = [line.split()[0] for line in text.splitlines()]
    assert names == ["issues", "zombies", "feeds", "items", "fixtures", "dispatch", "metrics", "cleanup"]
    assert "0 */3 * * * (Asia/Tokyo)" in text


def test_an_unknown_poller_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CommandError, match="no poller 'nonsense'; these are: issues"):
        poll("nonsense")
    with pytest.raises(CommandError, match="Name one of"):
        poll()


def test_counts_are_printed_even_when_there_is_nothing_to_do(store: redis.Redis) -> None:
    assert "samples=2" in poll("metrics")
    run = PollerRun.objects.get()
    assert (run.name, run.outcome, run.by) == ("metrics", "done", "command line")
    assert run.finished_at is not None
    assert run.counts["samples"] == 2


def test_a_failure_is_one_sentence_and_on_record(
    store: redis.Redis, sandbox: SandboxHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox.fault("github", "drop", times=0)
    with pytest.raises(CommandError, match=r"issues: .*GitHub"):
        poll("issues")
    run = PollerRun.objects.get()
    assert run.outcome == "failed"
    assert "GitHub" in run.error
    assert "Traceback" not in capsys.readouterr().err


def test_maintenance_stops_pollers_unless_forced(store: redis.Redis) -> None:
    store.set(keyspace().key(k.FLAG_MAINTENANCE), "1")
    assert "maintenance" in poll("metrics")
    assert not PollerRun.objects.exists()
    assert "samples=2" in poll("metrics", "--force")


def test_a_paused_poller_stands_still(store: redis.Redis) -> None:
    Poller.objects.create(name="metrics", paused_at=timezone.now(), paused_by="somebody")
    assert "paused" in poll("metrics")
    assert run_scheduled("metrics") == {}


def test_a_second_run_at_the_same_time_does_nothing(store: redis.Redis) -> None:
    assert acquire_lock(store, keyspace().key(k.LOCK_PROCESS, name="metrics"), "another", 30)
    assert "already running" in poll("metrics")
    assert store.get(keyspace().key(k.LOCK_PROCESS, name="metrics")) == "another"


def test_the_lock_of_a_killed_run_goes_within_the_interval(store: redis.Redis) -> None:
    seen: list[int] = []

    def report(text: str) -> None:
        """Looks at the lock from inside a run."""
        seen.append(store.ttl(keyspace().key(k.LOCK_PROCESS, name="issues")))

    run_poller("issues", PollOptions(report=report))
    assert seen
    assert all(0 < ttl <= poller_table()["issues"].every_seconds for ttl in seen)
    assert store.exists(keyspace().key(k.LOCK_PROCESS, name="issues")) == 0


def test_redis_that_takes_nothing_is_a_failure_on_record(store: redis.Redis) -> None:
    store.config_set("maxmemory", 1)
    try:
        with pytest.raises(CommandError, match="OutOfMemoryError"):
            poll("zombies")
        result = run_poller("zombies")
    finally:
        store.config_set("maxmemory", 0)
    assert result.outcome is PollerRun.Outcome.FAILED
    assert PollerRun.objects.filter(name="zombies", outcome="failed", finished_at__isnull=False).count() == 2


def test_a_run_whose_process_was_killed_is_closed_by_the_next(store: redis.Redis) -> None:
    now = timezone.now()
    killed = PollerRun.objects.create(name="zombies", by="test", started_at=now - timedelta(minutes=5))
    beside = PollerRun.objects.create(name="items", by="test", started_at=now - timedelta(minutes=5))
    old = PollerRun.objects.create(name="items", by="test", started_at=now - timedelta(hours=2))
    assert run_poller("zombies").outcome is PollerRun.Outcome.DONE
    run_poller("items")
    for run in (killed, beside, old):
        run.refresh_from_db()
    assert (killed.outcome, killed.error) == ("failed", "the process ended before the run did")
    assert killed.finished_at is not None
    assert (beside.outcome, old.outcome) == ("running", "failed")


def test_schedules_follow_the_table(store: redis.Redis) -> None:
    out = io.StringIO()
    call_command("sync_schedules", stdout=out)
    assert "issues: made" in out.getvalue()
    assert set(Schedule.objects.values_list("name", flat=True)) == set(poller_table())
    before = {s.name: s.next_run for s in Schedule.objects.all()}
    Schedule.objects.filter(name="feeds").update(minutes=99)
    Schedule.objects.create(
        name="gone", func="broker_project.ops.clock.pollers.run_scheduled", args="('gone',)"
    )
    lines = sync_schedules()
    assert "feeds: updated, every 15 min" in lines
    assert "zombies: unchanged, every 5 min" in lines
    assert "gone: removed" in lines
    after: dict[str, Any] = {s.name: s.next_run for s in Schedule.objects.all()}
    assert {n: t for n, t in after.items() if n != "feeds"} == {
        n: t for n, t in before.items() if n != "feeds"
    }


def test_a_clock_that_was_ahead_silences_no_poller(store: redis.Redis) -> None:
    """What was planned by such a clock comes back to now; what is planned rightly stays."""
    sync_schedules()
    now = timezone.now()
    table = poller_table()
    for spec in table.values():
        planned = now + timedelta(seconds=spec.every_seconds) if not spec.cron else next_run_at(spec, now)
        Schedule.objects.filter(name=spec.name).update(next_run=planned)
    assert recall_schedules(now) == []
    ahead = {name for name, spec in table.items() if not spec.cron}
    for schedule in Schedule.objects.all():
        Schedule.objects.filter(pk=schedule.pk).update(next_run=schedule.next_run + timedelta(hours=1))
    recalled = recall_schedules(now)
    assert ahead <= set(recalled)
    for name, spec in table.items():
        next_run = Schedule.objects.get(name=name).next_run
        assert next_run is not None
        assert next_run <= now + timedelta(seconds=spec.every_seconds, hours=1)
        assert name not in ahead or next_run == now


def test_fixtures_run_on_the_hours_of_the_seed_in_japan() -> None:
    spec = poller_table()["fixtures"]
    now = datetime(2026, 11, 16, 5, 30, tzinfo=UTC)  # 14:30 in Tokyo
    hours = []
    for _ in range(8):
        now = next_run_at(spec, now)
        hours.append(now.astimezone(ZoneInfo("Asia/Tokyo")).hour)
        now += timedelta(minutes=1)
    assert sorted(hours) == [0, 3, 6, 9, 12, 15, 18, 21]
