"""The pollers' schedule: whatever happens to the cluster, Redis or the clock, the next run comes by itself."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from broker_project.lib.redis import keys as k
from tests.faults.invariants import eternal_locks, late_pollers
from tests.faults.records import Records
from tests.faults.report import Recorder
from tests.faults.world import KEYS, FaultWorld
from tests.support.broker_process import BrokerProcess, wait_for

NAME = "poller-schedule"
# The cluster looks at its schedules twice a minute; a slow machine is given some more.
RUN_SECONDS = 150.0


def test_killed_while_it_holds_its_lock(world: FaultWorld, recorder: Recorder) -> None:
    """A poller that dies in the middle of a run keeps the next one waiting no longer than its interval."""
    world.begin()
    world.sandbox.fault("feed", "stall", seconds=30)
    process = world.start("poll", "feeds", "--force")
    process.go()
    key = KEYS.key(k.LOCK_PROCESS, name="feeds")
    wait_for(lambda: world.store.exists(key), "the poller has its lock")
    wait_for(lambda: any(one["fired"] for one in world.sandbox.faults()), "the poller waits for the feed")
    process.kill()
    world.sandbox.clear_faults()
    recorder.note(NAME, "killed while it holds its lock", "killed")
    assert eternal_locks(world.store) == []
    assert 0 < world.store.pttl(key) <= 15 * 60 * 1000
    assert "already running" in world.run("poll", "feeds")
    world.pass_time(15 * 60)
    assert "added=" in world.run("poll", "feeds", "--force")
    assert world.records.value("SELECT outcome FROM broker_pollerrun ORDER BY id DESC LIMIT 1") == "done"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Everything together under its supervisor."""
    process = BrokerProcess(tmp_path_factory.mktemp("supervised"), BROKER_CLUSTER_HANG_SECONDS="6")
    try:
        process.wait_until_greeted()
        wait_for(lambda: process.workers(), "the cluster has workers")
        yield process
    finally:
        process.close()


def kill_worker(broker: BrokerProcess) -> None:
    os.kill(broker.workers()[0], signal.SIGKILL)


def kill_cluster(broker: BrokerProcess) -> None:
    broker.part("qcluster").kill()


def kill_redis(broker: BrokerProcess) -> None:
    broker.part("valkey" if "valkey" in " ".join(broker_children(broker)) else "redis-server").kill()


def broker_children(broker: BrokerProcess) -> list[str]:
    return [" ".join(child.cmdline()) for child in broker.family()[1:]]


def stop_cluster(broker: BrokerProcess) -> None:
    """It hangs: alive, and doing nothing."""
    for process in broker.part("qcluster").children(recursive=True):
        process.suspend()


def clock_was_ahead(broker: BrokerProcess) -> None:
    """Every run was planned by a clock that was an hour ahead."""
    later = (datetime.now(UTC) + timedelta(hours=1, minutes=10)).strftime("%Y-%m-%d %H:%M:%S")
    execute(broker, f"UPDATE django_q_schedule SET next_run = '{later}'")


def lock_database(broker: BrokerProcess) -> None:
    with closing(sqlite3.connect(broker.var / "broker.sqlite3", isolation_level=None, timeout=20)) as other:
        other.execute("BEGIN IMMEDIATE")
        wait_for(lambda: broker.status("/readyz"), "the web still answers")
        other.execute("ROLLBACK")


def execute(broker: BrokerProcess, sql: str) -> None:
    Records.at(f"sqlite:///{broker.var / 'broker.sqlite3'}").rows(sql)


FAULTS: dict[str, Callable[[BrokerProcess], None]] = {
    "worker-killed": kill_worker,
    "cluster-killed": kill_cluster,
    "cluster-hangs": stop_cluster,
    "redis-killed": kill_redis,
    "database-locked": lock_database,
    "clock-was-an-hour-ahead": clock_was_ahead,
}


@pytest.mark.process
@pytest.mark.faults_long
@pytest.mark.xdist_group("supervisor")
@pytest.mark.parametrize("fault", [pytest.param(fault, id=f"{NAME}-{fault}") for fault in FAULTS])
def test_runs_again_by_itself(broker: BrokerProcess, recorder: Recorder, fault: str) -> None:
    records = Records.at(f"sqlite:///{broker.var / 'broker.sqlite3'}")

    def runs() -> int:
        return int(
            records.value("SELECT count(*) FROM broker_pollerrun WHERE name = 'metrics' AND outcome = 'done'")
        )

    wait_for(runs, "the first run", RUN_SECONDS)
    before = runs()
    FAULTS[fault](broker)
    wait_for(lambda: runs() > before, f"metrics runs again, {fault}", RUN_SECONDS)
    recorder.note(NAME, fault, "ran again")
    assert late_pollers(records, {"metrics": 60}, datetime.now(UTC)) == []
    wait_for(lambda: broker.status("/readyz") == 200, "ready")
