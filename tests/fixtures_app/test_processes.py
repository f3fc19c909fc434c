"""Races made to happen: runs in processes of their own, at the same time and killed half-way."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from fixtures.csv.parsing import parse_table
from sandbox.launcher import SandboxHandle
from tests.support.databases import database_url, rows
from tests.support.template_database import make_migrated_database
from tests.support.warm_python import WarmProcess, start_python

pytestmark = [pytest.mark.process, pytest.mark.database]

TIMEOUT_SECONDS = 120

RUN = """
import datetime as dt, json, sys
import django
django.setup()
from django.utils import timezone
from broker_project.ops.clock.pollers import PollOptions
from fixtures.services.reporting import Outside
from fixtures.services.runs import run_fixtures
print("ready", flush=True)
order = json.loads(sys.stdin.readline())
clock = lambda: timezone.now() + dt.timedelta(minutes=order["minutes"])
outside = Outside.configured(clock=clock)
for _ in range(order["times"]):
    counts = run_fixtures(PollOptions(by="test"), discover=order["discover"], outside=outside)
    print(json.dumps(dict(counts)), flush=True)
"""


ROWS = "SELECT fixture_id, status, attempts FROM fixture_status"
COMPLETED = "SELECT fixture_id FROM fixtures_event WHERE what = 'completed'"
LEASES = "SELECT fixture_id FROM fixtures_matchlease WHERE expires_at IS NOT NULL"


class Machine:
    """A broker with a database and a bucket of its own, outside this process."""

    def __init__(self, var: Path, sandbox: SandboxHandle) -> None:
        self.sandbox = sandbox
        self.var = var
        make_migrated_database(var)
        self.environment = {
            **os.environ,
            "BROKER_VAR": str(var),
            "DATABASE_URL": database_url(var),
            "BROKER_SANDBOX": "1",
            "BROKER_SANDBOX_URL": sandbox.base_url,
            "REDIS_URL": settings.REDIS_URL,
            "GCS_BUCKET": "guides",
            "STORAGE_EMULATOR_HOST": f"{sandbox.base_url}/gcs",
            "FIXTURE_LEAGUES": "39,140",
            "BROKER_LOG_LEVEL": "ERROR",
        }
        self.started: list[WarmProcess] = []

    def ask(self) -> dict[str, Any]:
        """What a stranger with SQL sees."""
        names = ("fixture_id", "status", "attempts")
        return {
            "rows": [dict(zip(names, row, strict=True)) for row in rows(self.var, ROWS)],
            "completed": [row[0] for row in rows(self.var, COMPLETED)],
            "reports": [row[0] for row in rows(self.var, "SELECT match_id FROM fixtures_report")],
            "leases": [row[0] for row in rows(self.var, LEASES)],
        }

    def start(self) -> WarmProcess:
        process = start_python("-c", RUN, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def order(self, process: WarmProcess, **order: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"times": 1, "minutes": 0, "discover": True, **order}) + "\n")
        process.stdin.flush()

    def finish(self, process: WarmProcess) -> list[Counter[str]]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        with process.stdout as stream:
            output = stream.read()
        process.wait(TIMEOUT_SECONDS)
        return [Counter(json.loads(line)) for line in output.splitlines()]

    def run(self, **order: Any) -> list[Counter[str]]:
        process = self.start()
        self.order(process, **order)
        counts = self.finish(process)
        assert process.returncode == 0
        return counts

    def csv(self) -> dict[str, str]:
        (table,) = [
            entry for entry in self.sandbox.state("gcs")["objects"] if entry["name"].endswith("status.csv")
        ]
        return {row.fixture_id: row.status.value for row in parse_table(base64.b64decode(table["data"]))}


@pytest.fixture
def here(tmp_path: Path, sandbox: SandboxHandle, store: redis.Redis) -> Iterator[Machine]:
    machine = Machine(tmp_path, sandbox)
    yield machine
    for process in machine.started:
        if process.poll() is None:
            process.kill()
            process.wait(10)


@pytest.mark.slow
def test_two_runs_at_once_report_each_match_once(here: Machine, sandbox: SandboxHandle) -> None:
    runs = [here.start(), here.start()]
    sandbox.clear_calls()
    for run in runs:
        here.order(run, times=2)
    counts = [count for run in runs for count in here.finish(run)]
    assert [run.returncode for run in runs] == [0, 0]
    after = here.ask()
    reported = sum(count["reported"] for count in counts)
    assert reported == len(after["reports"]) == len(set(after["completed"])) == len(after["completed"]) > 4
    assert sum(count["failed"] + count["lost"] for count in counts) == 0
    assert after["leases"] == []
    # One upload a guide: no match was made by both.
    uploads = [call for call in sandbox.calls("gcs") if call["method"] == "POST"]
    guides = [call for call in uploads if "ifGenerationMatch" not in call["path"]]
    assert len(guides) == reported
    assert here.csv() == {row["fixture_id"]: row["status"] for row in after["rows"]}


@pytest.mark.slow
def test_a_run_killed_half_way_costs_one_attempt_of_one_match(here: Machine, sandbox: SandboxHandle) -> None:
    doomed = here.start()
    sandbox.fault("football", "signal", path="injuries", skip=2, pid=doomed.pid, signal="SIGKILL")
    here.order(doomed)
    here.finish(doomed)
    assert doomed.returncode == -9
    killed = here.ask()
    assert Counter(row["status"] for row in killed["rows"] if row["status"] != "pending") == {
        "complete": 2,
        "processing": 1,
    }
    (stuck,) = killed["leases"]

    # At once: the others are reported, the stuck one is left alone.
    here.run(discover=False)
    rows = {row["fixture_id"]: row for row in here.ask()["rows"]}
    assert rows[stuck]["status"] == "processing"
    # Half an hour later it is retaken.
    here.run(times=2, minutes=31, discover=False)
    after = here.ask()
    rows = {row["fixture_id"]: row for row in after["rows"]}
    assert (rows[stuck]["status"], rows[stuck]["attempts"]) == ("complete", 1)
    assert {row["attempts"] for key, row in rows.items() if key != stuck} == {0}
    assert len(after["completed"]) == len(set(after["completed"])) == len(after["reports"])
    assert here.csv() == {row["fixture_id"]: row["status"] for row in after["rows"]}
