"""``python -m tests.soak``: break things for so many minutes and say whether anything is lost. See ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

from tests.soak.conductor import Conductor
from tests.soak.plan import plan
from tests.soak.report import report
from tests.soak.site import opened_site

CALM_SECONDS = 10.0  # at the beginning: everything is seen to work before it is broken


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the plan and the choices of an earlier run")
    parser.add_argument(
        "--agents", type=int, default=12, help="beside two shipped clients (default: %(default)s)"
    )
    parser.add_argument(
        "--postgres", action="store_true", help="on a PostgreSQL server of its own, not SQLite"
    )
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs and database behind")
    given = parser.parse_args(arguments)
    if not 0 < given.minutes <= 24 * 60 or not 1 <= given.agents <= 1000:
        parser.error("--minutes must be up to a day and --agents from 1 to 1000")
    return given


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = SystemRandom().randint(1, 999_999) if given.seed is None else given.seed
    seconds = given.minutes * 60
    faults = plan(seed, min(CALM_SECONDS, seconds / 4), seconds, is_postgres=given.postgres)
    store = "PostgreSQL" if given.postgres else "SQLite"
    say(f"Soak of {given.minutes:g} min on {store}, SEED={seed}, {len(faults)} faults planned,")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    say(f"{given.agents} agents, begun {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, load average {load}.")
    folder = Path(tempfile.mkdtemp(prefix="broker-soak-"))
    is_kept = given.keep
    try:
        with opened_site(folder, is_postgres=given.postgres) as site:
            conductor = Conductor(site, faults, seed=seed, seconds=seconds, agents=given.agents, say=say)
            try:
                outcome = asyncio.run(conductor.run())
            finally:
                conductor.people.close()
        say(report(outcome, conductor.ledger, conductor.gauges))
        is_kept = is_kept or bool(outcome.broken)
        return 1 if outcome.broken else 0
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


if __name__ == "__main__":
    sys.exit(main())
