"""``python -m tests.soak [soak|chaos]``: break things for so many minutes and say whether anything is lost."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

from tests.soak.chaos import Chaos
from tests.soak.conductor import Conductor
from tests.soak.disk import Disk, NoDisk, check_writing_can_be_forbidden, small_disk
from tests.soak.ledger import Ledger
from tests.soak.plan import chaos_plan, plan
from tests.soak.report import chaos_report, report
from tests.soak.site import opened_site
from tests.soak.soak import Soak

CALM_SECONDS = 10.0  # at the beginning: everything is seen to work before it is broken
AGENTS = {"soak": 12, "chaos": 30}
# A soak has many faults a minute and must not wait for each as long as is usual.
HURRIED = {"BROKER_CALL_SECONDS": "4", "BROKER_CLUSTER_HANG_SECONDS": "20"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=sorted(AGENTS), default="soak")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the plan and the choices of an earlier run")
    parser.add_argument(
        "--agents", type=int, help="12, beside two shipped clients, in a soak; 30 in a chaos run"
    )
    parser.add_argument(
        "--postgres", action="store_true", help="on a PostgreSQL server of its own, not SQLite"
    )
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs and database behind")
    given = parser.parse_args(arguments)
    given.agents = AGENTS[given.kind] if given.agents is None else given.agents
    if not 0 < given.minutes <= 24 * 60 or not 1 <= given.agents <= 1000:
        parser.error("--minutes must be up to a day and --agents from 1 to 1000")
    return given


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given.seed = SystemRandom().randint(1, 999_999) if given.seed is None else given.seed
    store = "PostgreSQL" if given.postgres else "SQLite"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    say(
        f"{given.kind.capitalize()} of {given.minutes:g} min on {store}, SEED={given.seed}, {given.agents} agents,"
    )
    say(f"begun {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, load average {load}.")
    folder = Path(tempfile.mkdtemp(prefix=f"broker-{given.kind}-"))
    is_kept = given.keep
    try:
        is_broken = soak(given, folder) if given.kind == "soak" else chaos(given, folder)
        is_kept = is_kept or is_broken
        return int(is_broken)
    except KeyboardInterrupt:
        say("Interrupted; everything that was started has been ended.")
        return 130
    except BaseException:
        is_kept = True
        raise
    finally:
        if is_kept:
            say(f"Logs and database: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def soak(given: argparse.Namespace, folder: Path) -> bool:
    """True if something is broken."""
    seconds = given.minutes * 60
    faults = plan(given.seed, min(CALM_SECONDS, seconds / 4), seconds, is_postgres=given.postgres)
    say(f"{len(faults)} faults planned.")
    with opened_site(folder, is_postgres=given.postgres, settings=HURRIED) as site:
        run = Soak(site, faults, seed=given.seed, seconds=seconds, agents=given.agents, say=say)
        carry_out(run)
    say(report(run.outcome, run.ledger, run.gauges))
    return bool(run.outcome.broken)


def chaos(given: argparse.Namespace, folder: Path) -> bool:
    """True if something is broken. What this machine cannot do is skipped by name."""
    seconds = given.minutes * 60
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        disk: Disk | None = None
        try:
            disk = stack.enter_context(small_disk(folder / "disk"))
        except NoDisk as error:
            skipped["disk-full"] = str(error)
        site = stack.enter_context(opened_site(folder, is_postgres=given.postgres, disk=disk))
        if not given.postgres:
            try:
                check_writing_can_be_forbidden(site.var)
            except NoDisk as error:
                skipped["database-read-only"] = str(error)
        for name, why in skipped.items():
            say(f"SKIPPED {name}: {why}")
        faults = chaos_plan(
            *(given.seed, min(CALM_SECONDS, seconds / 4), seconds),
            is_postgres=given.postgres,
            skipped=skipped,
        )
        run = Chaos(site, faults, seed=given.seed, seconds=seconds, agents=given.agents, say=say)
        carry_out(run)
    say(chaos_report(run.outcome, run.ledger, run.figures))
    return bool(run.outcome.broken)


def carry_out(run: Conductor) -> None:
    try:
        asyncio.run(run.run())
    finally:
        run.people.close()
        keep_evidence(run.site.folder, run.ledger)


def keep_evidence(folder: Path, ledger: Ledger) -> None:
    """Beside the logs, for whoever looks into what went wrong: one JSON object a line."""
    faults = [json.dumps(asdict(run)) for run in ledger.fault_runs]
    opened = [json.dumps({"issue": number, "at": at}) for number, at in ledger.opened.items()]
    clients = [seen.as_line() for seen in ledger.sightings]
    for name, lines in (("faults", faults), ("opened", opened), ("clients", clients)):
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
