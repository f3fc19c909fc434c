"""One scheduled run of matches: how often the CSV is read and written, counted at the storage stand-in."""

from __future__ import annotations

from collections import Counter

from bench.context import Context
from bench.figures import Result
from bench.processes import BenchFailed, CommandProcess
from sandbox.launcher import SandboxHandle, start_sandbox

DAYS = "2880"  # minutes: whatever the search finds is in the window
PLENTY = {"daily_limit": 1_000_000, "minute_limit": 1_000_000}
CSV = "fixture_status.csv"


def run(context: Context) -> Result:
    result = Result("fixtures")
    with start_sandbox(seed=False) as sandbox:
        sandbox.load("football", PLENTY)
        worker = context.environment.worker(
            context.environment.stores("matches"),
            BROKER_SANDBOX_URL=sandbox.base_url,
            GCS_BUCKET="guides",
            STORAGE_EMULATOR_HOST=f"{sandbox.base_url}/gcs",
            FIXTURE_BEFORE_MINUTES=DAYS,
            FIXTURE_AFTER_MINUTES=DAYS,
            FIXTURE_CATCH_UP_MINUTES=DAYS,
        )
        for number in context.scale.matches:
            context.say(f"a run of {number} matches")
            run_of(result, worker, sandbox, number)
        worker.stop()
    return result


def run_of(result: Result, worker: CommandProcess, sandbox: SandboxHandle, number: int) -> None:
    sandbox.clear_calls()
    found = worker.ask("run_matches", count=number)
    calls = sandbox.calls("gcs")
    if found["reports"] != number:
        raise BenchFailed(f"{found['reports']} guides instead of {number}: {found['counts']}")
    methods = Counter(call["method"] for call in calls)
    reads = sum(CSV in call["path"] for call in calls if call["method"] == "GET")
    # The address of an upload does not name its object: whatever is not a guide is the CSV.
    writes = methods["POST"] - number
    result.figure(
        f"a run of {number} matches",
        found["seconds"],
        "s",
        f"calls to storage: {dict(methods)}; to football: {len(sandbox.calls('football'))}",
    )
    result.at_most(f"fixtures: reads of the CSV, {number} matches", reads, 1)
    result.at_most(f"fixtures: writes of the CSV, {number} matches", writes, 1)
